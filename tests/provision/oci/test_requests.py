"""The bodies that are sent to OCI, word for word, and against the SDK's own model classes."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from provision.oci import preview, requests
from provision.oci.infrastructure import security_group
from provision.oci.infrastructure.network import all_services, mended_routes
from provision.records import (
    CloudCluster,
    Infrastructure,
    NewMachine,
    Offer,
    Preview,
    Resource,
    Target,
    Terms,
    Zone,
)
from tests.fakes.oci.models import check

COMPARTMENT = "ocid1.compartment.oc1..c"
CLUSTER = CloudCluster(
    name="demo",
    id="0123456789abcdef",
    owner="ann@desk",
    created_at="2026-11-21T08:00:00+00:00",
    target=Target(provider="oci", region="eu-frankfurt-1", compartment=COMPARTMENT),
    shape="VM.GPU.A10.2",
    ssh_cidrs=("203.0.113.7/32",),
)
ZONE = Zone(name="Uocm:EU-FRANKFURT-1-AD-1")
OFFER = Offer(
    shape="VM.GPU.A10.2",
    gpus=2,
    image_id="ocid1.image.oc1..i",
    image_name="Canonical-Ubuntu-24.04-2026.06.26-0",
    user="ubuntu",
    disk_gb=200,
    zones=(ZONE,),
    hourly_usd=4.0,
    facts={"encrypts_in_transit": True, "compute_cluster": False, "shape_config": None, "listing": None},
)
GROUND = Infrastructure(ids={"vcn": "v", "subnet": "s", "nsg": "n", "public_key": "ssh-ed25519 AAAA"})
MACHINE = NewMachine(name="demo-3", rank=3, user_data="#cloud-config\n")

OWN = {"gpuctl": "demo", "gpuctl-cluster-id": "0123456789abcdef", "gpuctl-owner": "ann@desk"}
SHARED = {"gpuctl": "@network", "gpuctl-owner": "ann@desk"}


def launch(
    cluster: CloudCluster = CLUSTER,
    offer: Offer = OFFER,
    infrastructure: Infrastructure = GROUND,
    zone: Zone = ZONE,
) -> dict[str, Any]:
    request = requests.launch(cluster, offer, infrastructure, zone, "f" * 32, MACHINE)
    json.dumps(request)
    check("core", request["details"], "LaunchInstanceDetails")
    return request


def test_launch_request_is_exact() -> None:
    of = {**OWN, "gpuctl-launch": "f" * 32, "gpuctl-ranks": "3"}
    assert launch() == {
        "token": "f" * 32 + "-3",
        "details": {
            "compartmentId": COMPARTMENT,
            "availabilityDomain": "Uocm:EU-FRANKFURT-1-AD-1",
            "displayName": "demo-3",
            "shape": "VM.GPU.A10.2",
            "freeformTags": of,
            "sourceDetails": {
                "sourceType": "image",
                "imageId": "ocid1.image.oc1..i",
                "bootVolumeSizeInGBs": 200,
            },
            "createVnicDetails": {
                "subnetId": "s",
                "nsgIds": ["n"],
                "assignPublicIp": True,
                "displayName": "demo-3",
                "freeformTags": of,
            },
            "metadata": {
                "ssh_authorized_keys": "ssh-ed25519 AAAA",
                "user_data": base64.b64encode(b"#cloud-config\n").decode(),
            },
            "instanceOptions": {"areLegacyImdsEndpointsDisabled": True},
            "isPvEncryptionInTransitEnabled": True,
        },
    }


def test_launch_request_of_a_private_spot_machine_is_preemptible() -> None:
    cluster = replace(
        CLUSTER, spot=True, public_ip=False, image="Ubuntu", expires_at="2026-11-21T12:00:00+00:00"
    )
    details = launch(cluster, zone=replace(ZONE, fault_domain="FAULT-DOMAIN-2"))["details"]
    assert details["preemptibleInstanceConfig"] == {
        "preemptionAction": {"type": "TERMINATE", "preserveBootVolume": False}
    }
    assert details["faultDomain"] == "FAULT-DOMAIN-2"
    assert details["createVnicDetails"]["assignPublicIp"] is False
    assert details["freeformTags"]["gpuctl-image"] == "Ubuntu"
    assert details["freeformTags"]["gpuctl-expires"] == "2026-11-21T12:00:00+00:00"
    assert len(details["freeformTags"]) <= 10  # values that OCI accepts


def test_launch_request_on_rdma_enables_the_agent_plugins() -> None:
    infrastructure = Infrastructure(ids={**GROUND.ids, "compute_cluster": "c"})
    offer = replace(OFFER, shape="BM.GPU4.8", facts={"encrypts_in_transit": False})
    details = launch(replace(CLUSTER, shape="BM.GPU4.8"), offer, infrastructure)["details"]
    assert details["computeClusterId"] == "c"
    assert details["agentConfig"] == {
        "pluginsConfig": [
            {"name": "Compute HPC RDMA Authentication", "desiredState": "ENABLED"},
            {"name": "Compute HPC RDMA Auto-Configuration", "desiredState": "ENABLED"},
        ]
    }
    assert "isPvEncryptionInTransitEnabled" not in details


def test_launch_request_of_a_flexible_shape_has_its_size() -> None:
    facts = {"shape_config": {"ocpus": 2.0, "memoryInGBs": 32.0}}
    details = launch(replace(CLUSTER, shape="VM.Standard.E4.Flex"), replace(OFFER, facts=facts))["details"]
    assert details["shapeConfig"] == {"ocpus": 2.0, "memoryInGBs": 32.0}


def test_network_requests_match_sdk_models_and_are_tagged() -> None:
    private = replace(CLUSTER, public_ip=False)
    routes = requests.private_routes("nat", "sgw", "all-fra-services-in-oracle-services-network")
    bodies = {
        "CreateVcnDetails": requests.vcn(CLUSTER),
        "CreateInternetGatewayDetails": requests.internet_gateway(CLUSTER, "v"),
        "CreateNatGatewayDetails": requests.nat_gateway(CLUSTER, "v"),
        "CreateServiceGatewayDetails": requests.service_gateway(CLUSTER, "v", "svc"),
        "CreateRouteTableDetails": requests.route_table(private, "v", routes),
        "CreateSecurityListDetails": requests.security_list(CLUSTER, "v"),
        "CreateSubnetDetails": requests.subnet(private, "v", "rt", "sl"),
    }
    for model, body in bodies.items():
        check("core", body, model)
        assert body["freeformTags"] == SHARED
        assert body["compartmentId"] == COMPARTMENT
    check("core", requests.nsg(CLUSTER, "v"), "CreateNetworkSecurityGroupDetails")
    check("core", requests.compute_cluster(CLUSTER, ZONE.name), "CreateComputeClusterDetails")
    check("core", requests.capacity_report(COMPARTMENT, ZONE.name, "S"), "CreateComputeCapacityReportDetails")
    assert requests.nsg(CLUSTER, "v")["freeformTags"] == OWN


@pytest.mark.parametrize(("cidr", "private"), [("10.78.0.0/17", False), ("10.78.128.0/17", True)])
def test_subnet_request_has_cidr_and_public_ip_rule_of_its_kind(cidr: str, private: bool) -> None:
    body = requests.subnet(replace(CLUSTER, public_ip=not private), "v", "rt", "sl")
    assert body["cidrBlock"] == cidr
    assert body["prohibitPublicIpOnVnic"] is private
    assert body["securityListIds"] == ["sl"]
    assert "availabilityDomain" not in body  # regional


def test_security_list_lets_in_nothing_but_path_mtu_discovery() -> None:
    body = requests.security_list(CLUSTER, "v")
    (ingress,) = body["ingressSecurityRules"]
    assert (ingress["protocol"], ingress["icmpOptions"]) == ("1", {"type": 3, "code": 4})


def test_nsg_rules_allow_ssh_peers_and_egress() -> None:
    expected = requests.nsg_rules("n", ["203.0.113.7/32"], 2222)
    check("core", {"securityRules": expected}, "AddNetworkSecurityGroupSecurityRulesDetails")
    assert [(rule["direction"], rule["protocol"]) for rule in expected] == [
        ("INGRESS", "6"),
        ("INGRESS", "all"),
        ("EGRESS", "all"),
    ]
    assert expected[0]["source"] == "203.0.113.7/32"
    assert expected[0]["tcpOptions"] == {"destinationPortRange": {"min": 2222, "max": 2222}}
    assert (expected[1]["source"], expected[1]["sourceType"]) == ("n", "NETWORK_SECURITY_GROUP")
    assert expected[2]["destination"] == "0.0.0.0/0"


def shown(rule: dict[str, Any], identifier: str) -> dict[str, Any]:
    """Return a rule as the service lists it, with the default fields."""
    full: dict[str, Any] = {
        "udpOptions": None,
        "icmpOptions": None,
        "id": identifier,
        "isValid": True,
        **rule,
    }
    if "tcpOptions" in rule:
        full["tcpOptions"] = {**rule["tcpOptions"], "sourcePortRange": None}
    return full


def test_rule_changes_leave_existing_rules_alone() -> None:
    expected = requests.nsg_rules("n", ["203.0.113.7/32"], 22)
    result = [shown(rule, str(at)) for at, rule in enumerate(expected)]
    del result[2]["destinationType"]  # CIDR_BLOCK is the default
    assert security_group.changes(expected, result) == ([], [])


def test_rule_changes_add_missing_and_remove_stale_rules() -> None:
    expected = requests.nsg_rules("n", ["203.0.113.7/32"], 22)
    old = requests.nsg_rules("n", ["198.51.100.1/32"], 22)
    result = [shown(rule, str(at)) for at, rule in enumerate([*old, old[2]])]
    result[1]["isValid"] = False
    add, remove = security_group.changes(expected, result)
    assert [rule.get("source") for rule in add] == ["203.0.113.7/32", "n"]
    assert remove == ["0", "1", "3"]  # the other source, the invalid source, the duplicate


def test_mended_routes_replaces_stale_and_keeps_foreign_routes() -> None:
    expected = requests.public_routes("igw")
    theirs = {"destination": "192.0.2.0/24", "networkEntityId": "drg", "destinationType": "CIDR_BLOCK"}
    right = {**expected[0], "cidrBlock": "0.0.0.0/0", "routeType": "STATIC"}
    assert mended_routes([right, theirs], expected) is None
    stale = {**right, "networkEntityId": "gone"}
    assert mended_routes([stale, {**theirs, "cidrBlock": "192.0.2.0/24"}], expected) == [theirs, *expected]


def test_all_services_picks_the_entry_for_all_services() -> None:
    some, every = {"cidrBlock": "oci-fra-objectstorage"}, {"cidrBlock": "all-fra-services-in-osn"}
    assert all_services([some, every]) is every


def operations(found: Preview) -> list[str]:
    return [request.operation for request in found.requests]


def test_preview_shows_the_real_requests() -> None:
    report = preview.preview(CLUSTER, OFFER, [MACHINE, MACHINE], ())
    assert operations(report) == [
        "CreateVcn",
        "CreateInternetGateway",
        "CreateSecurityList",
        "CreateRouteTable",
        "CreateSubnet",
        "CreateNetworkSecurityGroup",
        "AddNetworkSecurityGroupSecurityRules",
        "LaunchInstance",
        "LaunchInstance",
    ]
    body = report.requests[-1].body
    assert body["metadata"] == {"ssh_authorized_keys": "<public key>", "user_data": "<user data>"}
    assert body["freeformTags"]["gpuctl-launch"] == "<launch>"
    real = launch()["details"]
    assert set(body) == set(real)


def test_preview_of_a_private_rdma_cluster_lists_all_requests() -> None:
    cluster = replace(CLUSTER, public_ip=False)
    terms = Terms(name="an image", links=("https://example.com/terms",))
    facts = {"compute_cluster": True, "listing": ["ocid1.listing", "1.2"]}
    offer = replace(OFFER, terms=terms, facts=facts)
    report = operations(preview.preview(cluster, offer, [MACHINE], ()))
    assert report[0] == "CreateAppCatalogSubscription"
    assert {"CreateNatGateway", "CreateServiceGateway", "CreateComputeCluster"} <= set(report)
    inputs = replace(cluster, subnet_id="ocid1.subnet")
    with_subnet = preview.preview(inputs, OFFER, [MACHINE], ())
    assert not {"CreateVcn", "CreateSubnet"} & set(operations(with_subnet))
    assert with_subnet.requests[-1].body["createVnicDetails"]["subnetId"] == "ocid1.subnet"
    assert (with_subnet.resources[0].action, with_subnet.resources[0].id) == ("use", "ocid1.subnet")


def a_part(kind: str, name: str, of: dict[str, str], *, deleting: bool = False) -> Resource:
    return Resource(kind=kind, id=f"{kind} {name}", name=name, tags=of, stage=0, deleting=deleting)


def test_preview_uses_existing_resources() -> None:
    shared = [
        ("vcn", "gpuctl"),
        ("internet-gateway", "gpuctl internet"),
        ("security-list", "gpuctl"),
        ("route-table", "gpuctl public"),
        ("subnet", "gpuctl public"),
    ]
    resources = [a_part(kind, name, SHARED) for kind, name in shared]
    local = [*resources, a_part("nsg", "gpuctl demo", OWN)]
    report = preview.preview(CLUSTER, OFFER, [MACHINE], local, CLUSTER.ssh_cidrs)
    assert operations(report) == ["LaunchInstance"]
    assert [(item.action, item.id) for item in report.resources] == [
        ("use", resource.id) for resource in local
    ]
    assert report.requests[0].body["createVnicDetails"]["subnetId"] == "subnet gpuctl public"
    rest = [*resources, a_part("nsg", "gpuctl demo", OWN | {"gpuctl-cluster-id": "f" * 16})]
    report = preview.preview(CLUSTER, OFFER, [MACHINE], rest)
    assert [item.kind for item in report.resources if item.action == "create"] == ["nsg"]
    private = preview.preview(replace(CLUSTER, public_ip=False), OFFER, [MACHINE], resources)
    assert [item.kind for item in private.resources if item.action == "create"] == [
        "nat-gateway",
        "service-gateway",
        "route-table",
        "subnet",
        "nsg",
    ]
    missing = [a_part("vcn", "gpuctl", SHARED, deleting=True)]
    assert operations(preview.preview(CLUSTER, OFFER, [MACHINE], missing))[0] == "CreateVcn"


def test_preview_with_another_ssh_cidr_changes_only_the_rules() -> None:
    resources = [a_part("nsg", "gpuctl demo", OWN)]
    inputs = replace(CLUSTER, subnet_id="ocid1.subnet")
    add, remove = preview.preview(inputs, OFFER, (), resources, ("198.51.100.9/32",)).requests
    assert add.operation == "AddNetworkSecurityGroupSecurityRules"
    assert [rule["source"] for rule in add.body["securityRules"]] == ["203.0.113.7/32"]
    assert dict(remove.body) == {"securityRuleIds": ["<SSH from 198.51.100.9/32>"]}


def test_subscription_request_copies_the_agreements() -> None:
    agreements = {
        "listingId": "l",
        "listingResourceVersion": "1",
        "oracleTermsOfUseLink": "https://a",
        "eulaLink": None,
        "timeRetrieved": "2026-11-21T08:00:00.000Z",
        "signature": "s",
    }
    body = requests.subscription(COMPARTMENT, agreements)
    check("core", body, "CreateAppCatalogSubscriptionDetails")
    assert "eulaLink" not in body
