"""The record of a rented cluster. Commands for other clusters import only the clouds' names."""

from typing import TYPE_CHECKING

from inventories.disk.store import ClusterFolder
from provision.clouds import RENTED

if TYPE_CHECKING:
    from provision.records import CloudCluster


def cloud_record(folder: ClusterFolder, provider: str) -> "CloudCluster | None":
    """Return the record of a rented cluster. `None`: nothing is rented, or no request was sent to a cloud yet."""
    if provider not in RENTED:
        return None
    from provision.rented.state import CloudState

    return CloudState(folder).load()
