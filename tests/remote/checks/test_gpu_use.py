"""Machines that have GPUs which a run could not use: refused with the fix, or noted."""

from dataclasses import replace

import pytest
from node_facts import NO_GPU, facts

from remote.checks import gpu_use
from remote.checks.gpu_use import Expected
from remote.errors import PreflightFailed
from remote.facts import Driver, Facts, without_gpus

A10 = {"index": 0, "name": "NVIDIA A10", "memory_mb": 23028, "driver": "580.65.06"}
FELL_OFF = "No devices were found"


def driver(**changed: object) -> Driver:
    """Two GPUs, with a driver that does not work."""
    values = {"devices": 2, "module": True, "smi_exit": 9, **changed}
    return replace(NO_GPU, **values)  # type: ignore[arg-type]


WORKS = facts(gpus=(A10, A10), driver=driver(smi_exit=0, listed=2))
HIDDEN = facts(driver=driver(smi_exit=0, listed=2))


@pytest.mark.parametrize(
    ("fact", "expected", "problem"),
    [
        (facts(driver=driver(module=False, smi_exit=None)), 0, "it has 2 NVIDIA GPUs on the bus, and no driver"),
        (facts(driver=driver(module=False, smi_exit=None, reboot_required=True)), 0,
         "it has 2 NVIDIA GPUs, and the driver waits for a reboot"),
        (facts(driver=driver(smi_exit=-1)), 2, "it has 2 NVIDIA GPUs, and the driver does not answer"),
        (facts(driver=driver(smi_exit=0)), 2, "it has 2 NVIDIA GPUs on the bus, of which nvidia-smi lists 0"),
        (HIDDEN, 2, "CUDA_VISIBLE_DEVICES is set there, and hides 2 NVIDIA GPUs"),
        (facts(driver=NO_GPU), 2, "it should have 2 NVIDIA GPUs, and none is on its bus"),
        (facts(driver=driver(devices=0, smi_said=FELL_OFF)), 1,
         f"it should have 1 NVIDIA GPU, and none is on its bus: {FELL_OFF}"),
    ],
)  # fmt: skip
def test_unusable_gpus_are_fatal_except_on_local_hosts(fact: Facts, expected: int, problem: str) -> None:
    (result,) = gpu_use.findings({"a": fact}, Expected(gpus={"a": expected}))
    assert (result.node, result.problem, result.fatal) == ("a", problem, True)
    assert result.fix
    (noted,) = gpu_use.findings({"a": fact}, Expected(gpus={"a": expected}, local=True))
    assert (noted.problem, noted.fatal) == (f"{problem}; the run uses the CPUs", False)
    assert gpu_use.findings({"a": without_gpus(fact)}, Expected()) == []


@pytest.mark.parametrize(
    ("fact", "expected", "problem"),
    [
        (facts(gpus=(A10,), driver=driver(smi_exit=0, listed=1)), 2,
         "it has 2 NVIDIA GPUs on the bus, of which nvidia-smi lists 1"),
        (facts(gpus=(A10,), driver=driver(devices=1, smi_exit=0, listed=1)), 2,
         "nvidia-smi lists 1 of the 2 GPUs that it should have"),
    ],
)  # fmt: skip
def test_partly_usable_gpus_are_noted_with_numbers(fact: Facts, expected: int, problem: str) -> None:
    (result,) = gpu_use.findings({"a": fact}, Expected(gpus={"a": expected}))
    assert (result.problem, result.fatal) == (problem, False)


@pytest.mark.parametrize(
    ("fact", "expected"), [(WORKS, 2), (WORKS, 0), (facts(), 0), (facts(driver=driver(devices=0)), 0)]
)
def test_working_or_absent_gpus_give_no_finding(fact: Facts, expected: int) -> None:
    assert gpu_use.findings({"a": fact}, Expected(gpus={"a": expected})) == []


def test_user_set_cuda_visible_devices_gives_no_finding() -> None:
    assert gpu_use.findings({"a": HIDDEN}, Expected(), env_names=("CUDA_VISIBLE_DEVICES",)) == []


def test_gpu_use_check_lists_every_machine_with_problem_and_fix() -> None:
    none = facts(driver=driver(module=False, smi_exit=None))
    nodes = {"gpu-0": WORKS, "gpu-1": none, "gpu-2": none, "gpu-3": HIDDEN}
    with pytest.raises(PreflightFailed) as refused:
        gpu_use.check(nodes, Expected())
    head, alike, hidden, end = str(refused.value).splitlines()
    assert head == "The run can't start: there are GPUs, and it would use CPUs."
    assert alike.startswith("  gpu-1 and gpu-2: it has 2 NVIDIA GPUs on the bus, and no driver. Fix: ")
    assert hidden.startswith("  gpu-3: CUDA_VISIBLE_DEVICES is set there, ")
    assert end == "To run on the CPUs all the same: --device cpu"
    assert refused.value.nodes == {"gpu-1", "gpu-2", "gpu-3"}
    gpu_use.check(nodes, Expected(local=True))
    gpu_use.check({"gpu-0": WORKS}, Expected(gpus={"gpu-0": 4}))
