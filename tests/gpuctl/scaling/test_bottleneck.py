"""Test a job's bottleneck, and the first thing to change. Pure: measured layouts in, sentences out."""

from dataclasses import replace
from typing import Any

import pytest

from gpuctl.scaling.bottleneck import Bottleneck, bottleneck, comparable, contradicting, doubts
from gpuctl.scaling.measurements import Job, Layout, Measured, RankPace, Repetition
from inventories.runs.result import Share, StepMs


def measured(
    nodes: int,
    nproc: int,
    *,
    epoch_s: float = 10.0,
    step_ms: float | None = 40.0,
    communication: float = 0.0,
    data: float = 0.0,
    own_ms: tuple[float, ...] = (),
    **job: Any,
) -> Measured:
    share = Share(compute=1 - communication - data, communication=communication, data=data)
    paces = tuple(RankPace(rank=rank, node=f"n-{rank}", own_ms=ms) for rank, ms in enumerate(own_ms))
    return Measured(
        layout=Layout(nodes=nodes, nproc=nproc),
        job=Job(**{"device": "cuda:0", "batch_size": 64, **job}),
        hourly_usd=None,
        repetitions=(
            Repetition(
                run="R", epoch_s=epoch_s, samples=1000, step_ms=StepMs(p50=step_ms, p95=step_ms), share=share,
                paces=paces,
            ),
        ),
    )  # fmt: skip


ONE = measured(1, 1, epoch_s=20.0)
RESNET18 = {"parameters": 11_181_642, "gradient_bytes": 44_726_568}


@pytest.mark.parametrize(
    ("layouts", "kind", "sentence", "advice"),
    [
        (
            [ONE, measured(2, 1, own_ms=(40.0, 60.0), communication=0.3)],
            "straggler",
            "Rank 1 on n-1 holds up 2x1: its own part of a step takes 60.0 ms, 1.5 times the median of all ranks.",
            "First look at what else runs on that node",
        ),
        (
            [ONE, measured(2, 1, own_ms=(40.0, 44.0))],
            "compute",
            "Compute is the bottleneck of 2x1, 100.0 % of a step, and it scales well: 100.0 % efficiency over 1x1.",
            "First add ranks (--forecast tells what they would bring), or take --precision bf16.",
        ),
        (
            [measured(1, 1, data=0.6, loop="plain")],
            "data",
            "Data is the bottleneck of 1x1: the ranks wait for their batch for 60.0 % of a step.",
            "First take --loop fast, which keeps the images on the device.",
        ),
        (
            [ONE, measured(1, 2, data=0.3, communication=0.25, loop="fast")],
            "data",
            "Data is the bottleneck of 1x2: the ranks make their batches for 30.0 % of a step.",
            "First take a larger --batch-size: the images are on the device, where a batch of more of them is made "
            "in as many operations.",
        ),
        (
            [measured(1, 2, data=0.3, device="cpu", loop="fast")],
            "data",
            "Data is the bottleneck of 1x2: the ranks make their batches for 30.0 % of a step.",
            "First give the ranks more CPU cores: a larger shape, or fewer processes a node.",
        ),
        (
            [measured(1, 1, data=0.3, device="cpu")],
            "data",
            "Data is the bottleneck of 1x1: the ranks wait for their batch for 30.0 % of a step.",
            "First give the ranks more CPU cores: a larger shape.",
        ),
        (  # the seed's: 17 of 38 ms
            [ONE, measured(2, 2, step_ms=38.3, communication=0.4465, epoch_s=7.5, **RESNET18)],
            "network",
            "Communication over the network is the bottleneck of 2x2: 17.1 ms (44.6 %) of a step, for 44.7 MB of "
            "gradients.",
            "First take --compression half, which halves what is sent; a faster network",
        ),
        (
            [ONE, measured(2, 1, communication=0.4, data=0.3, parameters=10**6, gradient_bytes=2_000_000)],
            "network",
            "Communication over the network is the bottleneck of 2x1: 16.0 ms (40.0 %) of a step, for 2.0 MB of "
            "gradients.",
            "First take a larger --batch-size, which sends less often; a faster network",
        ),
        (
            [ONE, measured(1, 4, communication=0.3)],
            "links",
            "Communication within the node is the bottleneck of 1x4: 12.0 ms (30.0 %) of a step.",
            "First take --compression half, which halves what is sent; GPUs that are linked by NVLink",
        ),
        (
            [measured(1, 4, communication=0.3, device="cpu")],
            "links",
            "Communication within the node is the bottleneck of 1x4: 12.0 ms (30.0 %) of a step.",
            "First take --compression half, which halves what is sent; one process sends nothing, and can use all of "
            "the node's cores.",
        ),
        (  # PowerSGD sends less than half as much
            [ONE, measured(2, 1, communication=0.4, parameters=11_181_642)],
            "network",
            "Communication over the network is the bottleneck of 2x1: 16.0 ms (40.0 %) of a step.",
            "First take a larger --batch-size, which sends less often; a faster network between the nodes, or more "
            "GPUs in fewer nodes, are the lasting way out (gpuctl shapes lists them).",
        ),
        (
            [ONE, measured(2, 1, communication=0.4, device="cpu")],
            "network",
            "Communication over the network is the bottleneck of 2x1: 16.0 ms (40.0 %) of a step.",
            "First take --compression half, which halves what is sent; a faster network between the nodes, or fewer "
            "and larger nodes, are the lasting way out (gpuctl shapes lists them).",
        ),
        (  # the batch of all ranks together is the same
            [ONE, measured(2, 2, step_ms=4.0, communication=0.5, batch_size=16)],
            "small_batch",
            "The batch of 16 is too small for 2x2: each rank computes for 2.00 ms, and then waits for the others for "
            "2.00 ms (50.0 %) of a step.",
            "First take a larger --global-batch-size: fewer steps an epoch",
        ),
        (
            [ONE, measured(2, 2, epoch_s=8.0, communication=0.05, batch_size=16)],
            "small_batch",
            "The batch of a rank is 16 on 2x2 and 64 on 1x1: each rank does 62.5 % of what one of 1x1 does.",
            "First take a larger --global-batch-size, or the same --batch-size on each layout",
        ),
        (
            [ONE, measured(2, 1, step_ms=4.0, communication=0.5, gradient_bytes=400_000)],
            "small_batch",
            "The batch of 64 is too small for 2x1: each rank computes for 2.00 ms, and then waits for the others for "
            "2.00 ms (50.0 %) of a step, for 0.4 MB of gradients.",
            "First take a larger --batch-size",
        ),
        (  # few bytes wait for an answer, not for bandwidth
            [ONE, measured(2, 1, step_ms=40.0, communication=0.5, gradient_bytes=200_000)],
            "small_batch",
            "The batch of 64 is too small for 2x1: each rank computes for 20.0 ms, and then waits for the others for "
            "20.0 ms (50.0 %) of a step, for 0.2 MB of gradients.",
            "First take a larger --batch-size",
        ),
        (
            [ONE, measured(2, 1, step_ms=None, communication=0.5, batch_size=None)],
            "network",
            "Communication over the network is the bottleneck of 2x1: 50.0 % of a step.",
            "First take --compression half",
        ),
        (
            [ONE, measured(2, 1, epoch_s=34.0, step_ms=90.0, communication=0.21, device="cpu", **RESNET18)],
            "contention",
            "The ranks of 2x1 slow each other down: each computes for 71.1 ms of a step, one of 1x1 for 40.0 ms, so "
            "they share CPU cores or memory.",
            "First take fewer processes a node, or machines of their own.",
        ),
        (
            [ONE, measured(2, 1, epoch_s=18.0, communication=0.05, device="cpu")],
            "contention",
            "The ranks of 2x1 slow each other down: they hardly wait for each other, and yet each does 55.6 % of "
            "what one of 1x1 does, so they share CPU cores or memory.",
            "First take fewer processes a node, or machines of their own.",
        ),
        (
            [measured(1, 1, data=0.1, precision="bf16")],
            "compute",
            "Compute is the bottleneck of 1x1: 90.0 % of a step.",
            "First take a faster GPU or CPU for each rank, or more ranks: --layouts tells whether they help.",
        ),
        (  # the largest layout is judged, wherever it stands
            [measured(2, 2, data=0.9), measured(1, 1, communication=0.9)],
            "data",
            "Data is the bottleneck of 2x2: the ranks wait for their batch for 90.0 % of a step.",
            "First give the ranks more CPU cores",
        ),
    ],
)  # fmt: skip
def test_bottleneck_names_limit_and_first_advice(
    layouts: list[Measured], kind: str, sentence: str, advice: str
) -> None:
    result = bottleneck(layouts)
    assert (result.kind, result.sentence) == (kind, sentence)
    assert result.advice.startswith(advice)
    assert result.advice.endswith(".")


def test_bottleneck_is_none_when_step_shares_are_unknown() -> None:
    unknown = Repetition(run="R", epoch_s=1.0, samples=10, step_ms=StepMs(), share=Share(compute=1.0))
    layout = Layout(nodes=1, nproc=1)
    result: Bottleneck | None = bottleneck(
        [Measured(layout=layout, job=Job(), hourly_usd=None, repetitions=(unknown,))]
    )
    assert result is None


@pytest.mark.parametrize(
    ("epochs_s", "message"),
    [
        ((10.0, 10.5, 11.0), []),
        ((10.0, 10.0, 12.0), []),
        (
            (8.0, 10.0, 12.0),
            [
                "The repetitions of 1x1 lie 40.0 % of their median apart: repeat more often (--repeats), or take "
                "more epochs."
            ],
        ),
    ],
)
def test_doubts_report_repetitions_that_differ_widely(
    epochs_s: tuple[float, ...], message: list[str]
) -> None:
    repetitions = tuple(
        Repetition(run="R", epoch_s=epoch_s, samples=10, step_ms=StepMs(), share=Share())
        for epoch_s in epochs_s
    )
    layout = Layout(nodes=1, nproc=1)
    assert doubts([Measured(layout=layout, job=Job(), hourly_usd=None, repetitions=repetitions)]) == message


def test_doubts_report_superlinear_speedup() -> None:
    assert doubts([ONE, measured(2, 1, epoch_s=9.6)]) == []
    assert doubts([ONE, measured(2, 1, epoch_s=5.0)]) == [
        "A rank of 2x1 is 2.0 times as fast as one of 1x1, which something held up: measure again when it has its "
        "node to itself."
    ]


def test_hosts_of_one_machine_are_never_advised_to_be_replaced() -> None:
    alone = replace(ONE, one_machine=True)
    two = replace(measured(2, 1, own_ms=(40.0, 60.0), communication=0.3), one_machine=True)
    result = bottleneck([alone, two])
    assert (result.kind, result.advice) == (
        "straggler",
        "These hosts share one machine: first measure on machines of their own.",
    )
    assert doubts([alone, two]) == ["The hosts share one machine: this is no measurement of machines."]
    assert doubts([alone]) == []


def test_layouts_whose_figures_contradict_themselves_are_named() -> None:
    usual, fast = measured(2, 1, epoch_s=10.5), measured(2, 1, epoch_s=5.0)
    assert contradicting([ONE, usual]) == []
    assert contradicting([ONE, fast]) == [ONE, fast]
    apart = replace(
        usual, repetitions=tuple(replace(usual.repetitions[0], epoch_s=s) for s in (10.0, 11.0, 17.0))
    )
    assert contradicting([ONE, apart]) == [apart]
    assert comparable([ONE, apart]) == [ONE]


def test_bottleneck_reports_disturbed_base_layout() -> None:
    result = bottleneck([ONE, measured(2, 1, epoch_s=2.0)])
    assert (result.kind, result.sentence) == (
        "disturbed",
        "Something else held up 1x1, whose rank is slower than each of 2x1: the speed-ups say nothing.",
    )


def test_doubts_report_differing_batch_sizes_of_layouts() -> None:
    assert doubts([ONE, measured(2, 1, epoch_s=5.0, batch_size=32)]) == [
        "A rank's batch is not the same on each layout, so neither is its step: --batch-size, without "
        "--global-batch-size, has speed-ups compare the layouts alone."
    ]
