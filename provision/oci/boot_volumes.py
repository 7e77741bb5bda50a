"""Tags for boot volumes, which a launch can't set.

A user who ends a machine in the console may keep its volume, which costs money until `down` or `reap` finds it.
"""

from collections.abc import Sequence
from functools import partial

from inventories.threads import run_all, together, values
from provision.errors import Blocked, Denied, Gone
from provision.oci.api import Api, Json
from provision.oci.resources.resource_types import is_live, list_kind, tags_of
from provision.records import Instance
from provision.rented import tags

_COPIED = (tags.CLUSTER, tags.CLUSTER_ID, tags.OWNER, tags.EXPIRES)


def tag(api: Api, machines: Sequence[Instance]) -> None:
    """Give the boot volumes of live machines the tags of their cluster, once.

    Without the permission, the machines still work: `doctor` names it.
    """
    alive = {machine.id: machine for machine in machines if machine.alive}
    zones = sorted({machine.zone.name for machine in alive.values()})
    try:
        volumes, attached = together(
            partial(list_kind, api, "boot-volume"),
            lambda: values(run_all(partial(_attachments, api), zones)),
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
    if todo and _tag(api, todo[0]):
        values(run_all(partial(_tag, api), todo[1:]))


def _attachments(api: Api, zone: str) -> list[Json]:
    return api.listed("compute.list_boot_volume_attachments", availability_domain=zone)


def _tag(api: Api, pair: tuple[Json, Instance]) -> bool:
    """Tag a volume. Returns whether it worked; the next command retries a busy volume."""
    volume, machine = pair
    # The new tags replace all others.
    of = tags_of(volume) | {key: machine.tags[key] for key in _COPIED if key in machine.tags}
    try:
        api.call("storage.update_boot_volume", volume["id"], {"freeformTags": of}, again=True)
    except (Denied, Gone, Blocked):
        return False
    return True
