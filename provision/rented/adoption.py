"""The files of a cluster that another computer made, rebuilt from the account's descriptions of its machines.

User-data has a machine's login, its public host key and the cluster's record. A machine cannot change it, and the
cloud's API gives it out, so the host key is pinned without trust in the network.
"""

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from inventories import codec
from inventories.errors import CorruptFile
from inventories.threads import run_all, values
from provision.errors import RefusedPlan
from provision.records import CloudCluster, Instance
from provision.rented import tags
from provision.rented.interface import AdmitsKeys, Cloud
from provision.rented.launch.user_data import FirstBoot, read_user_data
from provision.rented.state import CloudState, Launch


def rebuild(cloud: Cloud, files: CloudState, cluster_id: str) -> CloudCluster:
    """Write the cluster's record, and the launches of its machines, where they are missing. Returns the record.

    Raises RefusedPlan for a cluster without machines, or with machines of another program.
    """
    assert isinstance(cloud, AdmitsKeys), f"{cloud.name} admits no keys"
    listed = cloud.instances(cluster_id)
    machines = [m for m in listed if m.alive and m.rank is not None]
    if not machines:
        raise RefusedPlan(
            f"No machine of the cluster {files.name} is alive, so none can be taken over. `gpuctl reap {cluster_id}` "
            "removes the rest of it."
        )
    boots = _first_boots(cloud, machines)
    unknown = [machine_id for machine_id, boot in boots.items() if boot is None]
    if unknown:
        raise RefusedPlan(
            f"The user-data of {', '.join(unknown)} is not gpuctl's, so the host key is not known. Nothing was "
            f"changed. `gpuctl reap {cluster_id}` removes the cluster; `gpuctl key export`, on the computer that "
            "made it, gives access."
        )
    known = {machine_id: boot for machine_id, boot in boots.items() if boot is not None}
    newest = max(machines, key=lambda machine: (machine.launched_at, machine.id))
    launched = {machine.tags.get(tags.LAUNCH, "") for machine in listed}
    record = _recorded(files, launched) or _record(cloud, newest, known[newest.id])
    files.save(record)
    _save_launches(files, machines, known)
    return record


def learn_launches(cloud: Cloud, files: CloudState, machines: Sequence[Instance]) -> None:
    """Write the launches of machines that another computer made, with their host keys."""
    new = _without_host_key(files, machines)
    if new and isinstance(cloud, AdmitsKeys):
        boots = {
            machine_id: boot for machine_id, boot in _first_boots(cloud, new).items() if boot is not None
        }
        _save_launches(files, [machine for machine in new if machine.id in boots], boots)


def _first_boots(cloud: AdmitsKeys, machines: Sequence[Instance]) -> dict[str, FirstBoot | None]:
    """Return the parts of each machine's user-data. `None`: another program wrote it."""
    texts = values(run_all(lambda machine: cloud.user_data(machine.id), machines))
    return {machine.id: read_user_data(text) for machine, text in zip(machines, texts, strict=True)}


def missing_ranges(needed: Collection[str], admitted: Collection[str]) -> tuple[str, ...]:
    """Return the address ranges that no admitted range covers."""

    def covers(outer: str, inner: str) -> bool:
        wide, narrow = ipaddress.ip_network(outer), ipaddress.ip_network(inner)
        return wide.version == narrow.version and narrow.subnet_of(wide)  # type: ignore[arg-type]

    return tuple(cidr for cidr in needed if not any(covers(outer, cidr) for outer in admitted))


def _recorded(files: CloudState, launched: Collection[str]) -> CloudCluster | None:
    """Return the record here. `None`: it is missing or can't be read.

    `launched`: the tokens of the cluster's launches. Raises RefusedPlan if the record is lost, and the launches here
    may be of another cluster: the next `up` would complete or undo them.
    """
    try:
        return files.load()
    except CorruptFile:
        saved = files.launches()
        foreign = [launch for launch in saved if launch.id not in launched]
        if foreign and (len(foreign) == len(saved) or not all(launch.settled for launch in foreign)):
            raise RefusedPlan(
                f"Another cluster may have been called {files.name} here: its record is lost, and its launches are "
                f"in {files.cluster_folder.path}. Nothing was changed. For the takeover, use another folder in "
                "GPUCTL_HOME, or move this one away."
            ) from None
        return None


def _record(cloud: Cloud, machine: Instance, boot: FirstBoot) -> CloudCluster:
    """Return the record that a machine was launched with, as this computer's account has it."""
    record = codec.from_json(CloudCluster, boot.record, f"the user-data of {machine.id}")
    of = machine.tags
    if (record.name, record.id) != (of[tags.CLUSTER], of[tags.CLUSTER_ID]):
        raise RefusedPlan(
            f"The tags of {machine.id} name the cluster {of[tags.CLUSTER]}, {of[tags.CLUSTER_ID]}, and its user-data "
            f"{record.name}, {record.id}. Nothing was changed. Somebody edited the tags: look at the machine in the "
            "cloud's console."
        )
    return replace(record, target=cloud.target)


def _without_host_key(files: CloudState, machines: Collection[Instance]) -> list[Instance]:
    """Return the machines of launches that are not known here, or of which too few machines were listed then."""
    known = {launch.id: launch for launch in files.launches()}

    def is_new(machine: Instance) -> bool:
        token = machine.tags.get(tags.LAUNCH)
        if machine.rank is None or not token:
            return False
        launch = known.get(token)
        return launch is None or (launch.settled and launch.host_key(machine.rank) is None)

    return [machine for machine in machines if is_new(machine)]


def _save_launches(files: CloudState, machines: Collection[Instance], boots: Mapping[str, FirstBoot]) -> None:
    """Write the launches of new machines, as final: the other computer completes or undoes them."""
    known = {launch.id: launch for launch in files.launches()}
    new = _without_host_key(files, machines)
    for token in {machine.tags[tags.LAUNCH] for machine in new}:
        launched = sorted((m for m in new if m.tags[tags.LAUNCH] == token), key=lambda m: m.rank or 0)
        first = launched[0]
        launch = known.get(token) or Launch(
            id=token,
            zone=first.zone,
            ranks=(),
            user=boots[first.id].user,
            host_keys=(),
            requests=(),
            began_at=first.launched_at,
            sent_at=first.launched_at,
            state="running",
        )
        files.save_launch(
            replace(
                launch,
                ranks=(*launch.ranks, *(machine.rank or 0 for machine in launched)),
                host_keys=(*launch.host_keys, *(boots[machine.id].host_key for machine in launched)),
            )
        )
