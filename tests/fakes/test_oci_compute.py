"""Machines through the SDK: launches and their failures, capacity and limits, volumes, images, clusters."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from oci.core import models
from oci.pagination import list_call_get_all_results as every

from tests.fakes.oci.account import DOMAINS

pytest_plugins = ["tests.fakes.oci.fixtures"]
AD = DOMAINS[0]

H100 = "BM.GPU.H100.8"


@pytest.fixture
def subnet(world):
    return world.subnet(world.vcn())


def test_instance_goes_from_provisioning_to_terminated(world, subnet, refused):
    world.settings(launch_s=15, terminate_s=1)
    response = world.launch(
        subnet, freeform_tags={"gpuctl": "1", "gpuctl-cluster-id": "c"}, display_name="n0"
    )
    instance, work = response.data, response.headers["opc-work-request-id"]
    assert (instance.lifecycle_state, instance.fault_domain) == ("PROVISIONING", "FAULT-DOMAIN-1")
    assert world.works.get_work_request(work).data.status in ("ACCEPTED", "IN_PROGRESS")
    attachments = every(world.compute.list_vnic_attachments, world.compartment, instance_id=instance.id).data
    assert (attachments[0].lifecycle_state, attachments[0].vnic_id) == ("ATTACHING", None)
    running = world.until(lambda: world.compute.get_instance(instance.id).data, "RUNNING")
    assert running.freeform_tags == {"gpuctl": "1", "gpuctl-cluster-id": "c"}
    assert (running.shape_config.gpus, running.source_details.boot_volume_size_in_gbs) == (1, 50)
    done = world.works.get_work_request(work).data
    assert (done.status, done.percent_complete, done.resources[0].identifier) == (
        "SUCCEEDED",
        100,
        instance.id,
    )

    world.compute.terminate_instance(instance.id)
    refused(409, "IncorrectState", world.compute.terminate_instance, instance.id)
    assert world.control.state()["instances"][0]["state"] == "TERMINATING"
    world.until(lambda: world.compute.get_instance(instance.id).data, "TERMINATED")
    listed = every(world.compute.list_instances, world.compartment, display_name="n0").data
    assert [item.lifecycle_state for item in listed] == ["TERMINATED"]
    refused(404, "NotAuthorizedOrNotFound", world.compute.terminate_instance, instance.id)
    alive = every(world.compute.list_instances, world.compartment, lifecycle_state="RUNNING").data
    assert alive == []
    state = world.control.state()
    assert (state["most_instances"], state["most_by_cluster"]) == (1, {"c": 1})
    entry = state["instances"][0]
    assert (entry["shape"], entry["place"], entry["token"]) == ("VM.GPU.A10.1", f"{AD}/FAULT-DOMAIN-1", None)
    assert 0 <= entry["launched_at"] < entry["ended_at"]
    about = every(world.works.list_work_requests, world.compartment, resource_id=instance.id).data
    assert [work.operation_type for work in about] == ["LaunchInstance", "TerminateInstance"]


def test_launch_respects_capacity_of_domain_and_fault_domain(world, subnet, refused):
    world.settings(
        capacity={"VM.GPU.A10.1": {AD: 2, f"{AD}/FAULT-DOMAIN-1": 0, f"{AD}/FAULT-DOMAIN-2": 1}}, launch_s=1
    )
    result = refused(500, "InternalError", world.launch, subnet, fault_domain="FAULT-DOMAIN-1")
    assert "Out of host capacity." in result
    first = world.launch(subnet, fault_domain="FAULT-DOMAIN-2").data
    refused(500, "InternalError", world.launch, subnet, fault_domain="FAULT-DOMAIN-2")
    assert world.launch(subnet).data.fault_domain == "FAULT-DOMAIN-3"
    refused(500, "InternalError", world.launch, subnet, fault_domain="FAULT-DOMAIN-3")
    assert world.launch(subnet, availability_domain=DOMAINS[1]).data.availability_domain == DOMAINS[1]
    world.compute.terminate_instance(first.id)
    refused(500, "InternalError", world.launch, subnet)
    world.until(lambda: world.compute.get_instance(first.id).data, "TERMINATED")
    world.launch(subnet)


def test_terminate_during_launch_fails_the_work_request(world, subnet):
    world.settings(launch_s=1)
    response = world.launch(subnet)
    world.compute.terminate_instance(response.data.id)
    world.until(lambda: world.compute.get_instance(response.data.id).data, "TERMINATED")
    work = response.headers["opc-work-request-id"]
    world.until(lambda: world.works.get_work_request(work).data, "FAILED")
    assert world.compute.get_instance(response.data.id).data.lifecycle_state == "TERMINATED"


def test_instance_action_stops_starts_and_resets(world, subnet, refused):
    instance = world.running(subnet)
    act = world.compute.instance_action
    world.settings(launch_s=10, terminate_s=10)  # long enough to be seen on the way

    def get():
        return world.compute.get_instance(instance.id).data

    assert act(instance.id, "STOP").data.lifecycle_state == "STOPPING"
    refused(409, "IncorrectState", act, instance.id, "START")
    world.until(get, "STOPPED")
    assert act(instance.id, "START").data.lifecycle_state == "STARTING"
    world.until(get, "RUNNING")
    act(instance.id, "SOFTRESET")
    world.until(get, "STARTING")
    world.until(get, "RUNNING")
    refused(400, "InvalidParameter", act, instance.id, "EXPLODE")


SPOT = models.PreemptibleInstanceConfigDetails(
    preemption_action=models.TerminatePreemptionAction(preserve_boot_volume=False)
)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"shape": None}, "MissingParameter", "shape is required"),
        ({"shape": "VM.GPU.A11.1"}, "NotAuthorizedOrNotFound", "shape VM.GPU.A11.1 not found"),
        ({"shape": "BM.GPU.GB300.4"}, "NotAuthorizedOrNotFound", "shape BM.GPU.GB300.4 not found"),
        ({"shape": "VM.Standard.E4.Flex"}, "InvalidParameter", "without ShapeConfig"),
        ({"availability_domain": "AD-1"}, "InvalidParameter", "availabilityDomain"),
        ({"fault_domain": "FD-1"}, "InvalidParameter", "faultDomain"),
        ({"image": "ocid1.image.x"}, "NotAuthorizedOrNotFound", "not found"),
        (
            {"image": "Canonical-Ubuntu-22.04-aarch64-2026.06.27-0"},
            "InvalidParameter",
            "is not valid for image",
        ),
        ({"boot_gb": 40}, "InvalidParameter", "bootVolumeSizeInGBs must be between 50"),
        ({"metadata": {"user_data": "#cloud-config"}}, "InvalidParameter", "user_data is not in base64"),
        ({"metadata": {"big": "x" * 32_000}}, "InvalidParameter", "more than 32000 bytes"),
        ({"create_vnic_details": None}, "MissingParameter", "subnetId is required"),
        ({"vnic": {"private_ip": "10.0.1.1"}}, "InvalidParameter", "10.0.1.1 is no address"),
        ({"vnic": {"private_ip": "10.0.2.2"}}, "InvalidParameter", "10.0.2.2 is no address"),
        ({"vnic": {"hostname_label": "a"}}, "InvalidParameter", "has no dnsLabel"),
        ({"vnic": {"nsg_ids": ["ocid1.nsg"]}}, "NotAuthorizedOrNotFound", "not found"),
        (
            {"shape": "BM.GPU.A10.4", "is_pv_encryption_in_transit_enabled": True},
            "InvalidParameter",
            "bare metal",
        ),
        ({"shape": "BM.GPU.A10.4", "preemptible_instance_config": SPOT}, "InvalidParameter", "preemptible"),
        ({"compartment_id": "ocid1.compartment.x"}, "NotAuthorizedOrNotFound", "not found"),
    ],
)
def test_launch_refuses_invalid_requests(world, subnet, refused, fields, code, words):
    if str(fields.get("image")).startswith("Canonical"):
        fields = {"image": world.image(fields["image"])}
    status = 404 if code == "NotAuthorizedOrNotFound" else 400
    assert words in refused(status, code, world.launch, subnet, **fields)
    assert world.control.state()["instances"] == []
    assert [entry for entry in world.control.state()["resources"] if entry["kind"] == "vnic"] == []


def test_parallel_launches_respect_token_and_capacity(world, subnet):
    """A token makes one machine, and capacity is not exceeded, however many ask at the same time."""
    world.settings(capacity={"VM.GPU.A10.1": {AD: 4}}, launch_s=60)
    details = world.compute.base_client.sanitize_for_serialization(world.details(subnet))

    def launch(token):
        return world.raw("POST", "/20160918/instances", json=details, headers={"opc-retry-token": token})

    with ThreadPoolExecutor(24) as pool:
        same = list(pool.map(launch, ["same"] * 12))
        rest = list(pool.map(launch, [f"other-{n}" for n in range(12)]))
    assert len({answer.json()["id"] for answer in same}) == 1
    assert sorted(answer.status_code for answer in rest) == [200] * 3 + [500] * 9
    assert world.control.state()["most_instances"] == 4
