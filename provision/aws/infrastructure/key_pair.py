"""The cluster's key pair."""

from collections.abc import Sequence

from provision.aws import requests
from provision.aws.api import Item
from provision.aws.infrastructure.find_or_create import Read, ResourceMaker, named
from provision.errors import Exists
from provision.records import CloudCluster
from provision.rented.interface import Ensure


def ensure_key(
    maker: ResourceMaker,
    cluster: CloudCluster,
    public_key: str,
    ensure: Ensure,
    known: Sequence[Item],
    *,
    read: Read,
) -> str:
    """The name of the cluster's key pair. Raises Exists where it is there with another key."""
    name = requests.name_of(cluster)
    item = named(known, "KeyName", name)
    if item is not None and item.get("PublicKey", public_key).split()[:2] != public_key.split()[:2]:
        raise Exists(
            f"The key pair {name} in {maker.api.region} is not the key of this cluster's folder. "
            f"`gpuctl down --cluster {cluster.name}` removes it with the cluster."
        )
    return maker.ensure(
        "key-pair",
        ensure,
        known,
        read=read,
        pick=lambda items: named(items, "KeyName", name),
        field="KeyName",
        create=lambda _: maker.create(
            "import_key_pair", requests.key_pair(cluster, public_key), None, "KeyName"
        ),
    )
