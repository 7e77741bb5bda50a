"""Fixtures that all tests share: gpuctl with a home of its own, and clusters of local hosts."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from clouds import IMPORTS, Clouds
from forks import Forks, forks_of
from support import Gpuctl, clean_env, end_started, processes_with

BEGAN = time.monotonic()
LEFT_OUT = "left out for want of time"


def pytest_configure() -> None:
    """Enable Ctrl-C for tests and their processes, also if a shell started them in the background."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no more deep tests once GPUCTL_TEST_MINUTES have passed."""
    minutes = float(os.environ.get("GPUCTL_TEST_MINUTES", "inf"))
    if item.get_closest_marker("slow") and time.monotonic() - BEGAN > minutes * 60:
        pytest.skip(f"{LEFT_OUT}: the deep tests have had their {minutes:g} minutes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """End the commands that a failed test left running, before fixtures are taken down under them."""
    end_started()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the files of which tests were left out for want of time, with how many."""
    skipped = terminalreporter.stats.get("skipped", [])
    late = Counter(report.nodeid.partition("::")[0] for report in skipped if LEFT_OUT in str(report.longrepr))
    if late:
        terminalreporter.section(LEFT_OUT)
        for file, count in sorted(late.items()):
            terminalreporter.line(f"{file}: {count}")


@pytest.fixture(scope="session")
def imported() -> Iterator[Forks]:
    """Yield a process with the commands' imports done, from which commands are forked."""
    with forks_of(*IMPORTS, env=clean_env()) as forks:
        yield forks


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory, imported: Forks) -> Iterator[Clouds]:
    """Fake clouds that a file's tests use one after the other, with commands that are forked."""
    with ExitStack() as running:
        yield Clouds(tmp_path_factory.mktemp("clouds"), running, forks=imported)


@pytest.fixture
def forks(request: pytest.FixtureRequest) -> Forks | None:
    """Return the process that a test's commands fork from; `None` for a test that runs the command as a user does."""
    if request.node.get_closest_marker("whole"):
        return None
    return request.getfixturevalue("imported")


@pytest.fixture
def gpuctl(tmp_path: Path, forks: Forks | None) -> Iterator[Gpuctl]:
    """gpuctl with a home of its own; every cluster left at the end is removed, and no process may be left."""
    command = Gpuctl(home=tmp_path / "home", cwd=tmp_path / "project", forks=forks)
    command.cwd.mkdir()
    yield command
    for cluster in sorted((command.home / "clusters").glob("*")):
        command("down", "--yes", "--cluster", cluster.name)
    assert not processes_with(str(command.home)), "processes were left behind"


@pytest.fixture
def two_hosts(gpuctl: Gpuctl) -> Gpuctl:
    """Yield a cluster of two fresh local hosts, for tests that damage it."""
    gpuctl.ok("up", "--provider", "local", "--count", "2")
    return gpuctl


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the home of a cluster of two local hosts, for tests that leave it unchanged."""
    command = Gpuctl(home=tmp_path_factory.mktemp("shared"), cwd=tmp_path_factory.mktemp("start"))
    command.ok("up", "--provider", "local", "--count", "2")
    yield command.home
    command("down", "--yes")
    assert not processes_with(str(command.home)), "processes were left behind"


@pytest.fixture
def cluster(shared_home: Path, tmp_path: Path, forks: Forks | None) -> Gpuctl:
    """gpuctl with the shared cluster, in an empty project."""
    return Gpuctl(home=shared_home, cwd=tmp_path, forks=forks)
