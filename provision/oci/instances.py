"""Machines: launch, list, addresses, termination, serial console, and the tags of their boot volumes."""

import base64
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from inventories.threads import first_error, run_all, together, values
from provision.errors import Blocked, CloudError, Denied, Gone, Quota
from provision.oci import quotas, run_command
from provision.oci.api import Api, Json
from provision.oci.errors import from_message, policy_for
from provision.oci.instance_pool import end_members
from provision.oci.resources.resource_types import ENDED, ENDING, is_live, list_kind, tags_of
from provision.records import Instance, InstanceState, Zone
from provision.rented import tags
from provision.rented.serial_console import MAX_BYTES, end_of, with_short_retry
from provision.waiting import poll

TERMINATE_PATIENCE_S = 300.0
"""Longest time that OCI refuses to end a machine that it is making."""
UNLISTED_PATIENCE_S = 15.0
"""Longest time that a list shows a machine that a call no longer finds."""
CAPTURE_TIMEOUT_S = 60.0

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
_COPIED = (tags.CLUSTER, tags.CLUSTER_ID, tags.OWNER, tags.EXPIRES)
"""Tags of boot volumes, which a launch can't set."""


def as_instance(view: Json) -> Instance:
    """Return a machine from ListInstances' view.

    Its zone is the domain alone: its fault domain does not matter to other machines.
    """
    of = tags_of(view)
    return Instance(
        id=view["id"],
        tags=of,
        rank=tags.rank_at(of, 0),
        # A machine in an unknown state counts as running.
        state=STATES.get(view["lifecycleState"], "running"),
        shape=view["shape"],
        zone=Zone(name=view["availabilityDomain"]),
        launched_at=view["timeCreated"],
        spot=bool(view.get("preemptibleInstanceConfig")),
        image_id=(view.get("sourceDetails") or {}).get("imageId"),
    )


class Machines:
    """The machines of an account: a part of `Cloud`."""

    api: Api

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """Return the machines: see `Cloud.instances`."""
        views = self.api.listed("compute.list_instances")
        return tuple(
            as_instance(view)
            for view in views
            if tags.is_ours(tags_of(view)) and cluster_id in (None, tags_of(view).get(tags.CLUSTER_ID))
        )

    def send(self, request: Mapping[str, Any]) -> tuple[str, ...]:
        """Launch a machine: see `Cloud.send`."""
        try:
            view = self.api.call(
                "compute.launch_instance", request["details"], opc_retry_token=request["token"]
            )
        except Quota as error:
            raise quotas.refused(self.api, error, request.get("room")) from error.__cause__
        return (str(view["id"]),)

    def with_addresses(self, machines: Sequence[Instance]) -> tuple[Instance, ...]:
        """Return the machines with their addresses; their boot volumes get their tags at the same time."""
        addressed, _ = together(
            partial(_with_addresses, self.api, machines), partial(_tag_boot_volumes, self.api, machines)
        )
        return addressed

    def failure(self, instance: Instance) -> Exception | None:
        """Return the most telling error of the machine's work requests: see `Cloud.failure`."""
        try:
            requests = self.api.listed("work.list_work_requests", resource_id=instance.id)
            failed = [request for request in requests if request["status"] == "FAILED"]
            errors_of = values(
                run_all(
                    lambda request: self.api.list_all("work.list_work_request_errors", request["id"]), failed
                )
            )
        except (Denied, Gone):
            return None  # the account may not list work requests
        errors = [
            from_message(
                str(error.get("code") or ""), str(error.get("message") or ""), str(request["operationType"])
            )
            for request, listed in zip(failed, errors_of, strict=True)
            for error in listed
        ]
        # Of several errors, one of a known class explains most.
        return min(errors, key=lambda error: type(error) is CloudError, default=None)

    def terminate(self, ids: Sequence[str]) -> None:
        """Begin to end machines; the first error is raised after all calls.

        Members of an instance pool end through it: it would replace members that end otherwise.
        """
        in_pools = end_members(self.api, ids)
        ids = [machine_id for machine_id in ids if machine_id not in in_pools]
        outcomes = run_all(lambda machine_id: _terminate(self.api, machine_id), ids)
        missing = [
            machine_id for machine_id, outcome in zip(ids, outcomes, strict=True) if isinstance(outcome, Gone)
        ]
        if error := first_error([outcome for outcome in outcomes if not isinstance(outcome, Gone)]):
            raise error
        if missing:
            _must_have_ended(self.api, missing)

    def user_data(self, machine_id: str) -> str:
        """Return the machine's user-data, from its metadata: see `AdmitsKeys`."""
        view = self.api.call("compute.get_instance", machine_id)
        return base64.b64decode((view.get("metadata") or {}).get("user_data", "")).decode(errors="replace")

    def admit_key(self, machine_id: str, user: str, public_key: str) -> str:
        """Add the key by Run Command, for good: see `AdmitsKeys`."""
        run_command.admit_key(self.api, machine_id, user, public_key)
        return run_command.NEEDS.format(compartment=self.api.compartment)

    def console(self, instance_id: str) -> str | None:
        """Return the end of a machine's serial console: see `Cloud.console`."""
        token = secrets.token_hex(16)
        details = {"instanceId": instance_id}
        history: Json = with_short_retry(
            self.api.clock,
            lambda: self.api.hint("compute.capture_console_history", details, opc_retry_token=token),
        )
        try:
            _wait_captured(self.api, history)

            def part(offset: int) -> tuple[bytes, int]:
                response = with_short_retry(
                    self.api.clock,
                    lambda: self.api.hint_response(
                        "compute.get_console_history_content", history["id"], offset=offset, length=MAX_BYTES
                    ),
                )
                return response.data, int(response.headers.get("opc-bytes-remaining") or 0)

            first, left = part(0)
            return end_of(part(len(first) + left - MAX_BYTES)[0] if left else first)
        finally:
            # A history that stays costs nothing, and is deleted with its instance.
            with contextlib.suppress(CloudError):
                with_short_retry(
                    self.api.clock, lambda: self.api.hint("compute.delete_console_history", history["id"])
                )


def _with_addresses(api: Api, machines: Sequence[Instance]) -> tuple[Instance, ...]:
    alive = {machine.id for machine in machines if machine.alive}
    if not alive:
        return tuple(machines)
    only = {"instance_id": next(iter(alive))} if len(alive) == 1 else {}
    attachments = [
        attachment
        for attachment in api.listed("compute.list_vnic_attachments", **only)
        if attachment["instanceId"] in alive
        and attachment.get("vnicId")
        and attachment["lifecycleState"] in _HELD
    ]
    vnics = values(run_all(lambda attachment: _vnic(api, attachment["vnicId"]), attachments))
    of: dict[str, Json] = {}
    for attachment, vnic in zip(attachments, vnics, strict=True):
        # A machine can have several; the primary one is that of its launch.
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


def _vnic(api: Api, vnic_id: str) -> Json | None:
    try:
        view: Json = api.call("network.get_vnic", vnic_id)
    except Gone:
        return None
    return view


def _terminate(api: Api, instance_id: str) -> None:
    """Terminate a machine, again until OCI takes it: the call has no token, and does nothing the second time."""
    for passed_s in poll(api.clock):
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
            # OCI's answer for a machine that it is making, and for one that it is ending already.
            view: Json = api.call("compute.get_instance", instance_id)
            if view["lifecycleState"] in ENDING | ENDED:
                return
            if passed_s > TERMINATE_PATIENCE_S:
                raise CloudError(
                    f"Instance {instance_id} is {view['lifecycleState']} and can't be ended: {error} Look at "
                    "it in the console; it is billed.",
                    operation=error.operation,
                    code=error.code,
                ) from error


def _must_have_ended(api: Api, ids: Sequence[str]) -> None:
    """Raise Denied if the list still has machines that a call does not find, once it had time to settle."""
    for _ in poll(api.clock, UNLISTED_PATIENCE_S):
        states = {view["id"]: view["lifecycleState"] for view in api.listed("compute.list_instances")}
        hidden = [
            machine_id for machine_id in ids if states.get(machine_id, "TERMINATED") not in ENDING | ENDED
        ]
        if not hidden:
            return
    raise Denied(
        f"OCI lists {', '.join(hidden)}, but says that they can't be found when they are to be ended. They "
        "are billed. This policy statement is probably missing: "
        f"`{policy_for('terminate_instance', api.compartment)}`.",
        operation="terminate_instance",
        code="NotAuthorizedOrNotFound",
    )


def _tag_boot_volumes(api: Api, machines: Sequence[Instance]) -> None:
    """Give the boot volumes of live machines the tags of their cluster, once.

    A user who ends a machine in the console may keep its volume, which costs money until `down` or `reap` finds it.
    Without the permission, the machines still work: `doctor` names it.
    """
    alive = {machine.id: machine for machine in machines if machine.alive}
    zones = sorted({machine.zone.name for machine in alive.values()})
    try:
        volumes, attached = together(
            partial(list_kind, api, "boot-volume"),
            lambda: values(
                run_all(
                    lambda zone: api.listed("compute.list_boot_volume_attachments", availability_domain=zone),
                    zones,
                )
            ),
        )
    except Denied:
        return
    bare = {view["id"]: view for view in volumes if is_live(view) and not tags.is_ours(tags_of(view))}
    todo = [
        (bare[attachment["bootVolumeId"]], alive[attachment["instanceId"]])
        for zone in attached
        for attachment in zone
        if attachment["bootVolumeId"] in bare
        and attachment["instanceId"] in alive
        and attachment["lifecycleState"] == "ATTACHED"
    ]
    # If OCI refuses the first one, the others are not tried.
    if todo and _tag_volume(api, todo[0]):
        values(run_all(partial(_tag_volume, api), todo[1:]))


def _tag_volume(api: Api, pair: tuple[Json, Instance]) -> bool:
    """Tag a volume. Returns whether it worked; the next command retries a busy volume."""
    volume, machine = pair
    # The new tags replace all others.
    of = tags_of(volume) | {key: machine.tags[key] for key in _COPIED if key in machine.tags}
    try:
        api.call("storage.update_boot_volume", volume["id"], {"freeformTags": of}, again=True)
    except (Denied, Gone, Blocked):
        return False
    return True


def _wait_captured(api: Api, history: Json) -> None:
    """Wait until the history has been captured. Raises CloudError if it fails, or takes too long."""
    history_id, instance_id = history["id"], history["instanceId"]
    problem = ""
    for passed_s in poll(api.clock, CAPTURE_TIMEOUT_S):
        if passed_s:
            history = with_short_retry(api.clock, lambda: api.hint("compute.get_console_history", history_id))
        state = history["lifecycleState"]
        if state == "SUCCEEDED":
            return
        problem = "has failed" if state == "FAILED" else f"was still {state} after {CAPTURE_TIMEOUT_S:.0f} s"
        if state == "FAILED":
            break
    raise CloudError(
        f"OCI's capture of the console of {instance_id} {problem}.",
        operation="capture_console_history",
        code=state,
    )
