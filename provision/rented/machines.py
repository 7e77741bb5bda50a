"""An instance of a cloud as a machine of the inventory."""

from inventories.machine import Machine, MachineState
from provision.clouds import describe
from provision.records import CloudCluster, Instance, InstanceState
from provision.rented.state import CloudState
from provision.rented.tags import LAUNCH

STATES: dict[InstanceState, MachineState] = {
    "pending": "pending",
    "running": "running",
    "stopping": "stopped",
    "stopped": "stopped",
    "ending": "gone",
    "ended": "gone",
}


def machine_of(
    instance: Instance, files: CloudState, cluster: CloudCluster, *, gpus: int | None, python: str | None
) -> Machine:
    """The machine, with the keys that the cluster's files have of it. `gpus` and `python`: None, not known."""
    launch = next((one for one in files.launches() if one.id == instance.tags.get(LAUNCH)), None)
    assert instance.rank is not None
    return Machine(
        name=f"{cluster.name}-{instance.rank}",
        rank=instance.rank,
        state=STATES[instance.state],
        host=(instance.private_ip if cluster.bastion else instance.public_ip) or instance.private_ip or "",
        port=cluster.ssh_port,
        user=launch.user if launch else describe(cluster.target.provider).default_user,
        private_ip=instance.private_ip or "",
        gpus=gpus,
        id=instance.id,
        shape=instance.shape,
        key_file=files.cluster_folder.key_path,
        python=python,
        host_key=launch.host_key(instance.rank) if launch else None,
        bastion=cluster.bastion,
        launched_at=instance.launched_at,
    )
