"""The command is killed before and after each call that changes something, on both clouds, in turn.

Whatever was killed: `up` again ends with exactly the machines that were asked for, `down` leaves nothing,
and where the files of gpuctl are lost, `reap` leaves nothing. `make test-all` kills at every point.
"""

import itertools
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
from clouds import COUNT, KINDS, PRIVATE, CloudGpuctl, Clouds, Kind
from killing import Point, calls_of, kill, points_of
from lanes import commits_so_far

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SIDE_BY_SIDE = 3
"""Number of clouds run at once: a kill is mostly waiting."""

APART, SAMPLE_APART = 9, 7
"""Spacing of the kill points: every 9th call, or every 7th in the sample, so at least two on any day."""
PRIVATE_LIST_LAG_S = 0.4


def converge(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    live = gpuctl.cloud.live_instances()
    assert len(live) == COUNT, live
    kinds = Counter(part.get("kind") for part in gpuctl.cloud.owned())
    private = int(gpuctl.kind.up_options == PRIVATE)
    assert (kinds["natgateway"], kinds["elastic-ip"]) == (private, private)
    status = gpuctl.ok("status", "--json").json
    assert len(status["machines"]) == COUNT
    schedules = [end["armed"] for end in status["ends"] if end["guard"] == "cloud schedule"]
    assert schedules == [True] * ("--ttl" in gpuctl.kind.up_options and gpuctl.kind.provider == "oci")
    vanish(gpuctl)


def vanish(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok("down", "--yes")
    assert gpuctl.cloud.owned() == []


def reap_with_files_lost(gpuctl: CloudGpuctl) -> None:
    shutil.rmtree(gpuctl.home)
    gpuctl.ok("reap", "--provider", gpuctl.kind.provider, "--yes")
    assert gpuctl.cloud.owned() == []


def adopt_with_files_lost(gpuctl: CloudGpuctl) -> None:
    """Another computer takes over the machines and completes the cluster; without machines it removes the rest."""
    shutil.rmtree(gpuctl.home)
    adopted = gpuctl("adopt", "--provider", gpuctl.kind.provider, "--yes", "--json")
    if adopted.status == 2:
        assert "no cluster of gpuctl" in adopted.err or "No machine of the cluster" in adopted.err, (
            adopted.err
        )
        gpuctl.ok("reap", "--provider", gpuctl.kind.provider, "--yes")
        assert gpuctl.cloud.owned() == []
        return
    assert adopted.status == 4, f"nobody answers at these addresses: {adopted.err}"
    converge(gpuctl)


AFTERWARDS: dict[str, Callable[[CloudGpuctl], None]] = {
    "up": converge,
    "down": vanish,
    "reap": reap_with_files_lost,
    "adopt": adopt_with_files_lost,
}


@pytest.mark.whole
def test_up_rerun_after_kill_at_sampled_calls_converges(
    clouds: Clouds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(KINDS["oci"], clouds, tmp_path, capsys, "up, then up", converge, prepare=None, apart=SAMPLE_APART)


@pytest.mark.parametrize("afterwards", AFTERWARDS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_up_killed_at_each_call_can_be_rerun_or_removed(
    kind: Kind, afterwards: str, clouds: Clouds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(kind, clouds, tmp_path, capsys, f"up, then {afterwards}", AFTERWARDS[afterwards], prepare=None)


@pytest.mark.parametrize("afterwards", ["up", "down", "reap"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_down_killed_at_each_call_can_be_completed(
    kind: Kind, afterwards: str, clouds: Clouds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(
        kind,
        clouds,
        tmp_path,
        capsys,
        f"down, then {afterwards}",
        AFTERWARDS[afterwards],
        prepare=lambda gpuctl: gpuctl.ok(*gpuctl.up_words),
    )


@pytest.mark.parametrize(("killed", "afterwards"), [("up", "up"), ("up", "reap"), ("down", "down")])
def test_private_cluster_commands_killed_at_each_call_recover(
    killed: str, afterwards: str, clouds: Clouds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """AWS's has parts that cost money by the hour, and that public clusters lack; lists tell of them late."""
    kind = replace(KINDS["aws"], up_options=PRIVATE)
    prepare = None if killed == "up" else lambda gpuctl: gpuctl.ok(*gpuctl.up_words)
    title = f"private, {killed}, then {afterwards}"
    sweep(
        kind,
        clouds,
        tmp_path,
        capsys,
        title,
        AFTERWARDS[afterwards],
        prepare=prepare,
        list_lag_s=PRIVATE_LIST_LAG_S,
    )


@pytest.mark.parametrize(
    ("killed", "afterwards"),
    [("up", "up"), ("up", "down"), ("up", "reap"), ("down", "down"), ("down", "reap")],
)
def test_commands_of_cluster_with_scheduled_end_killed_at_each_call_recover(
    killed: str, afterwards: str, clouds: Clouds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On OCI an instance pool replaces machines that end without it."""
    kind = replace(KINDS["oci"], up_options=("--ttl", "4h"))
    prepare = None if killed == "up" else lambda gpuctl: gpuctl.ok(*gpuctl.up_words)
    title = f"scheduled end, {killed}, then {afterwards}"
    sweep(kind, clouds, tmp_path, capsys, title, AFTERWARDS[afterwards], prepare=prepare)


def due(points: list[Point], apart: int) -> list[Point]:
    """Return every point with GPUCTL_TEST_SWEEPS=all, else a subset that changes with each commit."""
    if os.environ.get("GPUCTL_TEST_SWEEPS") == "all":
        return points
    return points[commits_so_far() % apart :: apart]


def sweep(
    kind: Kind,
    clouds: Clouds,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    title: str,
    afterwards: Callable[[CloudGpuctl], None],
    *,
    prepare: Callable[[CloudGpuctl], object] | None,
    list_lag_s: float = 0.0,
    apart: int = APART,
) -> None:
    """Kill at the points that are due, each in a cloud and a home as new."""
    free: SimpleQueue[int] = SimpleQueue()
    for number in range(SIDE_BY_SIDE):
        free.put(number)
    homes = itertools.count()

    @contextmanager
    def as_new() -> Iterator[CloudGpuctl]:
        number = free.get()
        try:
            yield clouds.as_new(kind, folder / f"home-{next(homes)}", number)
        finally:
            free.put(number)

    def at(point: Point) -> str | None:
        with as_new() as gpuctl:
            try:
                gpuctl.cloud.settings(list_lag_s=list_lag_s)
                if prepare is not None:
                    prepare(gpuctl)
                kill(gpuctl, killed_words(gpuctl, prepared=prepare is not None), point)
                if afterwards in (reap_with_files_lost, adopt_with_files_lost):
                    time.sleep(list_lag_s)  # only lists show the machines then, and no user is faster
                afterwards(gpuctl)
                maximum = gpuctl.cloud.state()["most_by_cluster"]
                assert all(count <= COUNT for count in maximum.values()), maximum
            except AssertionError as error:
                return f"{point}: {error}"
            return None

    with as_new() as first:
        if prepare is not None:
            prepare(first)
        total = calls_of(first, killed_words(first, prepared=prepare is not None))
    assert total > 4, "the command did nothing"
    points = due(points_of(total), apart)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        failures = [failure for failure in pool.map(at, points) if failure]
    with capsys.disabled():
        print(f"\n{kind.provider}: {title}: killed at {len(points)} points", flush=True)
    assert not failures, "\n\n".join(failures)


def killed_words(gpuctl: CloudGpuctl, *, prepared: bool) -> tuple[str, ...]:
    return ("down", "--yes") if prepared else gpuctl.up_words
