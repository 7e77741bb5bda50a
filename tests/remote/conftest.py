"""A real local host, and a connection to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Machine
from inventories.specs.spec import Spec
from provision.local.provider import LocalProvider
from remote.sessions.connect import connect
from remote.sessions.session import Node
from remote.transport import known_hosts


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = Store(tmp_path_factory.mktemp("home")).cluster("default")
    provider = LocalProvider(folder)
    (made,) = provider.create(provider.plan(Spec(provider="local", count=1), None), folder.journal)
    yield made
    assert provider.destroy() == ()


@pytest.fixture
def node(host: Machine, tmp_path: Path) -> Iterator[Node]:
    pinned = ClusterFolder(tmp_path / "pinned")
    pinned.make()
    pinned.known_hosts_path.write_text(known_hosts.render([host]))
    node = connect(host, pinned)
    yield node
    node.close()
