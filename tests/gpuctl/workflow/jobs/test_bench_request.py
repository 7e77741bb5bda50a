"""Requests of bench that can't be done, before any connection."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support import a_machine

from gpuctl.command_line import cli
from gpuctl.environment_variables import variable
from gpuctl.errors import Usage
from gpuctl.scaling.measurements import parse_layouts
from gpuctl.workflow.jobs.bench import Bench
from gpuctl.workflow.jobs.bench_request import BenchRequest, bucket_mb, check, check_gpus, nodes_of
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.machine import Inventory
from inventories.runs.result import RunStatus


def inventory(count: int) -> Inventory:
    machines = tuple(
        a_machine(name=f"g-{rank}", rank=rank, host="10.0.0.1", gpus=None, id=str(rank))
        for rank in range(count)
    )  # fmt: skip
    return Inventory(cluster="c", provider="hosts", created_at="2026-11-21T05:46:25+00:00", machines=machines)


@pytest.mark.parametrize(
    ("layouts", "count", "nodes"), [(None, 2, None), ("1x1", 2, 1), ("1x1,2x4,1x8", 3, 2), ("3x1", 3, 3)]
)
def test_nodes_of_counts_nodes_the_layouts_need(layouts: str | None, count: int, nodes: int | None) -> None:
    requested = parse_layouts(layouts, "--layouts") if layouts else ()
    assert nodes_of(requested, inventory(count)) == nodes


def test_nodes_of_refuses_layout_larger_than_cluster() -> None:
    with pytest.raises(
        Usage,
        match=r"--layouts 4x2 is not possible: the cluster c has 2 nodes\. .*--count 4; or .*--forecast 4x2",
    ):
        nodes_of(parse_layouts("1x1,4x2", "--layouts"), inventory(2))


@pytest.mark.parametrize(
    ("layouts", "gpus", "refused"),
    [("1x2,2x2", [2, 2], None), ("1x3", [2, 2], "1x3"), ("1x2,2x2", [2, 1], "2x2"), ("1x8", [0], None)],
)
def test_check_gpus_refuses_more_processes_than_gpus(
    layouts: str, gpus: Sequence[int], refused: str | None
) -> None:
    if refused is None:
        check_gpus(parse_layouts(layouts, "--layouts"), gpus)
        return
    with pytest.raises(Usage, match=f"--layouts {refused} is not possible: a node has"):
        check_gpus(parse_layouts(layouts, "--layouts"), gpus)


@pytest.mark.parametrize(
    ("words", "mb"),
    [
        ([], None),
        (["--epochs", "1"], None),
        (["--bucket-mb", "5"], 5.0),
        (["--bucket-mb=0.5", "--epochs", "1"], 0.5),
        (["--bucket-mb", "5", "--bucket-mb=7"], 7.0),
    ],
)
def test_bucket_mb_reads_last_bucket_mb_option(words: Sequence[str], mb: float | None) -> None:
    assert bucket_mb(words) == mb


def test_check_refuses_global_batch_of_the_built_in_job_with_forecast() -> None:
    forecast = parse_layouts("2x1", "--forecast")
    request = BenchRequest(job=TrainRequest(words=("--global-batch-size=8",)), forecast=forecast)
    with pytest.raises(Usage, match="Use --batch-size instead"):
        check(request)
    check(replace(request, forecast=()))
    check(replace(request, job=TrainRequest(words=("my.py", "--global-batch-size=8"))))


@pytest.mark.parametrize(
    ("status", "forecast", "exit_status"),
    [("succeeded", "2x1", 4), ("succeeded", "", 0), ("failed", "", 1), ("stopped", "2x1", 130)],
)
def test_exit_status_is_4_where_a_forecast_can_not_be_given(
    status: RunStatus, forecast: str, exit_status: int
) -> None:
    done = Bench(
        cluster="default", script="my.py", words=(), status=status, failure=None, measured=(), outlooks=(),
        allreduce=None, forecasts=len(forecast.split()), hourly_usd=None, total_s=1.0,
    )  # fmt: skip
    assert done.exit_status == exit_status


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repeats", "2"], "2 is not in the range 3<=x<=100"),
        (["--bandwidth-gb-s", "0"], "0.0 is not in the range x>0"),
        (["--epochs", "3"], "No such option '--epochs'"),
    ],
)
def test_bench_wrong_options_exit_2_with_reason(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_variable_parses_env_option_or_refuses() -> None:
    assert variable("A=b=c", {}) == ("A", "b=c")
    assert variable("A", {"A": "1"}) == ("A", "1")
    for word, message in (
        ("A", "There is no variable A here"),
        ("1A=2", "no valid name"),
        ("=2", "no valid name"),
        ("RANK=3", "^--env RANK is not possible: the launcher sets RANK for every rank. Leave it out"),
        ("MASTER_PORT", "the launcher sets MASTER_PORT"),
        ("GPUCTL_RUN_DIR=/x", "gpuctl sets GPUCTL_RUN_DIR"),
        ("GPUCTL_LAUNCHED_AT=1", "gpuctl sets GPUCTL_LAUNCHED_AT"),
    ):
        with pytest.raises(Usage, match=message):
            variable(word, {})
