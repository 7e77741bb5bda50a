"""Fixtures that all tests share: gpuctl with a home of its own, and clusters of local hosts."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support import Gpuctl, processes_with

BEGAN = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is slow once the tests have taken GPUCTL_TEST_MINUTES, so that on a slow machine all else is run."""
    minutes = float(os.environ.get("GPUCTL_TEST_MINUTES", "inf"))
    if item.get_closest_marker("slow") and time.monotonic() - BEGAN > minutes * 60:
        pytest.skip(
            f"the tests have taken the {minutes:g} minutes that they were given (GPUCTL_TEST_MINUTES)"
        )


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip what takes minutes each, unless it is asked for."""
    if os.environ.get("GPUCTL_TEST_LONG") != "1":
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="it takes minutes: make long runs it"))


@pytest.fixture
def gpuctl(tmp_path: Path) -> Iterator[Gpuctl]:
    """gpuctl with a home of its own; every cluster left at the end is removed, and no process may be left."""
    command = Gpuctl(home=tmp_path / "home", cwd=tmp_path / "project")
    command.cwd.mkdir()
    yield command
    for cluster in sorted((command.home / "clusters").glob("*")):
        command("down", "--yes", "--cluster", cluster.name)
    assert not processes_with(str(command.home)), "processes were left behind"


@pytest.fixture
def two_hosts(gpuctl: Gpuctl) -> Gpuctl:
    """A cluster of two fresh local hosts, for tests that do harm to it."""
    gpuctl.ok("up", "--provider", "local", "--count", "2")
    return gpuctl


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a cluster of two local hosts that tests share that leave it as it was."""
    command = Gpuctl(home=tmp_path_factory.mktemp("shared"), cwd=tmp_path_factory.mktemp("start"))
    command.ok("up", "--provider", "local", "--count", "2")
    yield command.home
    command("down", "--yes")
    assert not processes_with(str(command.home)), "processes were left behind"


@pytest.fixture
def cluster(shared_home: Path, tmp_path: Path) -> Gpuctl:
    """gpuctl with the shared cluster, in an empty project."""
    return Gpuctl(home=shared_home, cwd=tmp_path)
