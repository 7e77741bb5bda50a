"""Forecasts, with exact figures."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpuctl.scaling.forecast import (
    Forecast,
    Range,
    Step,
    base_for,
    forecast,
    outlook,
    ring_ms,
    step_of,
    steps_an_epoch,
)
from gpuctl.scaling.measurements import Job, Layout, Measured, Repetition, parse_layouts
from gpuctl.scaling.network_links import (
    UNMEASURED_HOP_S,
    Bandwidth,
    Network,
    Source,
    network_of,
    nominal_gb_s,
    rounds,
)
from inventories.codec import to_json
from inventories.runs.result import Share, StepMs

RESNET18_BYTES = 44_726_568
"""11,181,642 weights of four bytes."""


def layout(name: str) -> Layout:
    return parse_layouts(name, "--forecast")[0]


def link(gb_s: float, source: Source = "measured", hop_s: float = 0.0) -> Bandwidth:
    return Bandwidth(gb_s=gb_s, source=source, hop_s=hop_s)


def step(name: str = "1x1", **changed: Any) -> Step:
    values: dict[str, Any] = {
        "layout": layout(name), "data_ms": 0.0, "compute_ms": 30.0, "gradient_bytes": 40_000_000, "buckets": 3,
        "batch_size": 100, "samples": 10_000,
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
def test_ring_ms_computes_ring_allreduce_time(size: int, ranks: int, gb_s: float, ms: float) -> None:
    assert ring_ms(size, ranks, gb_s) == pytest.approx(ms, rel=1e-9)


@pytest.mark.parametrize(("ranks", "steps"), [(1, 782), (2, 391), (4, 196), (8, 98), (1024, 1)])
def test_steps_an_epoch_divides_samples_by_batch_and_ranks(ranks: int, steps: int) -> None:
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
        # The vendor's figure: only half as fast at the slow end.
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
        # A hop of 1 ms, two hops an all-reduce, three of them: at the slow end.
        (
            step(), "2x1", Network(between=link(1.0, hop_s=0.001)),
            Range(fast=20.0, slow=46.0), Range(fast=50.0, slow=76.0), 50,
        ),
        # Few bytes take the latency, hardly more.
        (
            step(gradient_bytes=1000, buckets=1), "2x1", Network(between=link(1.0, hop_s=0.5)),
            Range(fast=0.0, slow=1000.001), Range(fast=30.0, slow=1030.001), 50,
        ),
    ],
)  # fmt: skip
def test_forecast_computes_step_and_epoch_range_of_layout(
    start: Step, to: str, network: Network, communication_ms: Range, step_ms: Range, steps: int
) -> None:
    result = forecast(start, layout(to), network)
    epoch_s = Range(fast=step_ms.fast * steps / 1000, slow=step_ms.slow * steps / 1000)
    assert result == Forecast(
        layout=layout(to),
        steps=steps,
        bandwidth=result.bandwidth,
        buckets=start.buckets,
        latency_ms=result.latency_ms,
        communication_ms=communication_ms,
        step_ms=step_ms,
        epoch_s=epoch_s,
        samples_per_s=Range(fast=10_000 / epoch_s.fast, slow=10_000 / epoch_s.slow),
    )


@pytest.mark.parametrize(
    ("to", "network"),
    [("2x1", Network()), ("2x1", Network(within=link(9.0))), ("1x2", Network(between=link(1.0)))],
)
def test_forecast_is_none_without_bandwidth(to: str, network: Network) -> None:
    assert forecast(step(), layout(to), network) is None


def test_forecast_range_contains_measured_two_node_step() -> None:
    """A machine with two A10 took 391 steps of 21.2 ms. With a second machine over 48 Gbps, 38.3 ms were measured."""
    item = measured("1x2", 391 * 0.0212, share=Share(compute=1.0, communication=0.0, data=0.0))
    start = step_of(item)
    assert start.compute_ms == pytest.approx(21.2)
    result = forecast(start, layout("2x2"), Network(between=link(6.0, "shape"), within=link(20.0)))
    assert result.steps == 196
    assert result.step_ms.fast == pytest.approx(21.2)
    assert result.step_ms.slow == pytest.approx(21.2 + 2 * 11.181642)
    assert result.step_ms.fast < 38.3 < result.step_ms.slow
    assert result.epoch_s.slow == pytest.approx(196 * 0.0435632840)
    without = forecast(start, layout("2x2"), Network(between=link(6.0)))
    assert without.step_ms.slow == pytest.approx(32.381642)


@pytest.mark.parametrize(
    ("share", "job"),
    [
        (Share(), Job(batch_size=64, gradient_bytes=1000)),
        (Share(compute=1.0, communication=0.0, data=0.0), Job(batch_size=64)),
        (Share(compute=1.0, communication=0.0, data=0.0), Job(gradient_bytes=1000)),
    ],
)
def test_step_of_is_none_without_shares_gradients_or_batch(share: Share, job: Job) -> None:
    item = measured("1x1", 10.0, share=share, job=job)
    assert step_of(item) is None
    result = outlook(layout("2x1"), [item], Network(between=link(1.0)), gpus_a_node=1)
    assert result.forecast is None
    assert result.why == "The runs on 1x1 did not tell their steps' shares, gradients and batch."
    assert (result.speed_up, result.efficiency, result.epoch_usd) == (None, None, None)


def test_step_of_is_a_steady_one_whatever_its_epochs_took() -> None:
    [slow] = measured("2x1", 60.0).repetitions
    job = Job(batch_size=64, gradient_bytes=RESNET18_BYTES)
    known = measured("2x1", 60.0, job=job)
    steady = replace(known, repetitions=(replace(slow, steady_per_s=2 * 64 / 0.040),))
    result = step_of(steady)
    assert (result.data_ms, result.compute_ms) == (pytest.approx(10.0), pytest.approx(30.0))
    assert steady.speed_up(known) == pytest.approx(2 * 64 / 0.040 / (50_000 / 60))


def test_step_of_excludes_measured_communication() -> None:
    item = measured("2x1", 391 * 0.040, share=Share(compute=0.5, communication=0.4, data=0.1))
    start = step_of(item)
    assert (start.compute_ms, start.data_ms) == (pytest.approx(20.0), pytest.approx(4.0))


@pytest.mark.parametrize(
    ("to", "existing", "base"),
    [
        ("2x4", ["1x1"], "1x1"),
        ("2x4", ["1x1", "1x4", "2x2"], "1x4"),
        ("4x8", ["1x1", "1x2", "2x2"], "2x2"),
        ("2x2", ["1x1", "1x2", "2x2"], "1x2"),  # from a smaller one, to compare it
        ("1x1", ["1x2", "2x2"], "2x2"),
        ("2x1", ["2x1"], "2x1"),
    ],
)
def test_base_for_picks_layout_to_forecast_from(to: str, existing: Sequence[str], base: str) -> None:
    result = base_for(layout(to), [measured(name, 10.0) for name in existing])
    assert result.layout.name == base


def test_outlook_computes_cost_speedup_and_efficiency() -> None:
    item = measured("1x2", 391 * 0.020, usd=4.0, share=Share(compute=1.0, communication=0.0, data=0.0))
    two = measured("2x2", 5.0, usd=8.0)
    result = outlook(layout("2x2"), [item, two], Network(between=link(6.0)), gpus_a_node=2)
    assert result.forecast is not None
    assert result.measured is two
    assert (result.base, result.first, result.why) == (item, item, None)
    # Two machines: twice the price for about half the time.
    seconds = 196 * (20.0 + 11.181642) / 1000
    assert result.epoch_usd == Range(
        fast=pytest.approx(8.0 * 196 * 0.020 / 3600), slow=pytest.approx(8.0 * seconds / 3600)
    )
    assert result.speed_up == Range(fast=pytest.approx(391 / 196), slow=pytest.approx(391 * 0.020 / seconds))
    assert result.efficiency == Range(
        fast=pytest.approx(391 / 196 / 2), slow=pytest.approx(391 * 0.010 / seconds)
    )
    document = result.document()
    assert to_json(document)["from"] == "1x2"
    assert (document.bandwidth_gb_s, document.bandwidth_source) == (6.0, "measured")
    assert document.measured_epoch_s == 5.0


def test_outlook_document_has_null_for_unknown_values() -> None:
    result = outlook(layout("4x8"), [measured("1x1", 10.0)], Network(), gpus_a_node=8).document()
    known = {key: value for key, value in to_json(result).items() if value is not None}
    assert known == {
        "layout": "4x8", "nnodes": 4, "nproc_per_node": 8, "world_size": 32, "from": "1x1",
        "why": "The bandwidth between the nodes is not known: name it with --bandwidth-gb-s.",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("to", "gpus", "device", "usd"),
    [
        ("2x2", 2, "cuda:0", 8.0),
        ("2x1", 2, "cuda:0", 8.0),  # one GPU of each is idle, and paid for
        ("4x8", 2, "cuda:0", None),
        ("4x8", 8, "cuda:0", 16.0),
        ("4x2", 1, "cpu", 16.0),  # not on its GPU
    ],
)
def test_outlook_has_no_cost_for_nodes_with_more_gpus(
    to: str, gpus: int, device: str, usd: float | None
) -> None:
    job = Job(device=device, batch_size=64, gradient_bytes=RESNET18_BYTES)
    item = measured("1x2", 10.0, usd=4.0, job=job)
    result = outlook(layout(to), [item], Network(between=link(6.0), within=link(6.0)), gpus_a_node=gpus)
    if usd is None:
        assert result.epoch_usd is None
        assert result.why == (
            "No cost: the measured nodes have 2 GPUs, and the price of nodes with 8 is not known (gpuctl shapes "
            "lists some)."
        )
    else:
        assert result.why is None
        assert result.epoch_usd.slow == pytest.approx(usd * result.forecast.epoch_s.slow / 3600)


@pytest.mark.parametrize(
    ("to", "existing", "base"),
    [
        ("2x1", ["1x1"], "1x1"),
        ("1x2", ["1x1"], None),
        ("2x2", ["1x1", "2x1"], None),
        ("4x2", ["1x2", "4x1"], "1x2"),
        ("1x2", ["1x1", "2x2"], "2x2"),  # as many a node goes before smaller
    ],
)
def test_outlook_on_cpu_needs_base_with_as_many_processes(
    to: str, existing: Sequence[str], base: str | None
) -> None:
    job = Job(device="cpu", batch_size=64, gradient_bytes=RESNET18_BYTES)
    known = [measured(name, 10.0, job=job) for name in existing]
    result = outlook(layout(to), known, Network(between=link(6.0), within=link(6.0)), gpus_a_node=0)
    if base is None:
        assert (result.forecast, result.why) == (
            None,
            "Processes that share a node's CPU slow each other down: measure one with 2 (--layouts 1x2) to foretell "
            "more of them.",
        )
    else:
        assert (result.forecast is None, result.base.layout.name, result.why) == (False, base, None)


def test_step_of_counts_buckets_by_bucket_size() -> None:
    item = measured("1x1", 10.0)
    assert [step_of(item, mb).buckets for mb in (None, 25.0, 100.0, 1.0)] == [3, 2, 1, 43]  # type: ignore[union-attr]
    result = outlook(
        layout("2x1"), [item], Network(between=link(1.0, hop_s=0.001)), gpus_a_node=1, bucket_mb=1.0
    )
    assert result.document().buckets == 43
    assert result.document().latency_ms == pytest.approx(2.0)


def line(
    scope: str, size: int, gb_s: float, rank: int = 0, *, ranks: int = 2, latency_s: float = 0.0
) -> dict[str, Any]:
    """Build a metrics line for a link of `gb_s` with a latency; bus bandwidth is computed as in `train.allreduce`."""
    seconds = latency_s + rounds(ranks) * size / (gb_s * 1e9)
    return {
        "event": "allreduce", "scope": scope, "bytes": size, "world_size": ranks, "rank": rank, "seconds": seconds,
        "bus_gb_s": rounds(ranks) * size / seconds / 1e9,
    }  # fmt: skip


TWO_NODES = [
    line("all", 64_000, 2.0), line("all", 4_000_000, 2.0), line("all", 64_000_000, 5.0),
    line("node", 64_000, 20.0), line("node", 4_000_000, 20.0), line("node", 64_000_000, 90.0),
    line("node", 64_000, 15.0, rank=2), line("node", 4_000_000, 15.0, rank=2), line("node", 64_000_000, 80.0, rank=2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "nnodes", "size", "typed", "nominal", "between", "within"),
    [
        (TWO_NODES, 2, 26_000_000, None, 6.0, (5.0, "measured"), (80.0, "measured")),
        (TWO_NODES, 2, 1_000_000, None, None, (2.0, "measured"), (15.0, "measured")),
        (
            TWO_NODES,
            2,
            10_000,
            None,
            None,
            (2.0, "measured"),
            (15.0, "measured"),
        ),  # the smallest size measures the latency
        (TWO_NODES, 2, 26_000_000, 1.5, None, (1.5, "given"), (80.0, "measured")),
        (TWO_NODES[:3], 1, 26_000_000, None, 6.0, (6.0, "shape"), (5.0, "measured")),
        (TWO_NODES[:1], 2, 26_000_000, None, 6.0, (2.0, "measured"), None),
        ([], 1, 26_000_000, None, 6.0, (6.0, "shape"), None),
        ([], 1, 0, None, None, None, None),
    ],
)
def test_network_of_picks_given_measured_or_nominal_bandwidth(
    lines: list[Any],
    nnodes: int,
    size: int,
    typed: float | None,
    nominal: float | None,
    between: tuple[float, Source] | None,
    within: tuple[float, Source] | None,
) -> None:
    result = network_of(lines, nnodes=nnodes, bucket_bytes=size, given_gb_s=typed, nominal_gb_s=nominal)
    for known, expected in ((result.between, between), (result.within, within)):
        assert (known and (pytest.approx(known.gb_s), known.source)) == expected


@pytest.mark.parametrize(
    ("lines", "nnodes", "between_s", "within_s"),
    [
        # Two ranks: their messages go over two hops.
        ([line("all", 64_000, 1.0, latency_s=0.002), line("all", 4_000_000, 1.0)], 2, 0.001, None),
        ([line("all", 64_000, 1.0, latency_s=0.002), line("all", 4_000_000, 1.0)], 1, None, 0.001),
        # A smallest size that is as fast as the others.
        ([line("all", 64_000, 2.0), line("all", 4_000_000, 1.0)], 2, 0.0, None),
        # Two nodes of two: the slower node's; in a ring over both nodes the hops between them take all the time.
        (
            [
                line("all", 64_000, 1.0, ranks=4, latency_s=0.006), line("all", 4_000_000, 1.0, ranks=4),
                line("node", 64_000, 9.0, latency_s=0.0001), line("node", 4_000_000, 9.0),
                line("node", 64_000, 9.0, rank=2, latency_s=0.0002), line("node", 4_000_000, 9.0, rank=2),
            ],
            2, 0.002, 0.0001,
        ),
    ],
)  # fmt: skip
def test_network_of_derives_latency_from_smallest_size(
    lines: list[Any], nnodes: int, between_s: float | None, within_s: float | None
) -> None:
    result = network_of(lines, nnodes=nnodes, bucket_bytes=4_000_000)
    for known, expected in ((result.between, between_s), (result.within, within_s)):
        assert (known and known.hop_s) == (expected if expected is None else pytest.approx(expected))


def test_network_of_assumes_latency_when_unmeasured() -> None:
    for known in ({"given_gb_s": 1.0}, {"nominal_gb_s": 1.0}):
        between = network_of([], nnodes=1, bucket_bytes=1000, **known).between
        assert between.hop_s == UNMEASURED_HOP_S
    slow = [line("all", 64_000, 1.0, latency_s=0.002), line("all", 4_000_000, 1.0)]
    between = network_of(slow, nnodes=2, bucket_bytes=1000, given_gb_s=9.0).between
    assert between.hop_s == pytest.approx(0.001), "a bandwidth that is given takes no latency away"


@pytest.mark.parametrize(
    ("to", "ms"),
    [
        ("1x1", 0.0),
        ("2x1", 2.0),
        ("4x1", 6.0),
        ("1x4", 0.6),  # six hops within
        ("2x4", 2 * 7 / 8 * (2 * 1.0 + 6 * 0.1)),
    ],
)
def test_network_latency_counts_hops_of_the_ring(to: str, ms: float) -> None:
    both = Network(between=link(1.0, hop_s=0.001), within=link(9.0, hop_s=0.0001))
    assert both.latency_s(layout(to)) * 1000 == pytest.approx(ms)


def test_forecast_slow_end_bounds_measured_allreduce_time() -> None:
    """Bandwidth that grows with the size, and latency: a step of one bucket of each measured size."""
    speeds = {64_000: 0.05, 4_000_000: 0.8, 64_000_000: 1.1}
    lines = [line("all", size, gb_s, latency_s=0.0004) for size, gb_s in speeds.items()]
    for measured_line in lines:
        size = measured_line["bytes"]
        network = network_of(lines, nnodes=2, bucket_bytes=size)
        result = forecast(step(gradient_bytes=size, buckets=1), layout("2x1"), network)
        slow_ms, took_ms = result.communication_ms.slow, measured_line["seconds"] * 1000
        assert took_ms <= slow_ms * (1 + 1e-9)
        assert slow_ms <= took_ms * 1.35


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
def test_nominal_gb_s_reads_shape_bandwidth_from_catalog(
    shape: str | None, rdma: bool, gb_s: float | None
) -> None:
    assert nominal_gb_s(shape, rdma=rdma) == gb_s
