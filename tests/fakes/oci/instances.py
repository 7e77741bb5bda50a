"""Instances: how they are launched, started, stopped and ended, with their VNIC and their boot volume."""

import threading
import time
from typing import Any

from tests.fakes.oci import works
from tests.fakes.oci.api import Handler, Reply, Request, View, page, shown
from tests.fakes.oci.capacity import check_quota, choose_fault_domain
from tests.fakes.oci.common import getter, given, lister, named
from tests.fakes.oci.errors import incorrect_state, invalid, not_found
from tests.fakes.oci.images import IMAGES, MIN_BOOT_VOLUME_GB, ORACLE, Image
from tests.fakes.oci.launch import check_launch, check_metadata, user_data
from tests.fakes.oci.shapes import Shape
from tests.fakes.oci.store import ENDED, Cloud, HostsLike, Resource
from tests.fakes.oci.timers import Action
from tests.fakes.oci.vnics import add_vnic, check_vnic, remove_vnic

CLUSTER_TAG = "gpuctl-cluster-id"

_KEPT = ("metadata", "extendedMetadata", "launchOptions", "instanceOptions", "preemptibleInstanceConfig")


def launch(cloud: Cloud, request: Request) -> Reply:
    """LaunchInstance: accepted at once; the work request reports the result."""
    instance, work = _launch(cloud, request.body, request.headers.get("opc-retry-token"))
    return shown(instance, made=True, **{"opc-work-request-id": work.id})


def launch_node(cloud: Cloud, body: View) -> Resource:
    """Launch a machine on behalf of a service. Raises ApiError."""
    return _launch(cloud, body, None)[0]


def _launch(cloud: Cloud, body: View, token: str | None) -> tuple[Resource, Resource]:
    """Launch a machine; return it and its work request."""
    shape, image, volume = check_launch(cloud, body)
    domain = body["availabilityDomain"]
    subnet = check_vnic(cloud, body, domain)
    check_quota(cloud, shape, domain)
    fault = choose_fault_domain(cloud, shape, domain, body.get("faultDomain"))
    address = cloud.hosts.address() if cloud.hosts else None
    instance = cloud.add(
        "instance",
        {
            **named(body, "instance", len(cloud.all("instance")) + 1),
            **{name: body.get(name) for name in _KEPT},
            "availabilityDomain": domain,
            "faultDomain": fault,
            "region": cloud.account.region,
            "shape": shape.name,
            "shapeConfig": _shape_config(shape, body.get("shapeConfig") or {}),
            "imageId": image.id if image else volume and volume.view.get("imageId"),
            "launchMode": "PARAVIRTUALIZED",
            "isCrossNumaNode": False,
            "agentConfig": _agent_config(body),
            "availabilityConfig": {"recoveryAction": "RESTORE_INSTANCE"},
        },
        state="PROVISIONING",
        own={
            "token": token,
            "cluster": body.get("computeClusterId"),
            "address": address,
            "launched_at": time.time(),
            "ended_at": None,
        },
    )
    volume = volume or _add_volume(cloud, instance, image, body)
    cloud.change(instance, sourceDetails=_source(volume, image, body))
    _attach(cloud, instance, volume)
    vnic = add_vnic(cloud, instance, subnet, body, address)
    attachment = cloud.add(
        "vnicattachment",
        {**_place(instance), "instanceId": instance.id, "subnetId": subnet.id, "nicIndex": 0},
        state="ATTACHING",
    )
    instance.own |= {"vnic": vnic, "vnic_attachment": attachment, "volume": volume}
    cloud.control.launched(instance.id, instance.view["freeformTags"].get(CLUSTER_TAG))
    work = works.start(cloud, "LaunchInstance", instance, "CREATED")
    _schedule(cloud, instance, work)
    return instance, work


def _schedule(cloud: Cloud, instance: Resource, work: Resource) -> None:
    failure = cloud.settings.late_failure_at(instance.view["availabilityDomain"])

    def attach() -> None:
        if instance.state == "PROVISIONING":
            vnic, attachment = instance.own["vnic"], instance.own["vnic_attachment"]
            works.go(cloud, work)
            cloud.become(vnic, "AVAILABLE")
            cloud.change(attachment, lifecycleState="ATTACHED", vnicId=vnic.id)

    def finish() -> None:
        if instance.state != "PROVISIONING":
            works.fail(cloud, work, "IncorrectState", f"Instance {instance.id} was terminated.")
        elif failure is not None:
            works.fail(cloud, work, "InternalError", failure)
            _end(cloud, instance, preserve=False)
        else:
            works.done(cloud, work)
            _run(cloud, instance)

    cloud.later(cloud.settings.launch_s / 2, attach)
    cloud.later(cloud.settings.launch_s, finish)


def _run(cloud: Cloud, instance: Resource) -> None:
    cloud.become(instance, "RUNNING")
    if not cloud.hosts:
        return
    metadata = instance.view.get("metadata", {})
    image = IMAGES.get(instance.view.get("imageId", ""))
    cloud.hosts.start(
        instance.id,
        instance.own["address"],
        user_data(metadata),
        name=instance.view["displayName"],
        image=image.name if image else "",
        authorized_keys=[key for key in metadata.get("ssh_authorized_keys", "").splitlines() if key.strip()],
        image_user="opc" if image and image.system == ORACLE else "ubuntu",
    )


def _shape_config(shape: Shape, asked: View) -> View:
    ocpus = asked.get("ocpus") or shape.ocpus
    memory = asked.get("memoryInGBs") or (16.0 * ocpus if shape.flexible else shape.memory_gb)
    return {**shape.numbers, "ocpus": float(ocpus), "memoryInGBs": float(memory), "vcpus": int(2 * ocpus)}


def _agent_config(body: View) -> View:
    request = body.get("agentConfig") or {}
    return {
        "isMonitoringDisabled": False,
        "isManagementDisabled": False,
        "areAllPluginsDisabled": False,
    } | given(request)


def _place(instance: Resource) -> View:
    return {
        "availabilityDomain": instance.view["availabilityDomain"],
        "compartmentId": instance.view["compartmentId"],
        "displayName": instance.view["displayName"],
    }


def _source(volume: Resource, image: Image | None, body: View) -> View:
    if image is None:
        return {"sourceType": "bootVolume", "bootVolumeId": volume.id}
    request = given(body.get("sourceDetails") or {})
    size = volume.view["sizeInGBs"]
    return {**request, "sourceType": "image", "imageId": image.id, "bootVolumeSizeInGBs": size}


def _add_volume(cloud: Cloud, instance: Resource, image: Image | None, body: View) -> Resource:
    assert image, "a launch has an image or a boot volume"
    request = body.get("sourceDetails") or {}
    size = request.get("bootVolumeSizeInGBs") or max(image.size_gb, MIN_BOOT_VOLUME_GB)
    return cloud.add(
        "bootvolume",
        {
            **_place(instance),
            "displayName": f"{instance.view['displayName']} (Boot Volume)",
            "freeformTags": {},
            "definedTags": {},
            "imageId": image.id,
            "isHydrated": True,
            "sizeInGBs": size,
            "sizeInMBs": size * 1024,
            "vpusPerGB": request.get("bootVolumeVpusPerGB") or 10,
        },
        state="AVAILABLE",
    )


def _attach(cloud: Cloud, instance: Resource, volume: Resource) -> None:
    instance.own["volume_attachment"] = cloud.add(
        "bootvolumeattachment",
        {**_place(instance), "instanceId": instance.id, "bootVolumeId": volume.id},
        state="ATTACHED",
    )


def terminate(cloud: Cloud, request: Request) -> Reply:
    """TerminateInstance: also deletes the boot volume unless it is to be preserved."""
    instance = cloud.get("instance", request.target)
    if instance.state == "TERMINATED":
        raise not_found()
    if instance.state == "TERMINATING":
        raise incorrect_state(f"The instance {instance.id} is in state TERMINATING.")
    work = _terminate(cloud, instance, preserve=request.flag("preserveBootVolume", False))
    return Reply(status=204, headers={"opc-work-request-id": work.id})


def end_node(cloud: Cloud, instance: Resource) -> None:
    """Terminate a machine that a service launched, with its boot volume; ignored if this has begun."""
    if instance.live:
        _terminate(cloud, instance, preserve=False)


def _terminate(cloud: Cloud, instance: Resource, *, preserve: bool) -> Resource:
    """Begin it; the work request about it."""
    cloud.become(instance, "TERMINATING")
    if cloud.hosts:
        cloud.hosts.stop(instance.id)
    work = works.start(cloud, "TerminateInstance", instance, "DELETED")
    works.go(cloud, work)

    def finish() -> None:
        works.done(cloud, work)
        _end(cloud, instance, preserve=preserve)

    cloud.later(cloud.settings.terminate_s, finish)
    return work


def _end(cloud: Cloud, instance: Resource, *, preserve: bool) -> None:
    cloud.become(instance, "TERMINATED")
    cloud.control.terminated(instance.id)
    instance.own["ended_at"] = time.time()
    if on_end := instance.own.pop("on_end", None):
        on_end()
    cloud.become(instance.own["volume_attachment"], "DETACHED")
    if not preserve:
        cloud.fall(instance.own["volume"])
    vnic, attachment = instance.own["vnic"], instance.own["vnic_attachment"]
    cloud.become(attachment, "DETACHING")
    cloud.become(vnic, "TERMINATING")

    def vanish() -> None:
        cloud.change(attachment, lifecycleState="DETACHED", vnicId=vnic.id)
        remove_vnic(cloud, vnic)

    cloud.later(cloud.settings.terminate_s / 2, vanish)


_ACTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "START": ("STOPPED", ("STARTING", "RUNNING")),
    "STOP": ("RUNNING", ("STOPPING", "STOPPED")),
    "SOFTSTOP": ("RUNNING", ("STOPPING", "STOPPED")),
    "RESET": ("RUNNING", ("STOPPING", "STARTING", "RUNNING")),
    "SOFTRESET": ("RUNNING", ("STOPPING", "STARTING", "RUNNING")),
}
"""From which state, and through which states."""


def act(cloud: Cloud, request: Request) -> Reply:
    """InstanceAction: an instance that is stopped keeps its place, its addresses and its boot volume."""
    instance = cloud.get("instance", request.target)
    action = request.one("action") or ""
    if action not in _ACTIONS:
        raise invalid(f"query parameter action is '{action}', not one of: {', '.join(_ACTIONS)}")
    needed, path = _ACTIONS[action]
    if instance.state != needed:
        raise incorrect_state(f"The instance {instance.id} is in state {instance.state}, not {needed}.")
    work = works.start(cloud, "InstanceAction", instance, "UPDATED")
    works.go(cloud, work)
    _walk(cloud, instance, work, path)
    return shown(instance, made=True, **{"opc-work-request-id": work.id})


def _walk(cloud: Cloud, instance: Resource, work: Resource, path: tuple[str, ...]) -> None:
    state, *rest = path
    if state == "RUNNING":
        _run(cloud, instance)
    else:
        cloud.become(instance, state)
    if not rest:
        works.done(cloud, work)
        return

    def go_on() -> None:
        if instance.state == state:
            _walk(cloud, instance, work, tuple(rest))

    if state != "STOPPING":
        cloud.later(cloud.settings.launch_s / 2, go_on)
    elif cloud.hosts:
        # The host must be gone before another one is started in its place.
        threading.Thread(target=_halt_first, args=(cloud, cloud.hosts, instance.id, go_on)).start()
    else:
        cloud.later(cloud.settings.terminate_s, go_on)


def _halt_first(cloud: Cloud, hosts: HostsLike, identifier: str, then: Action) -> None:
    hosts.stop(identifier, wait=True)
    cloud.later(cloud.settings.terminate_s, then)


_UPDATABLE = {"displayName", "freeformTags", "definedTags", "metadata", "extendedMetadata", "instanceOptions"}


def update(cloud: Cloud, request: Request) -> Reply:
    """UpdateInstance: name, tags, metadata and options. Keys and user-data can't be changed."""
    instance = cloud.get("instance", request.target)
    if instance.state in (*ENDED, "TERMINATING"):
        raise incorrect_state(f"The instance {instance.id} is in state {instance.state}.")
    body = given(request.body)
    if unknown := body.keys() - _UPDATABLE:
        raise invalid(f"{', '.join(sorted(unknown))} can't be updated here")
    if "metadata" in body:
        check_metadata(body["metadata"])
        for key in ("ssh_authorized_keys", "user_data"):
            if body["metadata"].get(key) != instance.view.get("metadata", {}).get(key):
                raise invalid(f"metadata.{key} can't be changed after the launch")
    cloud.change(instance, **body)
    return shown(instance, made=True)


def list_instances(cloud: Cloud, request: Request) -> Reply:
    """ListInstances: also terminated instances, which stay listed."""
    cluster = request.one("computeClusterId")
    rows: Any = cloud.rows("instance")
    if cluster:
        rows = [(n, view) for n, view in rows if cloud.get("instance", view["id"]).own["cluster"] == cluster]
    return page(request, rows, size=cloud.settings.page_size, done=frozenset({"computeClusterId"}))


HANDLERS: dict[str, Handler] = {
    "LaunchInstance": launch,
    "TerminateInstance": terminate,
    "GetInstance": getter("instance"),
    "ListInstances": list_instances,
    "InstanceAction": act,
    "UpdateInstance": update,
    "ListVnicAttachments": lister("vnicattachment"),
    "ListBootVolumeAttachments": lister("bootvolumeattachment"),
}
