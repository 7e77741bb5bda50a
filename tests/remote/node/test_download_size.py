"""Test an environment's download size: the request to uv, its resolution, and its cache."""

import platform
from pathlib import Path

import pytest

from remote.node.environments import build_lock, download_size

MACHINE = platform.machine()
LOCK = f"""\
[[packages]]
name = "torch"
wheels = [
    {{ url = "https://x.org/torch-2.9.0%2Bcu130-cp311-cp311-manylinux_2_28_{MACHINE}.whl", size = 900 }},
    {{ url = "https://x.org/torch-2.9.0%2Bcu130-cp314-cp314-manylinux_2_28_{MACHINE}.whl", size = 7000 }},
    {{ url = "https://x.org/torch-2.9.0%2Bcu130-cp311-none-macosx_11_0_arm64.whl", size = 8000 }},
]
[[packages]]
name = "tiny-tool"
sdist = {{ url = "https://x.org/tiny-tool-1.0.tar.gz", upload-time = 2026-01-01T00:00:00Z, size = 5 }}
wheels = [{{ url = "https://x.org/tiny_tool-1.0-py3-none-any.whl", upload-time = 2026-01-01T00:00:00Z, size = 20 }}]
[[packages]]
name = "unlisted"
wheels = [{{ url = "https://x.org/unlisted-3-cp39-abi3-manylinux2014_{MACHINE}.whl", hashes = {{}} }}]
[[packages]]
name = "of-windows"
wheels = [{{ url = "https://x.org/of_windows-1-cp311-cp311-win_amd64.whl", size = 9 }}]
"""


@pytest.mark.parametrize(
    ("install", "resolving"),
    [
        (
            ["pip", "install", "--python", "v", "--torch-backend", "cpu", "-r", "r.txt", "torch"],
            ["pip", "compile", "--python", "v", "--torch-backend", "cpu", "r.txt", "beside.txt"],
        ),
        (
            [
                "sync",
                "--frozen",
                "--no-dev",
                "--no-install-project",
                "--no-install-workspace",
                "--package",
                "x",
            ],
            ["export", "--frozen", "--no-dev", "--package", "x", "--no-emit-workspace"],
        ),
        (["pip", "install", "--no-index", "--find-links", "w", "-r", "r.txt"], None),
        (["pip", "install", "-r", "pylock.toml"], None),
    ],
)
def test_uv_is_asked_to_resolve_what_it_would_install(
    tmp_path: Path, install: list[str], resolving: list[str] | None
) -> None:
    output = ["--format", "pylock.toml", "-o", "pylock.gpuctl.toml", "--quiet"]
    assert download_size.resolving(install, tmp_path) == (resolving and [*resolving, *output])
    if resolving and "beside.txt" in resolving:
        assert (tmp_path / "beside.txt").read_text() == "torch\n"


def test_wheels_of_this_machine_and_python_are_counted_once() -> None:
    assert [(url.rpartition("/")[2], size) for url, size in download_size.wheels_of(LOCK, "11")] == [
        (f"torch-2.9.0%2Bcu130-cp311-cp311-manylinux_2_28_{MACHINE}.whl", 900),
        ("tiny_tool-1.0-py3-none-any.whl", 20),
        (f"unlisted-3-cp39-abi3-manylinux2014_{MACHINE}.whl", 0),
    ]


def test_size_is_what_the_cache_lacks_and_zero_where_nothing_can_be_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody(build_lock.Caller):
        def __init__(self) -> None:
            """Skip the connection."""

        def check(self, what: str) -> None:
            """Accept any waiting time."""

    uv, folder, cache = tmp_path / "uv", tmp_path / "request", tmp_path / "cache"
    uv.write_text("#!/bin/sh\n[ -e fails ] && exit 1\ncp ../lock pylock.gpuctl.toml\n")
    uv.chmod(0o700)
    (tmp_path / "lock").write_text(LOCK)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr\nversion_info = 3.11.4\n")
    folder.mkdir()
    monkeypatch.setattr(download_size.uv_tool, "size_of", lambda _: 3)

    def size() -> int:
        install = ["pip", "install", "-r", "r.txt"]
        return download_size.download_size(str(uv), install, folder, {"UV_CACHE_DIR": str(cache)}, Nobody())

    assert size() == 900 + 20 + 3
    metadata = "wheels-v8/index/ab/torch/2.9.0+cu130-cp311.msgpack"
    for place in ("wheels-v8/pypi/tiny-tool/1.0-py3-none-any.http", metadata):
        (cache / place).parent.mkdir(parents=True)
        (cache / place).touch()
    assert size() == 900 + 3, "of torch only its metadata is there"
    (cache / "wheels-v8/index/ab/torch/2.9.0+cu130-cp311.http").touch()
    assert size() == 3
    (tmp_path / "venv" / "pyvenv.cfg").write_bytes(b"\xff")
    assert size() == 0, "the file can't be read"
    (tmp_path / "venv" / "pyvenv.cfg").unlink()
    assert size() == 0, "there is no such file"
    (folder / "fails").touch()
    assert size() == 0
