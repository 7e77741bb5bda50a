"""Machines: sending their requests, reading them from the cloud's list, their addresses, ending them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from provision.errors import Blocked, CloudError, Denied, Gone, Quota
from provision.oci import boot_volumes, quotas
from provision.oci.api import Api, Json
from provision.oci.errors import from_message, policy_for
from provision.oci.instance_pool import end_members
from provision.oci.resources.resource_types import GOING, GONE, tags_of
from provision.parallel import first_error, run_all, together, values
from provision.records import Instance, InstanceState, Zone
from provision.rented import tags
from provision.waiting import PollWaits

TERMINATE_PATIENCE_S = 300.0
"""A machine that is just being made may refuse to be ended for a while."""
UNLISTED_PATIENCE_S = 15.0
"""How long a list may show a machine that a call no longer finds."""

STATES: dict[str, InstanceState] = {
    "PROVISIONING": "pending",
    "STARTING": "pending",
    "RUNNING": "running",
    "MOVING": "running",
    "CREATING_IMAGE": "running",
    "STOPPING": "stopping",
    "STOPPED": "stopped",
    "TERMINATING": "ending",
    "TERMINATED": "ended",
}

_HELD = ("ATTACHING", "ATTACHED")


def as_instance(view: Json) -> Instance:
    """A machine as ListInstances shows it.

    Its zone is the domain alone: which fault domain it was put in is no wish for others.
    """
    of = tags_of(view)
    return Instance(
        id=view["id"],
        tags=of,
        rank=tags.rank_at(of, 0),
        # A state that we don't know is no reason to take a machine for gone.
        state=STATES.get(view["lifecycleState"], "running"),
        shape=view["shape"],
        zone=Zone(name=view["availabilityDomain"]),
        launched_at=view["timeCreated"],
        spot=bool(view.get("preemptibleInstanceConfig")),
        image_id=(view.get("sourceDetails") or {}).get("imageId"),
    )


def instances(api: Api, cluster_id: str | None) -> tuple[Instance, ...]:
    """As `Cloud.instances` says."""
    found = api.listed("compute.list_instances")
    return tuple(
        as_instance(view)
        for view in found
        if tags.is_ours(tags_of(view)) and cluster_id in (None, tags_of(view).get(tags.CLUSTER_ID))
    )


def send(api: Api, request: Mapping[str, Any]) -> tuple[str, ...]:
    """As `Cloud.send` says."""
    try:
        view = api.call("compute.launch_instance", request["details"], opc_retry_token=request["token"])
    except Quota as error:
        raise quotas.refused(api, error, request.get("room")) from error.__cause__
    return (str(view["id"]),)


def with_addresses(api: Api, machines: Sequence[Instance]) -> tuple[Instance, ...]:
    """As `Cloud.with_addresses` says; the machines' boot volumes get their tags on the way."""
    found, _ = together(partial(_with_addresses, api, machines), partial(boot_volumes.tag, api, machines))
    return found


def _with_addresses(api: Api, machines: Sequence[Instance]) -> tuple[Instance, ...]:
    alive = {machine.id for machine in machines if machine.alive}
    if not alive:
        return tuple(machines)
    only = {"instance_id": next(iter(alive))} if len(alive) == 1 else {}
    attachments = [
        one
        for one in api.listed("compute.list_vnic_attachments", **only)
        if one["instanceId"] in alive and one.get("vnicId") and one["lifecycleState"] in _HELD
    ]
    vnics = values(run_all(lambda one: _vnic(api, one["vnicId"]), attachments))
    of: dict[str, Json] = {}
    for attachment, vnic in zip(attachments, vnics, strict=True):
        # A machine can have more of them; the primary one is that of its launch.
        if vnic is not None and vnic.get("isPrimary", True):
            of[attachment["instanceId"]] = vnic
    return tuple(
        replace(
            machine,
            public_ip=of[machine.id].get("publicIp"),
            private_ip=of[machine.id].get("privateIp"),
        )
        if machine.id in of
        else machine
        for machine in machines
    )


def failure(api: Api, instance: Instance) -> Exception | None:
    """As `Cloud.failure` says: the errors of the work requests that were about the machine."""
    try:
        requests = api.listed("work.list_work_requests", resource_id=instance.id)
        failed = [one for one in requests if one["status"] == "FAILED"]
        told = values(run_all(lambda one: api.list_all("work.list_work_request_errors", one["id"]), failed))
    except (Denied, Gone):
        return None  # who may not look is told nothing
    errors = [
        from_message(str(error.get("code") or ""), str(error.get("message") or ""), str(one["operationType"]))
        for one, listed in zip(failed, told, strict=True)
        for error in listed
    ]
    # Of several, one that we know the meaning of says most.
    return min(errors, key=lambda error: type(error) is CloudError, default=None)


def terminate(api: Api, ids: Sequence[str]) -> None:
    """Begin to end machines; all are asked for before an error is raised.

    Members of an instance pool are ended by it: it would make others in place of those that end without it.
    """
    in_pools = end_members(api, ids)
    ids = [machine_id for machine_id in ids if machine_id not in in_pools]
    outcomes = run_all(lambda one: _terminate(api, one), ids)
    missing = [one for one, outcome in zip(ids, outcomes, strict=True) if isinstance(outcome, Gone)]
    if error := first_error([outcome for outcome in outcomes if not isinstance(outcome, Gone)]):
        raise error
    if missing:
        _must_have_ended(api, missing)


def _vnic(api: Api, vnic_id: str) -> Json | None:
    try:
        view: Json = api.call("network.get_vnic", vnic_id)
    except Gone:
        return None
    return view


def _terminate(api: Api, instance_id: str) -> None:
    """Ask for its end until the cloud takes it: the call has no token, and does nothing the second time."""
    deadline = api.clock.now() + TERMINATE_PATIENCE_S
    waits = PollWaits()
    while True:
        try:
            api.call(
                "compute.terminate_instance",
                instance_id,
                preserve_boot_volume=False,
                preserve_data_volumes_created_at_launch=False,
                again=True,
            )
            return
        except Blocked as error:
            # The answer for what is being made, and for what is being ended already.
            view: Json = api.call("compute.get_instance", instance_id)
            if view["lifecycleState"] in GOING | GONE:
                return
            if api.clock.now() > deadline:
                raise CloudError(
                    f"Instance {instance_id} is {view['lifecycleState']} and can't be ended: {error} Look at "
                    "it in the console; it is billed.",
                    operation=error.operation,
                    code=error.code,
                ) from error
        api.clock.sleep(waits.next())


def _must_have_ended(api: Api, ids: Sequence[str]) -> None:
    """Raise Denied where the list still has what could not be found by its id, once it had time to settle."""
    deadline = api.clock.now() + UNLISTED_PATIENCE_S
    waits = PollWaits()
    while True:
        states = {view["id"]: view["lifecycleState"] for view in api.listed("compute.list_instances")}
        hidden = [one for one in ids if states.get(one, "TERMINATED") not in GOING | GONE]
        if not hidden:
            return
        if api.clock.now() > deadline:
            break
        api.clock.sleep(waits.next())
    raise Denied(
        f"OCI lists {', '.join(hidden)}, but says that they can't be found when they are to be ended. They "
        "are billed. This policy statement is probably missing: "
        f"`{policy_for('terminate_instance', api.compartment)}`.",
        operation="terminate_instance",
        code="NotAuthorizedOrNotFound",
    )
