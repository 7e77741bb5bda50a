"""A dry run's lines on the division of the built-in job's network."""

from typing import Any

import pytest

from gpuctl.errors import Usage
from gpuctl.workflow.runs.request.request import TrainRequest
from gpuctl.workflow.runs.strategy.division import division_of, lines

FACTS: dict[str, Any] = {
    "strategy": "fsdp 2 x pp 2 x tp 2",
    "zero": None,
    "replicate": 1,
    "shard": 2,
    "tp": 2,
    "pp": 2,
    "weights": 1_000,
    "parts": [{"name": "block0", "weights": 100}, {"name": "block1", "weights": 120}],
    "whole": 780,
    "split": [{"name": f"block{number}.up", "by": "columns"} for number in range(2)],
    "stages": [
        {"ranks": [0, 1, 2, 3], "layers": ["embedding", "block0"], "weights": 600},
        {"ranks": [4, 5, 6, 7], "layers": ["block1", "norm", "head"], "weights": 400},
    ],
    "recomputed": ["block0", "block1"],
    "notes": [],
    "reason": None,
}


def test_parts_with_names_that_differ_in_numbers_are_one_line() -> None:
    assert list(lines(FACTS)) == [
        "network of 1,000 weights, divided as fsdp 2 x pp 2 x tp 2",
        "  sharded over 2 ranks",
        "  wrapped by themselves: block* (2, of 100 to 120 weights)",
        "  wrapped with the whole network: 780 weights",
        "  split by columns among 2 ranks: block*.up (2)",
        "  stage 1 of 2 (ranks 0 to 3): embedding to block0 (2 layers, 600 weights)",
        "  stage 2 of 2 (ranks 4 to 7): block1 to head (3 layers, 400 weights)",
        "  computed again in the backward pass: block* (2)",
    ]


@pytest.mark.parametrize(
    ("zero", "line"),
    [
        (["the optimizer's state", "gradients"], "divided among 4 ranks by ZeRO: the optimizer's state, gradients"),
        ([], "whole on every rank"),
    ],
)  # fmt: skip
def test_what_zero_divides_is_told(zero: list[str], line: str) -> None:
    nothing: dict[str, Any] = {"parts": [], "whole": 0, "split": [], "stages": [], "recomputed": []}
    sizes = {"shard": 1, "replicate": 4, "tp": 1, "pp": 1}
    shown = list(lines({**FACTS, **nothing, **sizes, "strategy": "deepspeed zero2", "zero": zero}))
    assert shown == ["network of 1,000 weights, divided as deepspeed zero2", f"  {line}"]


def test_what_can_not_be_told_here_is_said_with_its_reason() -> None:
    [line] = lines({"reason": "torch is not installed on this computer"})
    assert line == "how the network is divided can't be told here: torch is not installed on this computer"


@pytest.mark.parametrize(
    "words", [(), ("--strategy", "zero1"), ("--strategy=ddp",), ("train.py", "--tp", "2")]
)
def test_nothing_is_asked_where_nothing_is_divided(words: tuple[str, ...]) -> None:
    assert division_of(TrainRequest(words=words), [2, 2]) is None


@pytest.mark.slow
def test_division_is_asked_of_the_job_itself() -> None:
    words = ("--model", "gpt-10m", "--strategy", "fsdp", "--wrap")
    division = division_of(TrainRequest(words=(*words, "transformer")), [2, 2])
    assert division is not None
    assert list(lines(division))[1:3] == [
        "  sharded over 4 ranks",
        "  wrapped by themselves: block* (6, of 1,774,464 weights)",
    ]
    with pytest.raises(Usage, match="--wrap Blok: the network has no such part"):
        division_of(TrainRequest(words=(*words, "Blok")), [2, 2])


@pytest.mark.slow
def test_division_by_zero_is_asked_of_the_job_though_no_strategy_is_given() -> None:
    config = '{"zero_optimization": {"stage": 3}}'
    words = ("--model", "gpt-10m", "--engine", "deepspeed", "--deepspeed-config", config)
    division = division_of(TrainRequest(words=words), [2, 2])
    assert division is not None
    first, second = lines(division)
    assert first.endswith("divided as deepspeed zero3")
    assert second == "  divided among 4 ranks by ZeRO: the optimizer's state, gradients, weights"
