"""A shell in a pod, on a real terminal."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.kube.api import KubeApi, Pod, kube_api
from tests.terminal import ROOT, Terminal

CODE = f"""
import sys
from pathlib import Path
from inventories.disk.store import Store
from inventories.machine import Machine
from remote.transport.pods import pod_shell
machine = Machine(name="default-0", rank=0, state="running", host="worker", user="ray", transport="pod",
                  context="test", private_ip="10.0.0.1", gpus=None, id="ours/worker", python={sys.executable!r})
sys.exit(pod_shell.run(machine, Store(Path("/nowhere")).cluster("default"), " ".join(sys.argv[1:])))
"""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "TERM": "xterm"}
    with kube_api({"ours/worker": Pod(env=env)}) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        yield api


def test_shell_has_a_terminal_of_the_same_size_and_its_keys(api: KubeApi, tmp_path: Path) -> None:
    with Terminal(CODE) as terminal:
        terminal.type("stty size; echo in $PWD; sleep 100\r")
        terminal.wait_for(f"in {tmp_path}")
        assert "24 80" in terminal.seen
        terminal.type("\x03")
        terminal.type("exit 7\r")
        assert terminal.wait() == 7


def test_shell_that_is_cut_off_gives_the_terminal_back(api: KubeApi) -> None:
    with Terminal(CODE) as terminal:
        terminal.type("echo is-$((40 + 2))\r")
        terminal.wait_for("is-42")
        api.break_links()
        assert terminal.wait() == 1
        terminal.wait_for("the connection broke before the command's end")


def test_command_has_the_streams_of_this_process(api: KubeApi) -> None:
    command = [sys.executable, "-c", CODE, "cat; echo no >&2; exit 3"]
    done = subprocess.run(
        command,
        input="a\nb\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout, done.stderr, done.returncode) == ("a\nb\n", "no\n", 3)
