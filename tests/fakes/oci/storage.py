"""Boot volumes that outlive their instances."""

from tests.fakes.oci.api import Handler, Reply, Request, page
from tests.fakes.oci.common import getter, updater
from tests.fakes.oci.errors import incorrect_state, missing
from tests.fakes.oci.store import Cloud, must_be_live


def list_volumes(cloud: Cloud, request: Request) -> Reply:
    """ListBootVolumes: of a compartment."""
    if request.one("compartmentId") is None:
        raise missing("query parameter compartmentId is required")
    return page(request, cloud.rows("bootvolume"), size=cloud.settings.page_size)


def delete_volume(cloud: Cloud, request: Request) -> Reply:
    """DeleteBootVolume: refused while an instance has it."""
    volume = cloud.get("bootvolume", request.target)
    must_be_live(volume, "The boot volume")
    for attachment in cloud.where("bootvolumeattachment", bootVolumeId=volume.id, lifecycleState="ATTACHED"):
        raise incorrect_state(
            f"The boot volume {volume.id} is attached to the instance {attachment.view['instanceId']}."
        )
    cloud.fall(volume)
    return Reply(status=204)


HANDLERS: dict[str, Handler] = {
    "ListBootVolumes": list_volumes,
    "GetBootVolume": getter("bootvolume"),
    "UpdateBootVolume": updater("bootvolume"),
    "DeleteBootVolume": delete_volume,
}
