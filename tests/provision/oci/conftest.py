"""The control plane over HTTP in tests/fakes/oci, one for each file of tests, emptied before each test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.oci.cloud import OciCloud, connect
from provision.records import Target
from tests.fakes.client import FakeCloud, start_fake
from tests.provision.oci.building import Builder, FastClock


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCloud]:
    with start_fake("oci", tmp_path_factory.mktemp("cloud")) as fake:
        yield fake


@pytest.fixture
def fake(running: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    for name in os.environ:
        if name.startswith(("OCI_", "GPUCTL_OCI", "GPUCTL_CONSISTENCY")):
            monkeypatch.delenv(name)
    for name, value in running.env.items():
        monkeypatch.setenv(name, value)
    running.reset()
    running.settings(launch_s=0.1, terminate_s=0.1)
    running.forget_calls()
    return running


@pytest.fixture
def cloud(fake: FakeCloud) -> OciCloud:
    return connect(Target(provider="oci"), clock=FastClock())


@pytest.fixture
def builder(cloud: OciCloud, tmp_path: Path) -> Builder:
    return Builder(cloud, tmp_path)
