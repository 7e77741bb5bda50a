"""Test a project's installation on a node: the arguments of its installers, and the checks afterwards.

The interpreter and uv are small programs that answer as the real ones do.
"""

import json
import signal
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from remote.node.environments import build, project, uv_tool
from remote.shared import frames

INTERPRETER = """\
#!/bin/sh
for last; do :; done
case "$*" in
    *"-m venv"*) mkdir -p "$last/bin" "$last/lib/python3.11/site-packages"; cp "$0" "$last/bin/python" ;;
    *" able "*) cat "$HOME/able.json" ;;
    *"-m pip "*) echo "pip ${PIP_EXTRA_INDEX_URL-none}" >> "$HOME/uv.log" ;;
    *" finish "*) cat "$HOME/within.json" ;;
    *) echo '[]' ;;
esac
"""
UV = """\
#!/bin/sh
case "$*" in
    --version) echo "uv 0.13.9" ;;
    *)  [ -e PKG-INFO ] && grep Version: PKG-INFO >> "$HOME/version.log"
        echo "${SETUPTOOLS_SCM_PRETEND_VERSION-none} ${UV_INDEX-none} $*" >> "$HOME/uv.log" ;;
esac
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with the interpreter and uv in it."""
    for name, text in (("python", INTERPRETER), ("uv", UV)):
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for name in (*uv_tool.UV_FIRST, "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(build, "ENVIRONMENTS", tmp_path / "envs")
    (tmp_path / "envs").mkdir()
    (tmp_path / "code").mkdir()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)


def installed(
    home: Path, *, lacking: tuple[str, ...] = (), has_pip: bool = False, **asked: Any
) -> dict[str, Any]:
    """Return the node's answer, with its output `said`, and the installers' calls `uv`."""
    (home / "able.json").write_text(json.dumps({"builds": False, "pip": has_pip}) + "\n")
    report = {"lacking": list(lacking), "names": [], "understood": True}
    (home / "within.json").write_text(json.dumps(report) + "\n")
    (home / "uv.log").write_text("")
    request = {
        "key": "k",
        "name": "mine",
        "python": str(home / "bin" / "python"),
        "root": str(home / "code"),
        "folder": str(home / "code"),
        "source": str(home / "code"),
        "beside": [],
        "extras": {},
        "not_from_index": [],
        "version": "1.5",
        "variables": {"SETUPTOOLS_SCM_PRETEND_VERSION": "1.5"},
        "backend": "hatchling.build",
        "backend_path": [],
        "build_requires": ["hatchling"],
        "dependencies": "install",
        "indexes": {},
        "deadline_s": 60.0,
    }
    output, ended = BytesIO(), Event()

    def incoming() -> Iterator[frames.Frame]:
        ended.wait()
        yield from ()

    project.command_project({**request, **asked}, output, incoming())
    ended.set()
    output.seek(0)
    *told_before, answer = [header for header, _ in frames.decode(output.readline, output.read)]
    text = [header["text"] for header in told_before]
    return {**answer, "said": text, "uv": (home / "uv.log").read_text().splitlines()}


@pytest.mark.parametrize("version", [None, "1.6"])
def test_metadata_that_a_killed_build_left_is_removed_and_the_projects_stays(
    home: Path, version: str | None
) -> None:
    left = project._as_sdists([str(home / "code")], "1.5")
    left.__enter__()
    extra = home / "beside"
    extra.mkdir()
    (extra / "PKG-INFO").write_text("Metadata-Version: 2.1\nVersion: 9\n")
    installed(home, version=version, beside=[str(extra)])
    calls = (home / "version.log").read_text() if version else "Version: 1.6"
    assert "Version: 1.6" in calls
    assert not (home / "code" / "PKG-INFO").exists()
    assert (extra / "PKG-INFO").read_text().endswith("Version: 9\n")


def test_version_of_git_is_given_to_what_was_sent_alone(home: Path) -> None:
    local, dependency = installed(home, lacking=("words>=1",))["uv"]
    assert (home / "version.log").read_text() == "Metadata-Version: 2.1\nVersion: 1.5\n"
    assert not (home / "code" / "PKG-INFO").exists()
    assert local.startswith("1.5 ")
    assert local.endswith(f"--editable {home}/code")
    assert dependency.startswith("none ")
    assert dependency.endswith(" words>=1")


def test_what_is_lacking_is_looked_at_again_where_the_environment_is_there(home: Path) -> None:
    assert installed(home, lacking=("gone",), dependencies="tell")["built"] is True
    again = installed(home, dependencies="tell")
    assert (again["built"], again["ready"]["lacking"], again["uv"]) == (False, [], [])
    assert installed(home, lacking=("gone",), dependencies="tell")["ready"]["lacking"] == ["gone"]


def test_environment_is_made_anew_where_what_lies_below_has_lost_something(home: Path) -> None:
    installed(home)
    assert installed(home)["built"] is False
    anew = installed(home, lacking=("lost",))
    assert (anew["built"], len(anew["uv"])) == (True, 2)


def test_uv_installs_where_indexes_are_set_for_it_alone(home: Path) -> None:
    first = {"UV_INDEX": "corp=https://index.corp/"}
    (by_uv,) = installed(home, has_pip=True, indexes=first)["uv"]
    assert by_uv.startswith("1.5 corp=https://index.corp/ pip install")
    (home / "bin" / "uv").unlink()
    by_pip = installed(home, has_pip=True, indexes=first, key="other")
    assert by_pip["uv"] == ["pip none"]
    assert "UV_INDEX is not used: pip, unlike uv, would take a package from any index" in by_pip["said"]
