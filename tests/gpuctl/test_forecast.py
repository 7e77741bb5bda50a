"""Forecasts, with exact figures."""

from collections.abc import Sequence
from typing import Any

import pytest

from gpuctl.forecast import (
    Bandwidth,
    Forecast,
    Network,
    Range,
    Source,
    Step,
    base_for,
    forecast,
    outlook,
    ring_ms,
    step_of,
    steps_an_epoch,
)
from gpuctl.links import network_of, nominal_gb_s
from gpuctl.scaling import Job, Layout, Measured, Repetition, parse_layouts
from inventories.run import Share, StepMs

RESNET18_BYTES = 44_726_568
"""11,181,642 weights of four bytes."""


def layout(name: str) -> Layout:
    return parse_layouts(name, "--forecast")[0]


def link(gb_s: float, source: Source = "measured") -> Bandwidth:
    return Bandwidth(gb_s=gb_s, source=source)


def step(name: str = "1x1", **changed: Any) -> Step:
    values: dict[str, Any] = {
        "layout": layout(name), "data_ms": 0.0, "compute_ms": 30.0, "gradient_bytes": 40_000_000, "batch_size": 100,
        "samples": 10_000,
    }  # fmt: skip
    return Step(**{**values, **changed})


def measured(
    name: str, epoch_s: float, *, share: Share | None = None, usd: float | None = None, job: Job | None = None
) -> Measured:
    return Measured(
        layout=layout(name),
        job=job or Job(batch_size=64, gradient_bytes=RESNET18_BYTES),
        hourly_usd=usd,
        repetitions=(
            Repetition(
                run="R", epoch_s=epoch_s, samples=50_000, step_ms=StepMs(),
                share=Share(compute=0.75, communication=0.0, data=0.25) if share is None else share,
            ),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "ranks", "gb_s", "ms"),
    [
        (40_000_000, 2, 1.0, 40.0),  # 2 (n - 1) / n is 1
        (40_000_000, 4, 1.0, 60.0),
        (40_000_000, 8, 10.0, 7.0),
        (40_000_000, 1, 1.0, 0.0),
        (RESNET18_BYTES, 4, 6.0, 11.181642),  # 67 MB over 48 Gbps
        (1_250_000, 2, 0.0125, 100.0),  # over 100 Mbit/s
    ],
)
def test_a_ring(size: int, ranks: int, gb_s: float, ms: float) -> None:
    assert ring_ms(size, ranks, gb_s) == pytest.approx(ms, rel=1e-9)


@pytest.mark.parametrize(("ranks", "steps"), [(1, 782), (2, 391), (4, 196), (8, 98), (1024, 1)])
def test_the_seeds_steps_an_epoch(ranks: int, steps: int) -> None:
    assert steps_an_epoch(50_000, 64, ranks) == steps


@pytest.mark.parametrize(
    ("start", "to", "network", "communication_ms", "step_ms", "steps"),
    [
        # One rank needs no network.
        (step(), "1x1", Network(), Range(fast=0.0, slow=0.0), Range(fast=30.0, slow=30.0), 100),
        # 40 ms of averaging, of which the 20 ms of the backward pass hide half.
        (step(), "2x1", Network(between=link(1.0)), Range(fast=20.0, slow=40.0), Range(fast=50.0, slow=70.0), 50),
        # A network that is fast enough to be hidden.
        (step(), "2x1", Network(between=link(4.0)), Range(fast=0.0, slow=10.0), Range(fast=30.0, slow=40.0), 50),
        # Waiting for data hides nothing.
        (
            step(data_ms=15.0, compute_ms=15.0), "2x1", Network(between=link(1.0)),
            Range(fast=30.0, slow=40.0), Range(fast=60.0, slow=70.0), 50,
        ),
        # The vendor's figure: half of it at the slow end.
        (
            step(), "2x1", Network(between=link(1.0, "shape")),
            Range(fast=20.0, slow=80.0), Range(fast=50.0, slow=110.0), 50,
        ),
        # The slowest link of the ring decides.
        (
            step(), "2x2", Network(between=link(1.0), within=link(10.0)),
            Range(fast=40.0, slow=60.0), Range(fast=70.0, slow=90.0), 25,
        ),
        (
            step(), "2x2", Network(between=link(10.0), within=link(1.0)),
            Range(fast=40.0, slow=60.0), Range(fast=70.0, slow=90.0), 25,
        ),
        (step(), "1x2", Network(between=link(1.0), within=link(4.0)), Range(fast=0.0, slow=10.0),
         Range(fast=30.0, slow=40.0), 50),
        # Within a node is taken to be no slower.
        (step(), "2x2", Network(between=link(1.0)), Range(fast=40.0, slow=60.0), Range(fast=70.0, slow=90.0), 25),
    ],
)  # fmt: skip
def test_a_layout(
    start: Step, to: str, network: Network, communication_ms: Range, step_ms: Range, steps: int
) -> None:
    found = forecast(start, layout(to), network)
    epoch_s = Range(fast=step_ms.fast * steps / 1000, slow=step_ms.slow * steps / 1000)
    assert found is not None
    assert found == Forecast(
        layout=layout(to),
        steps=steps,
        bandwidth=found.bandwidth,
        communication_ms=communication_ms,
        step_ms=step_ms,
        epoch_s=epoch_s,
        samples_per_s=Range(fast=10_000 / epoch_s.fast, slow=10_000 / epoch_s.slow),
    )


@pytest.mark.parametrize(
    ("to", "network"),
    [("2x1", Network()), ("2x1", Network(within=link(9.0))), ("1x2", Network(between=link(1.0)))],
)
def test_no_bandwidth_no_forecast(to: str, network: Network) -> None:
    assert forecast(step(), layout(to), network) is None


def test_the_seeds_second_machine() -> None:
    """One machine of two A10: 391 steps of 21.2 ms. With a second one over 48 Gbps, 38.3 ms were measured."""
    one = measured("1x2", 391 * 0.0212, share=Share(compute=1.0, communication=0.0, data=0.0))
    start = step_of(one)
    assert start is not None
    assert start.compute_ms == pytest.approx(21.2)
    found = forecast(start, layout("2x2"), Network(between=link(6.0, "shape"), within=link(20.0)))
    assert found is not None
    assert found.steps == 196
    assert found.step_ms.fast == pytest.approx(21.2)
    assert found.step_ms.slow == pytest.approx(21.2 + 2 * 11.181642)
    assert found.step_ms.fast < 38.3 < found.step_ms.slow
    assert found.epoch_s.slow == pytest.approx(196 * 0.0435632840)
    without = forecast(start, layout("2x2"), Network(between=link(6.0)))
    assert without is not None
    assert without.step_ms.slow == pytest.approx(32.381642)


@pytest.mark.parametrize(
    ("share", "job"),
    [
        (Share(), Job(batch_size=64, gradient_bytes=1000)),
        (Share(compute=1.0, communication=0.0, data=0.0), Job(batch_size=64)),
        (Share(compute=1.0, communication=0.0, data=0.0), Job(gradient_bytes=1000)),
    ],
)
def test_a_job_that_does_not_tell_enough_has_no_step(share: Share, job: Job) -> None:
    one = measured("1x1", 10.0, share=share, job=job)
    assert step_of(one) is None
    found = outlook(layout("2x1"), [one], Network(between=link(1.0)))
    assert found.forecast is None
    assert found.why == "The runs on 1x1 did not tell their steps' shares, gradients and batch."
    assert (found.speed_up, found.efficiency, found.epoch_usd) == (None, None, None)


def test_communication_that_was_measured_is_not_counted_twice() -> None:
    one = measured("2x1", 391 * 0.040, share=Share(compute=0.5, communication=0.4, data=0.1))
    start = step_of(one)
    assert start is not None
    assert (start.compute_ms, start.data_ms) == (pytest.approx(20.0), pytest.approx(4.0))


@pytest.mark.parametrize(
    ("to", "there", "base"),
    [
        ("2x4", ["1x1"], "1x1"),
        ("2x4", ["1x1", "1x4", "2x2"], "1x4"),
        ("4x8", ["1x1", "1x2", "2x2"], "2x2"),
        ("2x2", ["1x1", "1x2", "2x2"], "1x2"),  # from a smaller one, to compare it
        ("1x1", ["1x2", "2x2"], "2x2"),
        ("2x1", ["2x1"], "2x1"),
    ],
)
def test_what_a_forecast_starts_from(to: str, there: Sequence[str], base: str) -> None:
    found = base_for(layout(to), [measured(name, 10.0) for name in there])
    assert found.layout.name == base


def test_what_a_layout_would_cost() -> None:
    one = measured("1x2", 391 * 0.020, usd=4.0, share=Share(compute=1.0, communication=0.0, data=0.0))
    two = measured("2x2", 5.0, usd=8.0)
    found = outlook(layout("2x2"), [one, two], Network(between=link(6.0)))
    assert found.forecast is not None
    assert found.measured is two
    assert (found.base, found.first, found.why) == (one, one, None)
    # Two machines: twice the price for about half the time.
    seconds = 196 * (20.0 + 11.181642) / 1000
    assert found.epoch_usd == Range(
        fast=pytest.approx(8.0 * 196 * 0.020 / 3600), slow=pytest.approx(8.0 * seconds / 3600)
    )
    assert found.speed_up == Range(fast=pytest.approx(391 / 196), slow=pytest.approx(391 * 0.020 / seconds))
    assert found.efficiency == Range(
        fast=pytest.approx(391 / 196 / 2), slow=pytest.approx(391 * 0.010 / seconds)
    )
    document = found.document()
    assert document["from"] == "1x2"
    assert (document["bandwidth_gb_s"], document["bandwidth_source"]) == (6.0, "measured")
    assert document["measured_epoch_s"] == 5.0


def test_what_is_not_known_is_null() -> None:
    found = outlook(layout("4x8"), [measured("1x1", 10.0)], Network()).document()
    known = {key: value for key, value in found.items() if value is not None}
    assert known == {
        "layout": "4x8", "nnodes": 4, "nproc_per_node": 8, "world_size": 32, "from": "1x1",
        "why": "The bandwidth between the nodes is not known: name it with --bandwidth-gb-s.",
    }  # fmt: skip


def line(scope: str, size: int, gb_s: float, rank: int = 0) -> dict[str, Any]:
    return {"event": "allreduce", "scope": scope, "bytes": size, "bus_gb_s": gb_s, "rank": rank}


TWO_NODES = [
    line("all", 4_000_000, 2.0), line("all", 64_000_000, 5.0), line("node", 4_000_000, 20.0),
    line("node", 4_000_000, 15.0, rank=2), line("node", 64_000_000, 90.0), line("node", 64_000_000, 80.0, rank=2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "nnodes", "size", "given", "nominal", "network"),
    [
        (TWO_NODES, 2, 44_000_000, None, 6.0, Network(between=link(5.0), within=link(80.0))),
        (TWO_NODES, 2, 200_000, None, None, Network(between=link(2.0), within=link(15.0))),
        (TWO_NODES, 2, 44_000_000, 1.5, None, Network(between=link(1.5, "given"), within=link(80.0))),
        (TWO_NODES[:2], 1, 44_000_000, None, 6.0, Network(between=link(6.0, "shape"), within=link(5.0))),
        ([], 1, 44_000_000, None, 6.0, Network(between=link(6.0, "shape"))),
        ([], 1, 0, None, None, Network()),
    ],
)
def test_which_figure_counts(
    lines: list[Any], nnodes: int, size: int, given: float | None, nominal: float | None, network: Network
) -> None:
    found = network_of(lines, nnodes=nnodes, gradient_bytes=size, given_gb_s=given, nominal_gb_s=nominal)
    assert found == network


@pytest.mark.parametrize(
    ("shape", "rdma", "gb_s"),
    [
        ("VM.GPU.A10.2", False, 6.0),
        ("VM.GPU.A10.2", True, 6.0),
        ("BM.GPU4.8", False, 6.25),
        ("BM.GPU4.8", True, 200.0),
        ("VM.Nobody.1", False, None),
        (None, True, None),
    ],
)
def test_the_catalogs_figure(shape: str | None, rdma: bool, gb_s: float | None) -> None:
    assert nominal_gb_s(shape, rdma=rdma) == gb_s
