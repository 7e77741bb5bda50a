"""Machines through the SDK: launches and their failures, capacity and limits, volumes, images, clusters."""

import base64
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


def test_capacity_report_gives_availability_per_shape(world, subnet, refused):
    world.settings(capacity={"VM.GPU.A10.1": {AD: 1, f"{AD}/FAULT-DOMAIN-2": 0}})

    def report(*shapes):
        details = models.CreateComputeCapacityReportDetails(
            compartment_id=world.cloud.account.tenancy,
            availability_domain=AD,
            shape_availabilities=[
                models.CreateCapacityReportShapeAvailabilityDetails(instance_shape=name, fault_domain=fault)
                for name, fault in shapes
            ],
        )
        result = world.compute.create_compute_capacity_report(details).data.shape_availabilities
        return [(item.availability_status, item.available_count) for item in result]

    requests = [("VM.GPU.A10.1", None), ("VM.GPU.A10.1", "FAULT-DOMAIN-2"), (H100, None), ("VM.X", None)]
    assert report(*requests) == [
        ("AVAILABLE", 1),
        ("OUT_OF_HOST_CAPACITY", 0),
        ("AVAILABLE", 16),
        ("HARDWARE_NOT_SUPPORTED", 0),
    ]
    world.launch(subnet)
    assert report(requests[0]) == [("OUT_OF_HOST_CAPACITY", 0)]
    refused(400, "InvalidParameter", report, *[(H100, None)] * 11)


def test_launch_refuses_to_exceed_service_limits(world, subnet, refused):
    world.settings(quota={"VM.GPU.A10.1": 1}, capacity={"*": {AD: 1}})
    world.launch(subnet)
    result = refused(400, "LimitExceeded", world.launch, subnet)
    assert "limits were exceeded: gpu-a10-count. Request a service limit increase" in result
    refused(400, "LimitExceeded", world.launch, subnet, availability_domain=DOMAINS[2])


def test_late_failure_setting_fails_the_work_request(world, subnet, refused):
    world.settings(late_failure={AD: "Host failed to boot."})
    response = world.launch(subnet, token="t")
    work = response.headers["opc-work-request-id"]
    world.until(lambda: world.works.get_work_request(work).data, "FAILED")
    errors = every(world.works.list_work_request_errors, work).data
    assert [(error.code, error.message) for error in errors] == [("InternalError", "Host failed to boot.")]
    assert world.compute.get_instance(response.data.id).data.lifecycle_state == "TERMINATED"
    refused(409, "InvalidatedRetryToken", world.launch, subnet, token="t")
    assert world.launch(subnet, availability_domain=DOMAINS[1]).data.lifecycle_state == "PROVISIONING"
    world.until_gone(lambda: world.storage.get_boot_volume(_volume(world, response.data.id)))


def _volume(world, instance):
    attachments = every(
        world.compute.list_boot_volume_attachments, AD, world.compartment, instance_id=instance
    ).data
    return attachments[0].boot_volume_id


def test_terminate_during_launch_fails_the_work_request(world, subnet):
    world.settings(launch_s=1)
    response = world.launch(subnet)
    world.compute.terminate_instance(response.data.id)
    world.until(lambda: world.compute.get_instance(response.data.id).data, "TERMINATED")
    work = response.headers["opc-work-request-id"]
    world.until(lambda: world.works.get_work_request(work).data, "FAILED")
    assert world.compute.get_instance(response.data.id).data.lifecycle_state == "TERMINATED"


def test_boot_volume_is_deleted_or_preserved_on_termination(world, subnet, refused):
    goes, remains = world.running(subnet), world.running(subnet, boot_gb=200)
    missing, saved = _volume(world, goes.id), _volume(world, remains.id)
    assert world.storage.get_boot_volume(saved).data.size_in_gbs == 200
    assert remains.id in refused(409, "IncorrectState", world.storage.delete_boot_volume, saved)
    world.compute.terminate_instance(goes.id, preserve_boot_volume=False)
    world.compute.terminate_instance(remains.id, preserve_boot_volume=True)
    world.until_gone(lambda: world.storage.get_boot_volume(missing))
    world.until(lambda: world.compute.get_instance(remains.id).data, "TERMINATED")
    volumes = every(
        world.storage.list_boot_volumes, compartment_id=world.compartment, availability_domain=AD
    ).data
    assert [volume.id for volume in volumes] == [saved]
    source = models.InstanceSourceViaBootVolumeDetails(boot_volume_id=saved)
    again = world.running(subnet, source_details=source)
    assert (_volume(world, again.id), again.image_id) == (saved, remains.image_id)
    refused(409, "IncorrectState", world.launch, subnet, source_details=source)
    world.compute.terminate_instance(again.id, preserve_boot_volume=True)
    world.until(lambda: world.compute.get_instance(again.id).data, "TERMINATED")
    world.storage.delete_boot_volume(saved)
    world.until_gone(lambda: world.storage.get_boot_volume(saved))


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


def test_update_instance_changes_tags_but_not_user_data(world, subnet, refused):
    data = base64.b64encode(b"#cloud-config\n").decode()
    instance = world.running(subnet, metadata={"user_data": data, "ssh_authorized_keys": "k"})
    update = world.compute.update_instance
    changed = update(
        instance.id,
        models.UpdateInstanceDetails(display_name="new", freeform_tags={"a": "b"}),
    ).data
    assert (changed.display_name, changed.freeform_tags) == ("new", {"a": "b"})
    assert changed.metadata == instance.metadata == {"user_data": data, "ssh_authorized_keys": "k"}
    wrong = models.UpdateInstanceDetails(metadata={"user_data": ""})
    assert "can't be changed" in refused(400, "InvalidParameter", update, instance.id, wrong)


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


def test_launch_accepts_spot_encryption_and_flexible_shapes(world, subnet):
    virtual = world.launch(
        subnet,
        preemptible_instance_config=SPOT,
        instance_options=models.InstanceOptions(are_legacy_imds_endpoints_disabled=True),
        launch_options=models.LaunchOptions(is_pv_encryption_in_transit_enabled=True),
        is_pv_encryption_in_transit_enabled=True,
    ).data
    assert virtual.instance_options.are_legacy_imds_endpoints_disabled
    assert virtual.preemptible_instance_config.preemption_action.type == "TERMINATE"
    config = models.LaunchInstanceShapeConfigDetails(ocpus=4, memory_in_gbs=32)
    flexible = world.launch(subnet, shape="VM.Standard.E4.Flex", shape_config=config).data
    assert (flexible.shape_config.ocpus, flexible.shape_config.memory_in_gbs) == (4, 32)


def test_compute_cluster_takes_rdma_shapes_and_blocks_deletion(world, subnet, refused):
    details = models.CreateComputeClusterDetails(
        compartment_id=world.compartment, availability_domain=AD, freeform_tags={"gpuctl": "1"}
    )
    cluster = world.compute.create_compute_cluster(details).data
    assert cluster.lifecycle_state == "ACTIVE"
    assert [item.id for item in world.compute.list_compute_clusters(world.compartment).data.items] == [
        cluster.id
    ]
    inside = {"compute_cluster_id": cluster.id}
    assert "no RDMA" in refused(400, "InvalidParameter", world.launch, subnet, **inside)
    refused(
        400,
        "InvalidParameter",
        world.launch,
        subnet,
        shape=H100,
        availability_domain=DOMAINS[1],
        **inside,
    )
    plugins = [
        models.InstanceAgentPluginConfigDetails(name=f"Compute HPC RDMA {name}", desired_state="ENABLED")
        for name in ("Authentication", "Auto-Configuration")
    ]
    agent = models.LaunchInstanceAgentConfigDetails(plugins_config=plugins)
    instance = world.running(subnet, shape=H100, agent_config=agent, **inside)
    assert instance.agent_config.plugins_config[0].name == "Compute HPC RDMA Authentication"
    world.running(subnet, shape=H100)
    listed = every(world.compute.list_instances, world.compartment, compute_cluster_id=cluster.id).data
    assert [item.id for item in listed] == [instance.id]
    assert instance.id in refused(409, "Conflict", world.compute.delete_compute_cluster, cluster.id)
    world.compute.terminate_instance(instance.id)
    world.until(lambda: world.compute.get_instance(instance.id).data, "TERMINATED")
    world.compute.delete_compute_cluster(cluster.id)
    world.until_gone(lambda: world.compute.get_compute_cluster(cluster.id))


def test_console_history_is_captured_read_and_deleted(world, subnet, refused):
    instance = world.running(subnet, display_name="node-0")
    details = models.CaptureConsoleHistoryDetails(instance_id=instance.id)
    history = world.compute.capture_console_history(details).data
    world.until(lambda: world.compute.get_console_history(history.id).data, "SUCCEEDED")
    whole = world.compute.get_console_history_content(history.id, length=100_000).data
    assert b"node-0 login" in whole
    part = world.compute.get_console_history_content(history.id, offset=3, length=4)
    assert part.data == whole[3:7]
    assert int(part.headers["opc-bytes-remaining"]) == len(whole) - 7
    world.compute.delete_console_history(history.id)
    refused(404, "NotAuthorizedOrNotFound", world.compute.get_console_history, history.id)


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
