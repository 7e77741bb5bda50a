"""The request compared with the existing cluster: merged, or refused with the next command. Pure."""

from collections.abc import Iterable
from dataclasses import fields, replace
from datetime import datetime

from inventories.errors import InvalidInput
from inventories.specs.spec import Spec
from provision.clouds import describe
from provision.errors import NoCapacity, RefusedPlan, UnknownShape
from provision.pricing.catalog import SHAPES, nearest_shapes
from provision.pricing.spending import expires_at, ttl_text
from provision.records import BootImage, CloudCluster, Instance, Offer, Resource
from provision.rented import tags
from provision.unsupported_options import OPTIONS

MACHINE_FIELDS = (
    "shape",
    "image",
    "disk_gb",
    "spot",
    "ssh_port",
    "subnet_id",
    "public_ip",
    "ttl_s",
    "idle_s",
)
"""Fields of CloudCluster that can't change while machines live."""
SHARED_FIELDS = {field.name for field in fields(CloudCluster)} & {field.name for field in fields(Spec)}
"""Fields of the request that the cluster keeps."""
NETWORK = ("subnet_id", "public_ip")
"""Fields that decide the cluster's network."""


def merge(
    spec: Spec, record: CloudCluster | None, empty: CloudCluster, *, lives: bool, now: datetime
) -> CloudCluster:
    """Return the cluster that the spec requests, with the record's values for open fields.

    `lives`: machines of the record exist, or may come up. Otherwise a spec with a shape ignores the record, so that
    options of a removed cluster don't stick, and the time limit starts again. `empty` has only names and ids. Raises
    InvalidInput without a shape.
    """
    keeps = record is not None and (lives or spec.shape is None)
    old = record if record is not None and keeps else empty
    shape = spec.shape or old.shape
    if not shape:
        raise InvalidInput(
            f"Provider {empty.target.provider} needs to know the machines: give `--shape S`; `gpuctl shapes` "
            "lists them."
        )
    ttl_s = spec.ttl_s or old.ttl_s
    same_end = lives and ttl_s == old.ttl_s
    values = {name: getattr(spec, name) or getattr(old, name) for name in SHARED_FIELDS}
    return replace(old, **values | {
        "min_count": old.min_count if spec.max_count is None else spec.min_count,
        "public_ip": spec.public_ip and old.public_ip,
        "expires_at": old.expires_at if same_end else None if ttl_s is None else expires_at(now, ttl_s),
        "boots_from": old.boots_from if lives else None,
    })  # fmt: skip


def recorded_image(cluster: CloudCluster, offer: Offer) -> BootImage:
    """Return the image of existing machines, from which new ones boot as well."""
    if cluster.boots_from is not None and cluster.boots_from.name:
        return cluster.boots_from
    return BootImage(id=offer.image_id, name=offer.image_name, marketplace=offer.from_marketplace)


def boot_image(machines: Iterable[Instance]) -> BootImage | None:
    """Return the image that the machines booted from, by their cloud's list. `None`: not known."""
    first = min(
        (machine for machine in machines if machine.image_id), key=lambda m: m.rank or 0, default=None
    )
    return BootImage(id=first.image_id) if first is not None and first.image_id else None


def count_of(spec: Spec, have: int) -> int:
    """Return the requested number of machines: by default as many as the cluster has."""
    return spec.count if spec.count is not None else max(have, 1)


def count_now(spec: Spec, cluster: CloudCluster, have: int) -> int:
    """Return the number of machines now, for a cluster whose runs start and end them: by default the minimum.

    Raises RefusedPlan for more than the maximum.
    """
    if cluster.max_count is None:
        return count_of(spec, have)
    count = spec.count if spec.count is not None else cluster.min_count or 0
    if count > cluster.max_count:
        raise RefusedPlan(
            f"Cluster '{cluster.name}' has {cluster.max_count} machines at most, not {count}. For more: "
            f"`gpuctl up --min {cluster.min_count or 0} --max {count}`."
        )
    return count


def refuse_elsewhere(record: CloudCluster, spec: Spec) -> None:
    """Raise RefusedPlan if the spec names another region or compartment than the cluster's.

    Also without machines: other resources may be left, and only `down` removes them.
    """
    moved = [
        f"--{name} {getattr(spec, name)}"
        for name in ("region", "compartment")
        if getattr(spec, name) not in (None, getattr(record.target, name))
    ]
    if moved:
        raise RefusedPlan(
            f"Cluster '{record.name}' was begun in {record.target.region}"
            f"{f', compartment {record.target.compartment}' if record.target.compartment else ''}, so "
            f"{', '.join(moved)} can't be had. Make a second cluster with `--cluster NAME`, or remove this one "
            f"with `gpuctl down --cluster {record.name}` and run `gpuctl up` again."
        )


def refuse_changes(record: CloudCluster, requested: CloudCluster) -> None:
    """Raise RefusedPlan if live machines were made with other options than the requested ones."""
    changed: list[str] = []
    for name in MACHINE_FIELDS:
        if getattr(record, name) != getattr(requested, name):
            option = OPTIONS[name]
            before, now = (_typed(option, name, getattr(cluster, name)) for cluster in (record, requested))
            # `--ttl 90m, not 8h`, and `no --spot, not --spot`.
            valued = before.startswith(f"{option} ")
            changed.append(f"{before}, not {now.removeprefix(f'{option} ') if valued else now}")
    if changed:
        raise RefusedPlan(
            f"The machines of cluster '{record.name}' were made with {'; '.join(changed)}, and "
            "`up` does not replace them. Leave that out; or make a second cluster with `--cluster NAME`; or "
            f"remove this one with `gpuctl down --cluster {record.name}` and run `gpuctl up` again."
        )


def _typed(option: str, name: str, value: object) -> str:
    """Return a field's value as the option that sets it."""
    if isinstance(value, float):
        value = ttl_text(value)
    if name == "public_ip":
        value = not value
    if isinstance(value, bool):
        return option if value else f"no {option}"
    return f"no {option}" if value is None else f"{option} {value}"


def refuse_other_network(
    record: CloudCluster, requested: CloudCluster, resources: Iterable[Resource], *, private: bool
) -> None:
    """Raise RefusedPlan if resources of the cluster are tagged for another network than the requested one.

    `resources`: all of ours in the region. `private`: the cluster will need the network's private parts. Other
    commands decide by that tag which parts they may remove.
    """
    of_cluster = [resource for resource in resources if resource.tags.get(tags.CLUSTER_ID) == record.id]
    stale = [
        f"{resource.kind} {resource.id}"
        for resource in of_cluster
        if tags.is_private(resource.tags) != private
    ]
    if stale:
        options = " and ".join(
            OPTIONS[name] for name in NETWORK if getattr(record, name) != getattr(requested, name)
        )
        raise RefusedPlan(
            f"Parts of cluster '{record.name}' are left that were made with another {options}: {', '.join(stale)}. "
            f"Remove them with `gpuctl down --cluster {record.name}`, and run `gpuctl up` again."
        )


def refuse_over_limits(offer: Offer, count: int) -> None:
    """Raise NoCapacity if the account's limits leave no zone room for `count` more machines."""
    needed = count * offer.gpus
    if not offer.room or any(left is None or left >= needed for left in offer.room.values()):
        return
    listed = ", ".join(f"{left} in {zone}" for zone, left in offer.room.items())
    raise NoCapacity(
        f"{count} {offer.shape} need {needed} GPUs in one zone, and the account's limits leave {listed}. Nothing "
        f"was created. `gpuctl doctor --shape {offer.shape} --count {count}` names the limit and where to raise it."
    )


def refuse_gone_image(offer: Offer, name: str) -> None:
    """Raise RefusedPlan for new machines if the image of the existing ones does not exist any more."""
    if not offer.image_there:
        raise RefusedPlan(
            f"The machines of cluster '{name}' were made from the image '{offer.image_name}', which is not there any "
            "more, so that none can join them. Make a second cluster with `--cluster NAME`, or remove this one with "
            f"`gpuctl down --cluster {name}` and run `gpuctl up` again."
        )


def refuse_terms(offer: Offer, *, accepted: bool) -> None:
    """Raise RefusedPlan if machines would need terms that are not accepted."""
    if offer.terms is not None and not accepted:
        raise RefusedPlan(
            f"The terms of '{offer.terms.name}' are not accepted ({', '.join(offer.terms.links)}). Nothing was "
            "created. Run `gpuctl up` on a terminal, where a typed yes accepts them, or with --accept-terms."
        )


def refuse_expired(requested: CloudCluster, now: datetime) -> None:
    """Raise RefusedPlan for a cluster whose time is over: new machines would end at once."""
    if requested.expires_at is not None and datetime.fromisoformat(requested.expires_at) <= now:
        raise RefusedPlan(
            f"The time of cluster '{requested.name}' was over at {requested.expires_at}. Remove what is left with "
            f"`gpuctl down --cluster {requested.name}`, and run `gpuctl up` again."
        )


def refuse_stopped(cluster: CloudCluster, machines: Iterable[Instance]) -> None:
    """Raise RefusedPlan for stopped machines. Spot machines can't be started, so only `down` is advised.

    https://docs.oracle.com/en-us/iaas/Content/Compute/Concepts/preemptible.htm
    """
    stopped = [machine for machine in machines if machine.state in ("stopping", "stopped")]
    if not stopped:
        return
    bill = (
        "They are billed as if they ran. "
        if describe(cluster.target.provider).bills_stopped(cluster.shape)
        else ""
    )
    hint = "Start them in the cloud's console and run `gpuctl up` again, or remove"
    if any(machine.spot for machine in stopped):
        hint = "Spot machines can't be started again: remove"
    raise RefusedPlan(
        f"These machines are stopped: {', '.join(machine.id for machine in stopped)}. {bill}{hint} the cluster with "
        f"`gpuctl down --cluster {cluster.name}`."
    )


def refuse_unknown_shape(provider: str, shape: str, error: Exception) -> None:
    """Raise UnknownShape for a shape that the catalog lacks, if `error` keeps the cloud from answering.

    The name is most likely misspelt.
    """
    if not shape or shape in SHAPES:
        return
    near = nearest_shapes(shape)
    raise UnknownShape(
        f"No shape '{shape}' is in the catalog, and {provider} can't be asked for it: {error}"
        + (f" The nearest are {', '.join(near)}." if near else "")
    ) from error
