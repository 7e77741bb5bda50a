"""Behaviour common to all operations: bodies, queries, pages, retry tokens, injected faults."""

import base64
import json

import oci
import pytest
from oci.core.models import CreateVcnDetails
from oci.pagination import list_call_get_all_results as every

from tests.fakes.oci.models import model
from tests.fakes.oci.router import _table

pytest_plugins = ["tests.fakes.oci.fixtures"]

VCNS = "/20160918/vcns"


def body(world, **fields):
    return {"compartmentId": world.compartment, "cidrBlocks": ["10.0.0.0/16"], **fields}


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"cidr": "10.0.0.0/8"}, "InvalidParameter", "cidr is not a field of CreateVcnDetails"),
        ({"compartmentId": None}, "MissingParameter", "compartmentId is required"),
        ({"cidrBlocks": "10.0.0.0/16"}, "InvalidParameter", "cidrBlocks must be of type list[str]"),
        ({"cidrBlocks": [10]}, "InvalidParameter", "cidrBlocks[0] must be of type str"),
        ({"isIpv6Enabled": 1}, "InvalidParameter", "isIpv6Enabled must be of type bool"),
        ({"freeformTags": {"a": 1}}, "InvalidParameter", "freeformTags.a must be of type str"),
        ({"freeformTags": {str(n): "" for n in range(11)}}, "InvalidParameter", "11 entries"),
        ({"dnsLabel": "not-a-label"}, "InvalidParameter", "dnsLabel"),
        ({"cidrBlocks": []}, "MissingParameter", "cidrBlocks is required"),
    ],
)
def test_api_refuses_bodies_that_differ_from_the_sdk_models(world, fields, code, words):
    answer = world.raw("POST", VCNS, json=body(world, **fields))
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert words in answer.json()["message"]
    assert world.control.state()["resources"] == []


def launch(world, **fields):
    subnet = world.subnet(world.vcn())
    details = world.compute.base_client.sanitize_for_serialization(world.details(subnet))
    return world.raw("POST", "/20160918/instances", json={**details, **fields})


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"sourceDetails": {"imageId": "i"}}, "MissingParameter", "sourceDetails.sourceType is required"),
        ({"sourceDetails": {"sourceType": "tape"}}, "InvalidParameter", "known types: tape"),
        (
            {"sourceDetails": {"sourceType": "image", "bootVolumeId": "b"}},
            "InvalidParameter",
            "sourceDetails.bootVolumeId is not a field of InstanceSourceViaImageDetails",
        ),
        (
            {"sourceDetails": {"sourceType": "bootVolume"}},
            "MissingParameter",
            "sourceDetails.bootVolumeId is required",
        ),
        (
            {"preemptibleInstanceConfig": {"preemptionAction": {"type": "STOP"}}},
            "InvalidParameter",
            "preemptibleInstanceConfig.preemptionAction.type",
        ),
        (
            {"launchOptions": {"networkType": "E2"}},
            "InvalidParameter",
            "launchOptions.networkType is 'E2', not one of: E1000",
        ),
    ],
)
def test_api_checks_nested_fields_of_bodies(world, fields, code, words):
    answer = launch(world, **fields)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert words in answer.json()["message"]


def test_api_refuses_a_body_that_is_no_json_object(world):
    for data in (b"{", b"[]", b"\xff"):
        answer = world.raw("POST", VCNS, data=data)
        assert (answer.status_code, answer.json()["code"]) == (400, "CannotParseRequest")
    answer = world.raw("POST", VCNS, data=b"")
    assert answer.json()["code"] == "MissingParameter"


@pytest.mark.parametrize(
    ("query", "code", "words"),
    [
        ({}, "MissingParameter", "compartmentId is required"),
        ({"colour": "red"}, "InvalidParameter", "takes no query parameter colour"),
        ({"limit": "many"}, "InvalidParameter", "limit must be a whole number"),
        ({"sortBy": "SIZE"}, "InvalidParameter", "sortBy is 'SIZE', not one of: TIMECREATED"),
        ({"page": "x"}, "InvalidParameter", "page is no token"),
        ({"limit": "0"}, "InvalidParameter", "between 1 and 1000"),
    ],
)
def test_api_refuses_invalid_query_parameters(world, query, code, words):
    if query:
        query["compartmentId"] = world.compartment
    answer = world.raw("GET", VCNS, params=query)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert words in answer.json()["message"]


def test_api_answers_501_for_a_missing_operation(world):
    answer = world.raw("GET", "/20160918/volumeGroups", params={"compartmentId": world.compartment})
    assert (answer.status_code, answer.json()["code"]) == (501, "NotImplemented")
    assert "GET /20160918/volumeGroups" in answer.json()["message"]


def test_lists_are_paginated_filtered_and_sorted(world):
    vcns = [world.vcn(f"10.{n}.0.0/16", display_name=f"v{n % 3}") for n in range(7)]
    first = world.network.list_vcns(world.compartment)
    assert [vcn.id for vcn in first.data] == [vcn.id for vcn in vcns[:3]]
    world.vcn("10.99.0.0/16")  # does not shift what follows
    world.network.delete_vcn(vcns[0].id)
    world.until_gone(lambda: world.network.get_vcn(vcns[0].id))
    second = world.network.list_vcns(world.compartment, page=first.next_page)
    assert [vcn.id for vcn in second.data] == [vcn.id for vcn in vcns[3:6]]
    assert len(every(world.network.list_vcns, world.compartment).data) == 7
    assert len(every(world.network.list_vcns, world.compartment, limit=2).data) == 7
    assert len(world.network.list_vcns(world.compartment, limit=2).data) == 2
    named = every(world.network.list_vcns, world.compartment, display_name="v1").data
    assert [vcn.id for vcn in named] == [vcns[1].id, vcns[4].id]
    newest = every(world.network.list_vcns, world.compartment, sort_by="TIMECREATED").data
    assert [vcn.cidr_block for vcn in newest][:2] == ["10.99.0.0/16", "10.6.0.0/16"]
    assert every(world.network.list_vcns, world.cloud.account.tenancy).data == []


def test_retry_token_repeats_the_result_or_is_invalidated(world, refused):
    details = CreateVcnDetails(compartment_id=world.compartment, cidr_block="10.0.0.0/16")
    create = world.network.create_vcn
    first = create(details, opc_retry_token="t1").data
    world.until(lambda: world.network.get_vcn(first.id).data, "AVAILABLE")
    again = create(details, opc_retry_token="t1").data
    assert (again.id, again.lifecycle_state) == (first.id, "AVAILABLE")
    other = CreateVcnDetails(compartment_id=world.compartment, cidr_block="10.1.0.0/16")
    refused(409, "InvalidatedRetryToken", create, other, opc_retry_token="t1")
    assert create(details, opc_retry_token="t2").data.id != first.id
    assert create(details).data.id != create(details).data.id
    world.network.delete_vcn(first.id)
    refused(409, "InvalidatedRetryToken", create, details, opc_retry_token="t1")
    world.until_gone(lambda: world.network.get_vcn(first.id))
    refused(409, "InvalidatedRetryToken", create, details, opc_retry_token="t1")


def test_launch_retry_token_creates_one_instance(world, refused):
    subnet = world.subnet(world.vcn())
    world.settings(capacity={"*": {"*": 0}})
    refused(500, "InternalError", world.launch, subnet, token="t")
    world.settings(capacity={})
    first, again = world.launch(subnet, token="t"), world.launch(subnet, token="t")
    assert first.data.id == again.data.id
    assert first.headers["opc-work-request-id"] == again.headers["opc-work-request-id"]
    assert world.control.state()["most_instances"] == 1
    refused(409, "InvalidatedRetryToken", world.launch, subnet, token="t", display_name="other")
    world.compute.terminate_instance(first.data.id)
    refused(409, "InvalidatedRetryToken", world.launch, subnet, token="t")


def test_list_lag_hides_new_resources_from_lists(world):
    world.settings(list_lag_s=2)
    vcn = world.vcn()
    assert world.network.list_vcns(world.compartment).data == []
    assert world.network.get_vcn(vcn.id).data.id == vcn.id
    world.settings(list_lag_s=0)
    other = world.vcn()
    assert [item.id for item in world.network.list_vcns(world.compartment).data] == [other.id]


def test_faults_inject_errors_drops_and_duplicates(world, refused):
    world.control.add_faults(
        [
            {"operation": "CreateVcn", "status": 429, "code": "TooManyRequests", "message": "Slow down."},
            {"operation": "CreateVcn", "nth": 2, "kind": "duplicate"},
            {"operation": "ListVcns", "kind": "drop_before"},
            {"operation": "ListVcns", "kind": "drop_after", "nth": 2},
        ]
    )
    assert "Slow down." in refused(429, "TooManyRequests", world.vcn)
    world.vcn()
    for _ in range(2):
        with pytest.raises(oci.exceptions.RequestException):
            world.network.list_vcns(world.compartment)
    assert len(world.network.list_vcns(world.compartment).data) == 2
    calls = world.control.calls()["calls"]
    assert [(call["operation"], call["status"], call["code"]) for call in calls] == [
        ("CreateVcn", 429, "TooManyRequests"),
        ("CreateVcn", 200, None),
        ("ListVcns", None, "Dropped"),
        ("ListVcns", None, "Dropped"),
        ("ListVcns", 200, None),
    ]
    assert [call["mutating"] for call in calls] == [True, True, False, False, False]


def test_api_checks_its_own_answers_against_the_models(world, refused):
    vcn = world.vcn()
    world.cloud.change(world.cloud.get("vcn", vcn.id), colour="red")
    assert "colour is not a field of Vcn" in refused(500, "FakeIsWrong", world.network.get_vcn, vcn.id)


def test_sdk_retries_send_a_retry_token(world):
    """Without one, its second attempt would make a second VCN."""
    strategy = oci.retry.RetryStrategyBuilder(
        max_attempts=2, retry_base_sleep_time_seconds=0.01, service_error_retry_on_any_5xx=True
    ).get_retry_strategy()
    client = world.client(oci.core.VirtualNetworkClient, retry_strategy=strategy)
    world.control.add_faults([{"operation": "CreateVcn", "kind": "drop_after"}])
    details = CreateVcnDetails(compartment_id=world.compartment, cidr_block="10.0.0.0/16")
    client.create_vcn(details)
    assert len(world.network.list_vcns(world.compartment).data) == 1


def test_routed_operations_all_have_sdk_models(world):
    names = [
        (operation.service, name.removeprefix("list[").rstrip("]"))
        for entries in _table().values()
        for operation, _ in entries
        for name in (operation.body, operation.response)
        if name and name not in ("bytes", "stream")
    ]
    assert len(names) > 100
    for service, name in names:
        assert model(service, name).fields, name


def test_page_token_of_another_operation_is_refused(world, refused):
    token = base64.urlsafe_b64encode(json.dumps(["ListSubnets", "", 1]).encode()).decode()
    result = refused(400, "InvalidParameter", world.network.list_vcns, world.compartment, page=token)
    assert "ListSubnets" in result
