"""Tags for boot volumes: a launch can't give them any, and a volume outlives its machine where somebody wants so.

Who ends a machine in the console may keep its volume, which costs money until `down` or `reap` finds it.
"""

from collections.abc import Sequence
from functools import partial

from provision.errors import Blocked, Denied, Gone
from provision.oci.api import Api, Json
from provision.oci.resources.resource_types import is_live, list_kind, tags_of
from provision.parallel import run_all, together, values
from provision.records import Instance
from provision.rented import tags

_COPIED = (tags.CLUSTER, tags.CLUSTER_ID, tags.OWNER, tags.EXPIRES)


def tag(api: Api, machines: Sequence[Instance]) -> None:
    """Give the boot volumes of machines that are there the tags of their cluster, once.

    Who may not do that still has machines: `doctor` names the permission.
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
        (bare[one["bootVolumeId"]], alive[one["instanceId"]])
        for zone in attached
        for one in zone
        if one["bootVolumeId"] in bare and one["instanceId"] in alive and one["lifecycleState"] == "ATTACHED"
    ]
    # The first one tells whether the others are worth asking for.
    if todo and _tag(api, todo[0]):
        values(run_all(partial(_tag, api), todo[1:]))


def _attachments(api: Api, zone: str) -> list[Json]:
    return api.listed("compute.list_boot_volume_attachments", availability_domain=zone)


def _tag(api: Api, pair: tuple[Json, Instance]) -> bool:
    """Whether it went well. What is busy, or gone by now, is looked at again by the next command."""
    volume, machine = pair
    # The new tags replace all others.
    of = tags_of(volume) | {key: machine.tags[key] for key in _COPIED if key in machine.tags}
    try:
        api.call("storage.update_boot_volume", volume["id"], {"freeformTags": of}, again=True)
    except (Denied, Gone, Blocked):
        return False
    return True
