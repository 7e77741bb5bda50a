"""Test a node's report on the software that NCCL needs for EFA."""

from pathlib import Path

import pytest

from remote.node.checks import facts


@pytest.fixture(autouse=True)
def no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)


def put(folder: Path, name: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"")
    return str(folder / name)


def test_software_of_a_node_without_any_is_missing(tmp_path: Path) -> None:
    answer = facts.software(["/lib/x86_64-linux-gnu/libc.so.6"], [str(tmp_path)], [str(tmp_path)])
    assert answer == {"plugin": None, "loadable": False, "libfabric": False}


def test_plugin_in_the_loaders_cache_is_loadable(tmp_path: Path) -> None:
    cached = ["/opt/amazon/ofi-nccl/lib/libnccl-net.so", "/opt/amazon/efa/lib/libfabric.so.1"]
    assert facts.software(cached, [], []) == {"plugin": cached[0], "loadable": True, "libfabric": True}


def test_plugin_outside_the_loaders_path_is_found_but_not_loadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = put(tmp_path / "ofi", "libnccl-net-ofi.so")
    put(tmp_path / "efa", "libfabric.so.1")
    folders = [str(tmp_path / "ofi")], [str(tmp_path / "efa")]
    assert facts.software([], *folders) == {"plugin": plugin, "loadable": False, "libfabric": True}
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path / 'ofi'}")
    assert facts.software([], *folders) == {"plugin": plugin, "loadable": True, "libfabric": True}


def test_libraries_of_the_loaders_cache_are_read() -> None:
    libraries = facts.cached_libraries()
    assert any(path.startswith("/") and "libc.so" in path for path in libraries)
