"""The machines that a job can use, by the ranks that its strategy can divide."""

from dataclasses import replace
from typing import Any, cast

import pytest
from support import a_machine

from gpuctl.errors import StrategyDoesNotFit, Usage
from gpuctl.workflow.runs.request.request import TrainRequest
from gpuctl.workflow.runs.strategy.fitting import machines_that_fit, max_that_fit
from inventories.machine import Machine

PIPELINE = TrainRequest(words=("--strategy", "fsdp", "--pp", "2"), min_nodes=2, nnodes=9, nproc_per_node=1)
WHY = "3 ranks can't be divided by pp 2: start a multiple of 2, or change --pp and --tp."


def machines(count: int) -> list[Machine]:
    return [
        a_machine(name=f"gpu-{rank}", rank=rank) for rank in range(count)
    ]  # fmt: skip


def fit(request: TrainRequest, count: int, *, fewer: bool) -> tuple[list[list[str]], list[str]]:
    """Return the names of used and of left-over machines, and the notes."""
    notes: list[str] = []
    facts = cast("Any", {machine.name: None for machine in machines(count)})
    parts = machines_that_fit(request, machines(count), facts, notes.append, fewer=fewer)
    return [[machine.name for machine in part] for part in parts], notes


def test_pipeline_leaves_out_a_machine_that_it_can_not_use() -> None:
    used, notes = fit(PIPELINE, 3, fewer=True)
    assert used == [["gpu-0", "gpu-1"], ["gpu-2"]]
    assert notes == [f"gpu-2 can't be used now, and the job runs on 2 machines: {WHY}"]


def test_job_that_can_not_use_enough_machines_is_refused() -> None:
    with pytest.raises(StrategyDoesNotFit) as refused:
        fit(PIPELINE, 3, fewer=False)
    assert (str(refused.value), refused.value.hint) == (WHY, "--strategy fsdp --tp 1 --pp 1")
    with pytest.raises(StrategyDoesNotFit, match="3 ranks can't be divided by pp 4"):
        fit(replace(PIPELINE, words=("--pp", "4")), 3, fewer=True)
    with pytest.raises(StrategyDoesNotFit, match="3 ranks can't be divided by pp 2"):
        fit(replace(PIPELINE, min_nodes=3), 3, fewer=True)


def test_job_that_is_refused_names_options_with_which_it_can_go_on_if_there_are_any() -> None:
    engine = replace(PIPELINE, words=("--engine", "deepspeed", "--global-batch-size", "64"))
    with pytest.raises(StrategyDoesNotFit, match="64 can't be divided among 3 ranks") as refused:
        fit(engine, 3, fewer=False)
    assert refused.value.hint == "", "nor can another strategy divide the batch"
    wrong = replace(PIPELINE, words=("--strategy", "nothing"))
    with pytest.raises(Usage, match="nothing"):
        max_that_fit(wrong, [1])


def test_strategies_that_divide_any_number_use_all_machines() -> None:
    for words in (("--strategy", "fsdp"), ("--strategy=auto",), ("--model", "mlp"), ("my.py", "--pp", "2")):
        assert max_that_fit(TrainRequest(words=words), [1, 1, 1]) == (3, "")
    assert max_that_fit(TrainRequest(launcher="ray", words=("my.py", "--pp", "2")), [1, 1, 1]) == (3, "")
