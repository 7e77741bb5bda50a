"""A bench as people see it, and as a picture."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import RenderableType
from support import drawn

from gpuctl.errors import Failed, Usage
from gpuctl.output_files import check_picture
from gpuctl.scaling.forecast import outlook
from gpuctl.scaling.measurements import Job, Layout, Measured, Repetition, parse_layouts, title_of
from gpuctl.scaling.network_links import Bandwidth, Network
from gpuctl.scaling.plot import write_bench_plot
from gpuctl.tables.bench import bench_table, usd
from gpuctl.tables.layout import bar_of
from inventories.runs.result import Share, StepMs

JOB = Job(
    model="resnet18", dataset="cifar10", device="cuda:0", batch_size=64, parameters=11_181_642,
    gradient_bytes=44_726_568,
)  # fmt: skip


def measured(
    nodes: int, nproc: int, *epochs_s: float, communication: float | None = 0.0, usd: float | None = None
) -> Measured:
    share = Share() if communication is None else Share(
        compute=0.9 - communication, communication=communication, data=0.1
    )  # fmt: skip
    return Measured(
        layout=Layout(nodes=nodes, nproc=nproc),
        job=JOB,
        hourly_usd=usd,
        repetitions=tuple(
            Repetition(run="R", epoch_s=s, samples=50_000, step_ms=StepMs(p50=s * 5, p95=s * 6), share=share)
            for s in epochs_s
        ),
    )


SEED = (
    measured(1, 1, 16.4, 16.3, 16.6, usd=2.0),
    measured(1, 2, 8.3, 8.3, 8.3, usd=4.0),
    measured(2, 2, 7.5, 7.4, 7.6, communication=0.45, usd=8.0),
)
NETWORK = Network(between=Bandwidth(gb_s=6.0, source="shape", hop_s=1e-4))


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the width limit, as for output to a file: no line is folded."""
    monkeypatch.delenv("COLUMNS", raising=False)


def shown(table: RenderableType) -> list[str]:
    return drawn(table).splitlines()


def test_bench_table_shows_no_speed_up_over_a_layout_that_was_held_up() -> None:
    held_up = (measured(1, 1, 16.4), measured(2, 1, 1.1), measured(2, 2, 4.1))
    lines = shown(bench_table(held_up))
    assert [line.split()[7:9] for line in lines[2:5]] == [["x", "100.0"], ["-", "10"], ["-", "10"]], lines
    assert "7.5 times as fast" in "\n".join(lines)


def test_bench_table_shows_timings_bars_and_forecast() -> None:
    foretold = [
        outlook(layout, SEED, NETWORK, gpus_a_node=2) for layout in parse_layouts("2x2,4x2,1x8", "--forecast")
    ]
    lines = shown(bench_table(SEED, foretold))
    assert lines[:17] == [
        "resnet18 on cifar10, batch 64 a rank",
        "layout  epoch spread samples/s speed-up efficiency data compute comm. $/epoch",
        "1x1    16.4 s  1.8 %     3,049   1.00 x    100.0 % 10 %    90 %   0 % $0.0091",
        "1x2     8.3 s  0.0 %     6,024   1.98 x     98.8 % 10 %    90 %   0 % $0.0092",
        "2x2     7.5 s  2.7 %     6,667   2.19 x     54.7 % 10 %    45 %  45 %  $0.017",
        "median of 3 runs; spread: from the fastest to the slowest; speed-up over 1x1",
        "",
        "1x1  ███████████████████████████████████████████░░░░░ 16.4 s",
        "1x2  ██████████████████████░░ 8.3 s",
        "2x2  ██████████▓▓▓▓▓▓▓▓▓▓░░ 7.5 s",
        "     █ compute   ▓ communication   ░ data",
        "",
        "forecast overlap    step epoch samples/s speed-up efficiency $/epoch measured",
        "2x2      full    21.2 ms 4.2 s    12,017   3.94 x     98.5 % $0.0092    7.5 s",
        "         none    45.4 ms 8.9 s     5,620   1.84 x     46.1 %   $0.02        -",
        "4x2      full    22.6 ms 2.2 s    22,564   7.40 x     92.5 % $0.0098        -",
        "         none    51.3 ms 5.0 s     9,938   3.26 x     40.7 %  $0.022        -",
    ]
    assert lines[17:20] == [
        "overlap: of the gradients' averaging with the backward pass; each rank keeps its batch; 2x2 from the steps "
        "of 1x2, 4x2 from the steps of 2x2",
        "counts with the 6 GB/s that the vendor names, at the slow end with half of it and 100 µs a hop for each of "
        "3 buckets; two nodes would measure it",
        "1x8: The bandwidth within a node is not known: it is measured where a node has several GPUs.",
    ]
    assert lines[-1].startswith(
        "Communication over the network is the bottleneck of 2x2: 16.9 ms (45.0 %) of a step"
    )
    assert max(map(len, lines[:17])) <= 80, "it fits a terminal of the usual width"


@pytest.mark.parametrize("width", [50, 60, 72])
def test_bench_table_drops_columns_to_fit_narrow_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = shown(bench_table(SEED))
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert [line.split()[0] for line in lines[2:5]] == ["1x1", "1x2", "2x2"]
    assert "speed-up" in lines[1]
    assert "no room for spread" in "\n".join(lines)
    assert any(line.startswith("1x1  █") and line.endswith(" 16.4 s") for line in lines)


def test_bench_table_omits_unknown_columns_and_bottleneck() -> None:
    layout = parse_layouts("1x8", "--forecast")[0]
    item = measured(1, 1, 4.0, communication=None)
    lines = shown(bench_table([item], [outlook(layout, [item], NETWORK, gpus_a_node=2)]))
    assert lines[1].split() == ["layout", "epoch", "spread", "samples/s", "speed-up", "efficiency"]
    assert lines[3].startswith("median of 1 run;")
    assert lines[5] == "1x1  " + "━" * 48 + " 4.0 s"
    assert lines[8:] == [
        "no forecast",
        "1x8: The runs on 1x1 did not tell their steps' shares, gradients and batch.",
    ], "no bottleneck is made up"


def test_bench_table_omits_forecast_cost_of_other_node_sizes() -> None:
    layouts = parse_layouts("4x2,4x8", "--forecast")
    network = Network(between=Bandwidth(gb_s=6.0, source="measured"))
    lines = shown(bench_table(SEED, [outlook(layout, SEED, network, gpus_a_node=2) for layout in layouts]))
    cost = {
        line.split()[0]: line.split()[-1]
        for line in lines
        if line.startswith(("4x2      full", "4x8      full"))
    }
    assert cost == {"4x2": "$0.0098", "4x8": "-"}
    assert (
        "counts with 6 GB/s a link and direction, as measured, at the slow end with 0 µs a hop for each of 3 buckets"
        in lines
    )
    assert (
        "4x8: No cost: the measured nodes have 2 GPUs, and the price of nodes with 8 is not known (gpuctl shapes "
        "lists some)."
    ) in lines


def test_title_has_model_data_and_batch_size_or_its_range() -> None:
    item, two, four = (
        replace(layout, job=replace(JOB, batch_size=size))
        for layout, size in zip(SEED, (64, 32, 16), strict=True)
    )
    assert title_of([item, item]) == "resnet18 on cifar10, batch 64 a rank"
    assert title_of([item, two, four]) == "resnet18 on cifar10, batch 16 to 64 a rank"
    assert title_of([replace(item, job=Job())]) == ""
    assert title_of([replace(item, job=Job(script="train.py"))]) == "train.py"
    assert shown(bench_table([item, two]))[0] == "resnet18 on cifar10, batch 32 to 64 a rank"


@pytest.mark.parametrize("width", [1, 2, 7, 48])
def test_bar_of_parts_sum_to_requested_width(width: int) -> None:
    parts = bar_of(Share(compute=0.567, communication=0.333, data=0.1), width)
    assert sum(count for _, _, count in parts) == width
    assert all(count >= 0 for _, _, count in parts)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "-"),
        (0.0, "free"),
        (0.00001, "< $0.0001"),
        (0.0042, "$0.0042"),
        (0.123, "$0.12"),
        (12.3, "$12.30"),
    ],
)
def test_usd_formats_epoch_cost(value: float | None, message: str) -> None:
    assert usd(value) == message


@pytest.mark.parametrize("name", ["bench.png", "bench.svg", "bench.pdf"])
def test_write_bench_plot_writes_png_svg_and_pdf(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    check_picture(path)
    foretold = [
        outlook(layout, SEED, NETWORK, gpus_a_node=2) for layout in parse_layouts("2x2,4x2,1x8", "--forecast")
    ]
    assert write_bench_plot(SEED, foretold, path) == f"wrote {path}: a plot of 3 layouts"
    magic = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[path.suffix]
    assert path.read_bytes().startswith(magic)


def of_script(nodes: int, *speeds: float) -> Measured:
    """Build a script's measurements that contain only steps, from runs of 10 s."""
    repetitions = tuple(
        Repetition(
            run="R", epoch_s=10.0, samples=speed * 10, step_ms=StepMs(), share=Share(), unit="steps",
            by_epoch=False, from_log=True,
        )
        for speed in speeds
    )  # fmt: skip
    job = Job(script="$my$.py")
    return Measured(
        layout=Layout(nodes=nodes, nproc=1),
        job=job,
        hourly_usd=2.0,
        repetitions=repetitions,
        one_machine=True,
    )


def test_bench_table_of_a_script_has_its_speed_and_says_where_it_is_from() -> None:
    assert shown(bench_table([of_script(1, 2.5, 2.5), of_script(2, 4.0, 4.0)])) == [
        "$my$.py",
        "layout spread steps/s speed-up efficiency",
        "1x1     0.0 %     2.5   1.00 x    100.0 %",
        "2x1     0.0 %       4   1.60 x     80.0 %",
        "median of 2 runs; spread: from the fastest to the slowest; speed-up over 1x1; "
        "steps counted in rank 0's log, over whole runs with their start",
        "",
        "The hosts share one machine: this is no measurement of machines.",
    ]


def test_bench_table_marks_layouts_whose_figures_contradict_themselves() -> None:
    lines = shown(bench_table([of_script(1, 2.5), of_script(2, 9.0)]))
    assert [line.endswith("disturbed") for line in lines[2:4]] == [True, True]
    lines = shown(bench_table([of_script(1, 2.5, 2.5, 2.5), of_script(2, 2.0, 4.0, 8.0)]))
    assert [line.endswith("disturbed") for line in lines[2:4]] == [False, True]
    assert " x " not in lines[3], "its speed-up says nothing"


def test_bench_plot_names_what_was_measured_and_marks_what_is_above_ideal(tmp_path: Path) -> None:
    path = tmp_path / "bench.svg"
    write_bench_plot([of_script(1, 2.5), of_script(2, 5.1)], [], path)
    drawn = path.read_text()
    assert "<!-- $my$.py; layouts: nodes x processes -->" in drawn
    assert "<!-- 2x1 (above ideal) -->" in drawn
    assert "<!-- ideal -->" in drawn
    assert "<!-- an epoch -->" not in drawn, "no panel without figures"
    write_bench_plot([of_script(1, 2.5), of_script(2, 9.0)], [], path)
    assert "<!-- 2x1 (disturbed) -->" in path.read_text()
    assert "<!-- ideal -->" not in path.read_text(), "nothing is ideal beside a first layout that was held up"


def test_write_bench_plot_accepts_one_layout_without_shares(tmp_path: Path) -> None:
    path = tmp_path / "bench.svg"
    write_bench_plot([measured(1, 1, 4.0, communication=None)], [], path)
    assert path.read_bytes().startswith(b"<?xml")


def test_bench_plot_refuses_unusable_output_path(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"one of \.png, \.svg, \.pdf, but 'b\.txt' is none"):
        check_picture(Path("b.txt"))
    with pytest.raises(Usage, match=r"There is no folder '.*nowhere' for b\.png"):
        check_picture(tmp_path / "nowhere" / "b.png")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(Failed, match=r"b\.png' can't be written: Is a directory\. Name another file\."):
        write_bench_plot(SEED, [], tmp_path / "b.png")
