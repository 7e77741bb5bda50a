"""The tables as people see them, at 80 columns and without colour."""

import io
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import RenderableType
from support import a_result, a_run
from terminal import Terminal

from gpuctl.command_results.clusters import ClusterStatus, ClusterSummary, IdleStatus
from gpuctl.command_results.runs import RunInfo
from gpuctl.command_results.upkeep import ReapRow
from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.tables.lists import found_table, machines_table, runs_table
from gpuctl.tables.run import draw_run, run_table
from inventories.disk.store import RunFolder
from inventories.machine import MachineInfo
from inventories.runs.commit import Commit
from inventories.runs.end_reasons import Reason
from inventories.runs.result import (
    FirstError,
    RankResult,
    Result,
    RunStatus,
    Seconds,
    Share,
    StepMs,
    TrainSummary,
)
from provision.records import EndGuard

TRAIN = TrainSummary(
    model="cnn",
    dataset="digits",
    strategy="ddp",
    device="cpu",
    epochs=3,
    epoch_s=(1.1, 1.2, 1.3),
    samples_per_s=8412.0,
    loss=(0.912, 0.301, 0.12),
    accuracy=0.972,
    step_ms=StepMs(p50=3.1, p95=4.2),
    share=Share(compute=0.61, communication=0.3, data=0.09),
)
GOOD = a_result(
    script="built-in",
    nnodes=2,
    world_size=2,
    seconds=Seconds(
        total=16.0, connect=0.2, prepare=1.1, preflight=0.05, launch=0.3, train=12.0, collect=0.1
    ),
    train=TRAIN,
    ranks=(
        RankResult(rank=0, local_rank=0, node="node-0", device="cpu", exit_code=0, step_ms_p50=3.1, steps=20),
        RankResult(rank=1, local_rank=0, node="node-1", device="cpu", exit_code=0, step_ms_p50=5.0, steps=20),
    ),
)
BAD = replace(
    GOOD,
    status="failed",
    exit_code=3,
    train=TrainSummary(),
    ranks=(replace(GOOD.ranks[0], exit_code=-15), replace(GOOD.ranks[1], exit_code=3, step_ms_p50=None)),
    first_error=FirstError(
        rank=1, node="node-1", message="exit status 3: RuntimeError: boom", reason=Reason.EXIT_CODE
    ),
)


def drawn(table: RenderableType, options: Options | None = None) -> str:
    out = io.StringIO()
    Output(options or Options(), stdout=out).table(table)
    text = out.getvalue()
    assert "\x1b" not in text
    return text


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_run_table_shows_succeeded_run() -> None:
    assert drawn(draw_run(GOOD, artifacts=["model.pt", "plots/loss.png"])) == (
        """\
run 20261121-054625-3fa9  succeeded
built-in · torchrun · 2 nodes, 2 ranks · cluster default

model       cnn                     accuracy    97.2 %
dataset     digits                  loss        0.912 0.301 0.120
strategy    ddp, cpu                samples/s   8,412
epochs      3 x 1.2 s               step p50    3.10 ms
                                    step p95    4.20 ms

step time   ████████████████████████▓▓▓▓▓▓▓▓▓▓▓▓░░░░
            █ compute 61.0 %   ▓ communication 30.0 %   ░ data 9.0 %

rank  node    device  exit  step p50
   0  node-0  cpu        0   3.10 ms
   1  node-1  cpu        0   5.00 ms  straggler: 1.6 times the median

time        connect  prepare  preflight  launch   train  collect   total
              0.2 s    1.1 s      50 ms   0.3 s  12.0 s    0.1 s  16.0 s

cost        free
files       /home/me/.gpuctl/runs/20261121-054625-3fa9
artifacts   model.pt, plots/loss.png
"""
    )


def test_run_table_of_failed_run_begins_with_failure_and_log() -> None:
    tail = "\n".join(
        ["line 1", "line 2", *(f"more {n}" for n in range(20)), "RuntimeError: \x1b[31mboom\x1b[0m"]
    )
    text = drawn(draw_run(BAD, log_tail=tail + "\n"))
    assert text.startswith(
        "rank 1 on node-1 failed first: exit status 3: RuntimeError: boom\nthe end of its log:\n  │ more 1\n"
    )
    assert text.index("  │ RuntimeError: boom\n") < text.index("run 20261121-054625-3fa9  failed")
    assert "line 1" not in text
    assert "   0  node-0  cpu     SIGTERM   3.10 ms\n" in text
    assert "   1  node-1  cpu           3         -  failed first\n" in text
    assert "model" not in text


FRAME = '  File "/home/me/.gpuctl/runs/20261121-054625-3fa9/' + "code/" * 20 + 'train.py", line 3, in main'
WIDE = [
    "Traceback (most recent call last):",
    FRAME,
    "\traise RuntimeError(" + "日本" * 40 + ")",
    "Error: [x]",
]


def test_run_table_folds_long_log_lines_on_terminal() -> None:
    folders = (str(Path(__file__).parent), str(Path(__file__).parents[2]))
    code = f"""
import sys
sys.path += {folders!r}
from test_lists import BAD, WIDE
from gpuctl.command_line.options import Options
from gpuctl.output import Output
from gpuctl.tables.run import draw_run
Output(Options(no_color=True)).table(draw_run(BAD, log_tail="\\n".join(WIDE)))
"""
    with Terminal(code) as terminal:
        assert terminal.wait() == 0
    lines = terminal.seen.split("\n")
    shown = lines[2 : lines.index("")]
    assert len(shown) > len(WIDE)
    assert all(line.startswith("  │ ") and cell_len(line) <= 80 for line in shown)
    assert "".join(line[4:] for line in shown) == "".join(line.expandtabs() for line in WIDE)


def test_tables_do_not_fold_without_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    text = drawn(draw_run(BAD, args=["--name", "n" * 300], log_tail="\n".join(WIDE)))
    assert f"\n  │ {FRAME}\n" in text
    assert f"\nbuilt-in --name {'n' * 300} · torchrun · " in text
    rows = [row(replace(GOOD, script="deep/" * 30 + "train.py")) for _ in range(3)]
    assert len(drawn(runs_table(rows)).splitlines()) == 4


def test_run_table_title_has_shortened_script_arguments() -> None:
    text = drawn(draw_run(GOOD, args=["--name", "a b"]))
    assert "\nbuilt-in --name 'a b' · torchrun · 2 nodes, 2 ranks · cluster default\n" in text
    long = drawn(draw_run(GOOD, args=[*["--more"] * 50, "--lr", "0.01"])).splitlines()
    assert len(long[1]) == 80
    assert long[1].startswith("built-in --more --more ")
    assert "…" in long[1]
    assert long[1].endswith("--more --lr 0.01")
    assert long[2] == "torchrun · 2 nodes, 2 ranks · cluster default"


def kept(result: Result, folder: Path, *args: str) -> Result:
    """Return the result, with a record of its launch in this folder."""
    run = a_run(
        run=result.run,
        cluster=result.cluster,
        mode=result.mode,
        script=result.script,
        args=args,
        nodes=(),
        started_at=result.started_at,
    )
    (folder / run.run).mkdir(parents=True)
    RunFolder(folder / run.run).save_run(run)
    return replace(result, dir=str(folder / run.run))


def test_tables_show_script_arguments_of_runs(tmp_path: Path) -> None:
    slow = kept(GOOD, tmp_path / "slow", "--lr", "0.01")
    assert "\nbuilt-in --lr 0.01 · torchrun · " in drawn(run_table(slow))
    of_commit = replace(GOOD, commit=Commit(sha="1a2b3c4d5e6f", dirty=True))
    assert re.search(r"^commit .* 1a2b3c4d5e, files ", drawn(run_table(of_commit)), re.MULTILINE)
    now = datetime(2026, 11, 21, 8, tzinfo=UTC)
    listed = drawn(runs_table([row(GOOD, script="a.py", args=("--lr", "0.1")), row(GOOD)], now))
    column = listed.index("script")
    assert [line[column:] for line in listed.splitlines()] == ["script", "a.py --lr 0.1", "built-in"]


def test_run_table_omits_columns_without_values() -> None:
    ranks = tuple(replace(rank, device=None, step_ms_p50=None) for rank in GOOD.ranks)
    text = drawn(draw_run(replace(GOOD, ranks=ranks)))
    assert "\nrank  node    exit\n   0  node-0     0\n   1  node-1     0\n" in text


@pytest.mark.parametrize(
    ("status", "epoch_s", "shown"),
    [
        ("failed", (1.0,) * 9, "9 of 60, 1.0 s each"),
        ("stopped", (1.0,) * 9, "9 of 60, 1.0 s each"),
        ("stopped", (1.0,) * 60, "60 x 1.0 s"),
        ("succeeded", (1.0,) * 60, "60 x 1.0 s"),
        ("failed", (), "60 planned"),
    ],
)
def test_run_table_shows_finished_of_planned_epochs(
    status: RunStatus, epoch_s: tuple[float, ...], shown: str
) -> None:
    train = replace(TRAIN, epochs=60, epoch_s=epoch_s)
    assert f"\nepochs      {shown} " in drawn(draw_run(replace(GOOD, status=status, train=train)))


def test_run_table_shows_time_to_first_step_if_known() -> None:
    known = drawn(draw_run(replace(GOOD, train=replace(TRAIN, first_step_s=5.94))))
    assert "\nfirst step  after 5.9 s " in known
    assert "first step" not in drawn(draw_run(GOOD))


def test_run_table_marks_a_speed_of_the_whole_run() -> None:
    train = replace(TRAIN, samples_per_s=530.0, samples_per_s_by="writes")
    assert "samples/s   530 (of the whole run)" in drawn(draw_run(replace(GOOD, train=train)))
    assert "of the whole run" not in drawn(draw_run(GOOD))


@pytest.mark.parametrize(
    ("before", "ran", "shown"),
    [
        (None, 15, "15 of 62, 0.7 s each"),
        (None, 62, "62 x 0.7 s"),
        (0, 62, "62 x 0.7 s"),
        (47, 15, "48 to 62 of 62, 0.7 s each"),
        (61, 1, "epoch 62 of 62, 0.7 s"),
    ],
)
def test_run_table_shows_epoch_range_of_resumed_run(before: int | None, ran: int, shown: str) -> None:
    train = replace(TRAIN, epochs=62, epochs_before=before, epoch_s=(0.7,) * ran)
    result = replace(GOOD, resumed_from="r", train=train)
    assert f"\nepochs      {shown} " in drawn(draw_run(result))


def test_run_table_of_finished_job_advises_more_epochs() -> None:
    ended = replace(
        GOOD, resumed_from="r", train=TrainSummary(model="cnn", epochs=3, epochs_before=62, accuracy=0.9)
    )
    advice = "more epochs: gpuctl train --resume -- --epochs N (N larger than 62)\n"
    text = drawn(draw_run(ended))
    assert "\nepochs      0 of 3 after 62\n" in text
    assert " ".join(text.split()).count("nothing was left to train; " + advice.strip()) == 1
    assert "gpuctl train --cluster mine --resume" in drawn(draw_run(replace(ended, cluster="mine")))
    assert "nothing was left" not in drawn(draw_run(replace(GOOD, resumed_from="r")))


def test_run_table_names_ray_driver_node() -> None:
    """The driver may use the whole cluster, so it is not shown as one rank on one node."""
    driver = drawn(draw_run(replace(GOOD, mode="ray", script="mine.py")))
    assert "\nmine.py · ray · driver on node-0 · cluster default\n" in driver
    assert "ray · 2 nodes, 2 ranks" in drawn(draw_run(replace(GOOD, mode="ray")))


def test_run_table_lists_earlier_runs_of_resumed_job(tmp_path: Path) -> None:
    first = replace(
        GOOD,
        run="a",
        dir=str(tmp_path / "a"),
        status="stopped",
        train=replace(TRAIN, epochs=5),
        cost_usd=0.25,
    )
    second = replace(first, run="b", dir=str(tmp_path / "b"), resumed_from="a", nnodes=3, world_size=3)
    second = replace(second, train=replace(TRAIN, epochs=5, epochs_before=3, epoch_s=(1.2,)))
    last = replace(second, run="c", dir=str(tmp_path / "c"), resumed_from="b", status="succeeded")
    last = replace(last, train=replace(TRAIN, epochs=5, epochs_before=4, epoch_s=(1.2,)))
    for result in (first, second, last):
        Path(result.dir).mkdir()
        RunFolder(Path(result.dir)).save_result(result)
    assert drawn(run_table(last)).endswith(
        """\
run  status     ranks         epochs                 took   cost
a    stopped    2 on 2 nodes  3 of 5, 1.2 s each   16.0 s  $0.25
b    stopped    3 on 3 nodes  epoch 4 of 5, 1.2 s  16.0 s  $0.25
c    succeeded  3 on 3 nodes  epoch 5 of 5, 1.2 s  16.0 s  $0.25
the job's 3 runs, 48.0 s together, $0.75
"""
    )
    (tmp_path / "a" / "result.json").unlink()
    cut = " ".join(drawn(run_table(last)).split())
    assert cut.endswith(
        "the job's 2 runs, 32.0 s together, $0.50; the result of a, before them, can't be read"
    )
    unknown = replace(first, resumed_from=None, seconds=Seconds(), cost_usd=None)
    many = drawn(draw_run(last, earlier=[unknown, *[first] * 9]))
    assert many.count("\na ") == 7
    assert many.endswith("the job's 11 runs, - together; the latest 8 are shown\n")
    assert "together" not in drawn(run_table(first))


def test_run_and_comparison_tables_show_model_metrics() -> None:
    metrics = {"accuracy": 0.972, "f1": 0.87312, "multiclass_calibration_error": -0.25, "huge": 1.5e300}
    judged = replace(GOOD, train=replace(TRAIN, metrics=metrics, judged_on="validation"))
    text = drawn(draw_run(judged))
    assert (
        """\
model       cnn                     accuracy              97.2 % (validation)
dataset     digits                  f1                    0.8731 (validation)
strategy    ddp, cpu                multiclass…ion_error  -0.25 (validation)
epochs      3 x 1.2 s               huge                  1.5e+300 (validation)
                                    loss                  0.912 0.301 0.120
"""
        in text
    )


def test_run_table_of_large_failed_run_lists_first_failure() -> None:
    ranks = tuple(RankResult(rank=n, local_rank=0, node="node-0", exit_code=1) for n in range(64))
    error = FirstError(rank=63, node="node-0", message="exit status 1", reason=Reason.EXIT_CODE)
    text = drawn(draw_run(replace(BAD, ranks=ranks, first_error=error)))
    assert "  63  node-0     1  failed first\n" in text


def test_run_table_omits_unknown_values() -> None:
    bare = replace(GOOD, train=TrainSummary(), seconds=Seconds(), cost_usd=None, ranks=(), status="running")
    text = drawn(draw_run(bare))
    assert "accuracy" not in text
    assert "step time" not in text
    assert "cost" not in text


def test_run_table_strips_control_sequences_of_job_values() -> None:
    bad = replace(TRAIN, model="[red]\x1b[2J:smile:" + "m" * 5000, dataset="d\nd", device="\r\x07")
    text = drawn(draw_run(replace(GOOD, script="[bold]x\x1b]0;t\x07", train=bad)))
    assert "[red]:smile:mmm" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def row(result: Result, **more: Any) -> RunInfo:
    known: dict[str, Any] = {
        "run": result.run,
        "cluster": result.cluster,
        "mode": result.mode,
        "script": result.script,
        "args": (),
        "status": result.status,
        "world_size": result.world_size,
        "started_at": result.started_at,
        "seconds": result.seconds.total,
        "accuracy": result.train.accuracy,
        "cost_usd": result.cost_usd,
    }
    return RunInfo(**known | more)


MACHINE = MachineInfo(
    name="node-0",
    rank=0,
    state="running",
    host="127.0.0.1",
    port=40001,
    user="me",
    private_ip="127.0.0.1",
    gpus=0,
    id="4711",
)
CLUSTER = ClusterStatus(
    cluster="default",
    provider="local",
    region=None,
    machines=(MACHINE,),
    hourly_usd=0.0,
    created_at="2026-11-21T05:46:25+00:00",
    age_s=300,
    expires_at=None,
    ends=(),
    cost_usd=0.0,
    runs=(),
    unheard={},
)


def test_runs_table_lists_status_age_time_and_cost() -> None:
    now = datetime(2026, 11, 21, 6, tzinfo=UTC)
    assert drawn(runs_table([row(GOOD), row(BAD, seconds=None, status="running")], now)) == (
        """\
run                   status     ranks  began       took    accuracy  script
20261121-054625-3fa9  succeeded      2  13 min ago  16.0 s  97.2 %    built-in
20261121-054625-3fa9  running        2  13 min ago  -       -         built-in
"""
    )
    assert "$1.50" in drawn(runs_table([row(GOOD, cost_usd=1.5)], now))
    unreadable = {"status": "unreadable", "world_size": None, "started_at": None, "seconds": None}
    assert drawn(runs_table([row(GOOD), row(GOOD, script=None, accuracy=None, **unreadable)], now)).endswith(
        "\n20261121-054625-3fa9  unreadable      -  -           -       -         -\n"
    )


def test_runs_table_drops_columns_to_fit_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    request = row(GOOD, script="train.py", args=("--lr", "0.1", "--epochs", "10"))
    assert drawn(runs_table([request])).splitlines()[1:] == [
        "20261121-054625-3fa9  succeeded  97.2 %    train.py --lr 0.1",
        "                                           --epochs 10",
        "no room for ranks, took, began",
    ]


@pytest.mark.parametrize("width", [40, 50, 60, 72, 80, 120])
def test_tables_cut_no_values_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    machine = replace(
        MACHINE,
        name="default-0",
        host="129.146.10.200",
        port=22,
        user="ubuntu",
        private_ip="10.0.0.17",
        gpus=8,
        id="ocid1.instance.oc1.phx." + "a" * 60,
    )
    cluster = replace(CLUSTER, provider="oci", region="us-phoenix-1", hourly_usd=4.0, machines=(machine,))
    judged = replace(GOOD, train=replace(TRAIN, metrics={"accuracy": 0.972}, judged_on="validation"))
    for table, keys in (
        (runs_table([row(GOOD, cost_usd=1.5)]), [GOOD.run]),
        (machines_table(cluster), ["default-0", "running"]),
        (
            draw_run(judged),
            [GOOD.run, "node-1", "preflight", "(validation)", "0.120", "data 9.0 %", "16.0 s"],
        ),
        (draw_run(GOOD, earlier=[GOOD]), [GOOD.run]),
    ):
        lines = drawn(table).splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in "".join(lines)
        for key in keys:
            assert width < 50 or any(key in line for line in lines), key


def test_machines_table_shows_machines_cost_and_runs() -> None:
    second = replace(MACHINE, name="node-1", rank=1, state="gone", gpus=None)
    cluster = replace(CLUSTER, machines=(MACHINE, second), runs=("20261121-054625-3fa9",))
    assert drawn(machines_table(cluster)) == (
        """\
default  local · 2 machines · free · up 5 min 0 s

rank  name    state    address             gpus  id
   0  node-0  running  me@127.0.0.1:40001     0  4711
   1  node-1  gone     me@127.0.0.1:40001     -  4711
run 20261121-054625-3fa9 is running
"""
    )
    lost = drawn(machines_table(replace(cluster, unheard={"20261121-054625-3fa9": ("node-1",)})))
    output = "run 20261121-054625-3fa9 may be at work on node-1; gpuctl stop 20261121-054625-3fa9 ends it"
    assert " ".join(lost.split()).endswith(output)
    paid = drawn(machines_table(replace(cluster, region="eu-1", hourly_usd=4.0, cost_usd=1.25)))
    assert paid.startswith(
        "default  local · eu-1 · 2 machines · $4.00 an hour · $1.25 so far · up 5 min 0 s\n"
    )
    unknown = drawn(machines_table(replace(cluster, hourly_usd=None, cost_usd=None)))
    assert unknown.startswith("default  local · 2 machines · price not known · up 5 min 0 s\n")


def test_machines_table_warns_of_daily_cost_without_end_time() -> None:
    output = "nothing ends these machines: a day costs $192.48 (gpuctl down --cluster default ends them)"
    endless = replace(CLUSTER, provider="oci", region="r", hourly_usd=8.02)
    assert " ".join(drawn(machines_table(endless)).split()).endswith(output)
    unknown = drawn(machines_table(replace(endless, hourly_usd=None)))
    assert "nothing ends these machines: what a day costs is not known" in " ".join(unknown.split())
    for quiet in (
        replace(endless, expires_at="2026-11-22T01:00:00+00:00"),
        replace(endless, hourly_usd=0.0),
        replace(endless, machines=(replace(MACHINE, state="gone"),)),
        ClusterSummary(
            **{
                name: value
                for name, value in vars(endless).items()
                if name not in ("idle", "notices", "queue")
            },
            state="unknown",
            shape=None,
            billed=True,
            problem="its provider can't be asked",
        ),
        replace(endless, ends=(EndGuard(guard="idle", at=None, ends_bill=True, armed=True),)),
    ):
        assert "nothing ends" not in drawn(machines_table(quiet))


def test_machines_table_shows_use_and_the_end_without_use() -> None:
    at = "2026-11-22T01:00:00+00:00"
    signals = {"run": False, "queue": False, "login": True, "gpu": None, "cpu": False, "transfer": False}
    idle = IdleStatus(after_s=1800, signals=signals, ends_at=at, kept_until=None)
    guard = EndGuard(guard="idle", at=at, ends_bill=True, armed=True)
    text = " ".join(drawn(machines_table(replace(CLUSTER, ends=(guard,), idle=idle))).split())
    assert f"idle at {at} without further use: armed, ends the bill in use: login; not known: gpu" in text
    rented = (replace(guard, ends_bill=False),)
    text = " ".join(drawn(machines_table(replace(CLUSTER, ends=rented, idle=idle))).split())
    assert "armed, `gpuctl reap --idle` then ends the machines and their bill" in text
    unused = replace(idle, signals=dict.fromkeys(signals, False), kept_until=at)
    text = " ".join(drawn(machines_table(replace(CLUSTER, ends=(guard,), idle=unused))).split())
    assert f"no use now; gpuctl keep puts the end off until {at}" in text


def test_machines_table_lists_the_guards_of_the_end() -> None:
    guards = (
        EndGuard(guard="cloud schedule", at="2026-11-22T01:00:00+00:00", ends_bill=True, armed=True),
        EndGuard(
            guard="machine power-off",
            at="2026-11-22T01:10:00+00:00",
            ends_bill=False,
            armed=False,
            problem="the timer does not run on a10-1",
        ),
        EndGuard(guard="scaling group", at=None, ends_bill=True, armed=None, problem="no answer"),
    )
    shown = " ".join(drawn(machines_table(replace(CLUSTER, ends=guards))).split())
    assert shown.endswith(
        "cloud schedule at 2026-11-22T01:00:00+00:00: armed, ends the bill "
        "machine power-off at 2026-11-22T01:10:00+00:00: not armed (the timer does not run on a10-1), does not end "
        "the bill scaling group at an unknown time: not known whether it is armed (no answer), ends the bill"
    )


def test_found_table_lists_clusters_found_by_reap(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ReapRow(
        cluster="default",
        owner="ada@desk",
        provider="oci",
        region="eu-frankfurt-1",
        compartment=None,
        machines=("a", "b"),
        parts=("nsg c",),
        since=None,
        age_s=8000,
        hourly_usd=8.0,
        cost_usd=0.001,
        expires_at=None,
        expired=False,
        left_s=14_000,
        id="b9824e69",
        chosen=True,
    )
    rest = replace(result, machines=(), hourly_usd=0.0, cost_usd=None, age_s=None, expired=True, left_s=-5)
    monkeypatch.setenv("COLUMNS", "120")
    assert drawn(found_table([result, rest])) == (
        """\
cluster  owner     where               what        age         an hour   so far  ends in     id
default  ada@desk  oci eu-frankfurt-1  2 machines  2 h 13 min    $8.00  < $0.01  3 h 53 min  b9824e69
default  ada@desk  oci eu-frankfurt-1  1 part      -                 -        -  over        b9824e69
"""
    )
    assert "ends in" not in drawn(found_table([replace(result, left_s=None)]))
    monkeypatch.setenv("COLUMNS", "80")
    narrow = drawn(found_table([replace(result, owner="ada@some-workstation", id="b9824e694babcb12")]))
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert "…" not in narrow, "nothing is cut off"


def test_machines_table_folds_long_ids() -> None:
    ocid = "ocid1.instance.oc1.eu-frankfurt-1." + "a" * 60
    machine = replace(
        MACHINE, state="unknown", host="203.0.113.7", port=22, user="ubuntu", private_ip="10.0.0.2", id=ocid
    )
    cluster = replace(CLUSTER, provider="oci", region="eu-frankfurt-1", machines=(machine,))
    text = drawn(machines_table(cluster))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "".join(line.split()[-1] for line in text.splitlines()[3:]) == ocid
    assert "10.0.0.2" in text


def test_run_table_is_coloured_on_terminal() -> None:
    folders = (str(Path(__file__).parent), str(Path(__file__).parents[2]))
    code = f"""
import sys
sys.path += {folders!r}
from test_lists import BAD
from gpuctl.command_line.options import Options
from gpuctl.output import Output
from gpuctl.tables.run import draw_run
Output(Options()).table(draw_run(BAD))
"""
    with Terminal(code) as terminal:
        assert terminal.wait() == 0
    assert "\x1b[1;31mrank 1 on node-1 failed first: \x1b[0m" in terminal.seen
    assert "\x1b[1;31mfailed\x1b[0m" in terminal.seen
