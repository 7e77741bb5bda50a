"""Output of `up` about machines with unusable GPUs, and the machines that it may reboot."""

from pathlib import Path

import pytest
from support import a_machine

from gpuctl.workflow.machines.reach import Reached, gpu_hint, gpu_problems, never_ready
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine


def machine(rank: int) -> Machine:
    return a_machine(name=f"gpu-{rank}", rank=rank, host="192.0.2.1", user="ubuntu", gpus=1, id=f"id-{rank}")


MACHINES = (machine(0), machine(1), machine(2))


def test_never_ready_lists_machines_that_may_be_rebooted(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.make()
    assert never_ready(folder, MACHINES, created=["gpu-2"]) == {"gpu-0", "gpu-1", "gpu-2"}
    folder.journal.append("ready", machines=["id-0"])
    assert never_ready(folder, MACHINES, created=["gpu-2"]) == {"gpu-1", "gpu-2"}
    folder.journal.append("ready", machines=["id-0", "id-1", "id-2"])
    assert never_ready(folder, MACHINES, created=[]) == set()


@pytest.mark.parametrize(
    ("problems", "billed", "text"),
    [
        (
            {"gpu-1": "gpu-1: no driver."},
            True,
            "gpu-1: no driver.\nAll 3 machines stay and are billed, for $6.00 an hour. Ready: gpu-0, gpu-2. `gpuctl "
            "up --cluster a` waits again (--boot-timeout 30m: longer), `gpuctl down --cluster a` removes them.",
        ),
        (
            {"gpu-1": "gpu-1: no driver.", "gpu-2": "gpu-2: no mirror."},
            False,
            "The GPUs of 2 of 3 machines can't be used:\n  gpu-1: no driver.\n  gpu-2: no mirror.\nThe cluster a has "
            "3 machines. The same `gpuctl up` tries again; with --driver none it takes them as they are.",
        ),
    ],
)
def test_without_gpus_explains_each_machine_and_next_steps(
    problems: dict[str, str], billed: bool, text: str
) -> None:
    inventory = Inventory(cluster="a", provider="oci", hourly_usd=6.0, created_at="", machines=MACHINES)
    reached = Reached(machines=MACHINES, problems=problems)
    texts = [gpu_problems(inventory, reached), gpu_hint(inventory, reached, billed=billed)]
    assert "\n".join(texts) == text
