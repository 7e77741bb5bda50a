"""`setup` of a spec: its lines run once on each new machine, before any run."""

from pathlib import Path

import pytest
from support import Gpuctl

from inventories.disk.store import Store

pytestmark = pytest.mark.slow

FABFILE = """
from fabric import task

@task
def before(c):
    c.run("echo x >> before.txt")

@task(pre=[before])
def prepare(c, bucket):
    print("preparing", bucket, "on", c.machine.name)
    c.run("echo said by a command; echo fab >> ran.txt")

@task
def vanish(c):
    c.run("kill -9 $PPID; sleep 60")
"""
LINE = "echo line >> ran.txt; echo told; echo twice >&2"
FAILS = "echo some words; case $HOME in *default-1*) exit 7;; esac"
BREAKS = "case $HOME in *default-1*) kill -9 $PPID; sleep 60;; esac"
"""The shell's parent is the host's SSH server."""


def ask(gpuctl: Gpuctl, *steps: str, count: int = 2) -> tuple[str, ...]:
    """Write a spec with these steps; the words that ask for it."""
    lines = ["provider: local", f"count: {count}", "setup:", *(f"  - {step}" for step in steps)]
    gpuctl.script("spec.yaml", "\n".join(lines))
    return "up", "-f", "spec.yaml", "--cluster", "default"


def ran(gpuctl: Gpuctl) -> dict[str, list[str]]:
    """Return the text that the setup lines have written on each machine."""
    nodes = gpuctl.ok("exec", "--json", "--", "cat ran.txt").json["nodes"]
    return {node["node"]: node["stdout"].split() for node in nodes}


def log(gpuctl: Gpuctl, name: str) -> Path:
    return Store(gpuctl.home).cluster("default").path / f"setup-{name}.log"


@pytest.mark.whole
def test_setup_runs_once_on_each_new_machine_and_again_when_it_changed(gpuctl: Gpuctl) -> None:
    gpuctl.script("fabfile.py", FABFILE)
    words = ask(gpuctl, f"'{LINE}'", "fab: prepare --bucket b")
    planned = gpuctl.ok(*words, "--dry-run", "--json").json["setup"]
    assert planned == {
        "steps": [
            {"kind": "run", "text": LINE, "folder": None},
            {"kind": "fab", "text": "prepare --bucket b", "folder": str(gpuctl.cwd)},
        ],
        "machines": ["default-0", "default-1"],
    }
    early = gpuctl.ok(*words, "--no-wait", "--json")
    assert early.json["setup"] == []
    assert "the setup has not run yet" in early.err
    made = gpuctl.ok(*words, "--json").json["setup"]
    assert [(item["node"], item["status"]) for item in made] == [("default-0", "done"), ("default-1", "done")]
    for name in ("default-0", "default-1"):
        written = log(gpuctl, name).read_text().splitlines()
        assert written[0] == f"$ {LINE}"
        assert sorted(written[1:3]) == ["told", "twice"]
        assert written[3:] == [
            "$ gpuctl fab prepare --bucket b",
            f"preparing b on {name}",
            "said by a command",
        ]
        assert log(gpuctl, name).stat().st_mode & 0o777 == 0o600
    assert (gpuctl.cwd / "before.txt").read_text() == "x\n", "a task before another runs once, here"

    again = gpuctl.ok(*words)
    assert "setup" not in again.err
    # Without the spec, and in a folder with another fabfile: the cluster knows its setup.
    elsewhere = gpuctl.cwd / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "fabfile.py").write_text("raise SystemExit('this is another one')\n")
    more = gpuctl.ok("up", "--count", "3", "--json", cwd=elsewhere).json["setup"]
    assert [item["node"] for item in more] == ["default-2"]
    both = ["line", "fab"]
    assert ran(gpuctl) == {"default-0": both, "default-1": both, "default-2": both}

    changed = gpuctl.ok(*ask(gpuctl, "echo changed >> ran.txt", count=3), "--json").json["setup"]
    assert len(changed) == 3
    assert ran(gpuctl)["default-1"] == [*both, "changed"]


def test_setup_that_fails_is_told_with_its_output_and_tried_again(gpuctl: Gpuctl) -> None:
    failed = gpuctl(*ask(gpuctl, f"'{LINE}'", f"'{FAILS}'", "echo never >> ran.txt"), "--json")
    assert failed.status == 4
    assert (failed.json["cluster"], len(failed.json["machines"])) == ("default", 2)
    fine, bad = failed.json["setup"]
    assert (fine["node"], fine["status"]) == ("default-0", "done")
    assert (bad["node"], bad["status"], bad["line"]) == ("default-1", "failed", FAILS)
    assert (bad["error"], bad["output"]) == ("it exited with status 7.", ["some words"])
    message = failed.json["error"]["message"]
    for part in (f"default-1: setup: `{FAILS}` failed", str(log(gpuctl, "default-1")), "  some words"):
        assert part in message
    assert "`gpuctl up` runs the setup on default-1 again" in message
    assert ran(gpuctl) == {"default-0": ["line", "never"], "default-1": ["line"]}

    assert "default-1 is not prepared yet: `gpuctl up` continues" in gpuctl.ok("status").err
    gpuctl.script("one.py", "print('hello')")
    refused = gpuctl("train", "one.py")
    assert refused.status == 1
    assert "The setup of the cluster has not ended well on default-1" in refused.err
    assert gpuctl("up", "--json").json["setup"][0]["node"] == "default-1"
    assert gpuctl.ok("train", "--nnodes", "1", "one.py").status == 0


def test_setup_of_machines_that_vanish_has_no_known_end_and_runs_on_those_that_replace_them(
    gpuctl: Gpuctl,
) -> None:
    gpuctl.script("fabfile.py", FABFILE)
    lost = gpuctl(*ask(gpuctl, f"'{BREAKS}'", "fab: vanish", "echo never >> ran.txt"), "--json")
    assert lost.status == 4
    assert [(item["node"], item["status"], item["line"]) for item in lost.json["setup"]] == [
        ("default-0", "unknown", "gpuctl fab vanish"),
        ("default-1", "unknown", BREAKS),
    ]
    message = lost.json["error"]["message"]
    assert (
        "default-0: setup: `gpuctl fab vanish` has no known end: the connection broke during `kill" in message
    )
    assert f"default-1: setup: `{BREAKS}` has no known end: default-1: the connection broke" in message
    gpuctl.ok(*ask(gpuctl, "echo fine >> ran.txt"))
    assert ran(gpuctl) == {"default-0": ["fine"], "default-1": ["fine"]}
