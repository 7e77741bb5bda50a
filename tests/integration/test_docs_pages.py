"""The commands of the README and of the documentation's pages, each page from its beginning to its end."""

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from clouds import KINDS, cloud_gpuctl
from pages import PAGES, Block, Command, blocks_of, session_of
from support import BIN, Gpuctl, processes_with, wait_for

from inventories.disk.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a page is many commands

RUN = [page for page in PAGES if any(block.runs for block in blocks_of(page))]
ON_A_TERMINAL = ("--yes", "--accept-terms", "--no-wait", "--ssh-cidr", "127.0.0.1/32")
"""A person's answers when machines are created; the account's machines have no SSH server."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A person's shell: a home folder in which gpuctl's is, and a project's folder."""

    home: Path
    project: Path
    env: dict[str, str]
    rewrite: Callable[[str], str] = lambda line: line
    files: dict[str, str] | None = None
    """Files of the page that contain the reader's own values → their text here."""

    def write(self, block: Block) -> None:
        assert block.title is not None
        (self.project / block.title).write_text((self.files or {}).get(block.title, block.text))

    def run(self, command: Command, status: int) -> None:
        done = subprocess.run(
            ["bash", "-c", self.rewrite(command.line)],
            cwd=self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, f"$ {command.line}\n{done.stdout}"
        assert command.missing(done.stdout) == [], f"$ {command.line}\n{done.stdout}"


def session(folder: Path, gpuctl_home: Path, env: dict[str, str]) -> Session:
    """A session whose `~/.gpuctl` is that folder."""
    home, project = folder / "you", folder / "work"
    home.mkdir()
    project.mkdir()
    gpuctl_home.mkdir(exist_ok=True)
    (home / ".gpuctl").symlink_to(gpuctl_home)
    local = {
        "HOME": str(home),
        "GPUCTL_HOME": str(home / ".gpuctl"),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_SSH_ARGS": "-C",  # no connection is left open behind a command
    }
    return Session(home=home, project=project, env=env | local)


def account(line: str) -> str:
    """Return the line as typed on a terminal, with its questions answered."""
    if line.startswith("gpuctl up ") and "--dry-run" not in line:
        return " ".join((line, *ON_A_TERMINAL))
    return f"{line} --yes" if line.startswith("gpuctl down") else line


def machines_you_have(folder: Path, home: Path, env: dict[str, str]) -> Session:
    """Hosts that an inventory lists as alpha and beta, and whose keys are in `~/.ssh/known_hosts`."""
    machines = Store(home).cluster("default").load().machines
    hosts = {
        name: {
            "ansible_host": machine.host,
            "ansible_port": machine.port,
            "ansible_user": machine.user,
            "ansible_ssh_private_key_file": str(machine.key_file),
            "ansible_python_interpreter": machine.python,
        }
        for name, machine in zip(("alpha", "beta"), machines, strict=True)
    }
    begun = session(folder, folder / "gpuctl", env)
    (begun.home / ".ssh").mkdir(mode=0o700)
    keys = "".join(f"[{machine.host}]:{machine.port} {machine.host_key}\n" for machine in machines)
    (begun.home / ".ssh" / "known_hosts").write_text(keys)
    text = yaml.safe_dump({"all": {"hosts": hosts}})
    return Session(home=begun.home, project=begun.project, env=begun.env, files={"inventory.yaml": text})


@pytest.fixture
def begun(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    """Set up the session that the page requires at its beginning."""
    kind = session_of(request.node.callspec.params["page"])
    empty = Gpuctl(home=tmp_path / "gpuctl", cwd=tmp_path)
    with ExitStack() as running:
        if kind == "empty":
            yield session(tmp_path, empty.home, empty.env)
        elif kind == "oci":
            cloud = running.enter_context(cloud_gpuctl(KINDS["oci"], tmp_path / "cloud"))
            result = session(tmp_path, cloud.home, cloud.env)
            yield Session(home=result.home, project=result.project, env=result.env, rewrite=account)
            assert cloud.cloud.owned() == []
        else:
            shared: Path = request.getfixturevalue("shared_home")
            if kind == "hosts":
                yield machines_you_have(tmp_path, shared, empty.env)
            else:
                yield session(tmp_path, shared, empty.env)
    assert not processes_with(str(tmp_path)), "processes were left behind"


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_page_shows_commands_that_work(page: Path, begun: Session) -> None:
    for block in blocks_of(page):
        if block.title is not None:
            begun.write(block)
        for command in block.commands() if block.runs else ():
            begun.run(command, block.status)


def test_page_of_server_on_a_node_is_reached_over_plain_ssh(cluster: Gpuctl) -> None:
    # Same as in ~/.ssh/config for editors: the cluster's own file is included.
    (cluster.cwd / "config").write_text(f"Include {cluster.ok('ssh-config', '--json').json['path']}\n")
    free = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            free.append(listener.getsockname()[1])
    existing, local = free
    serve = f"exec {sys.executable} -m http.server --bind 127.0.0.1 {existing}"
    forward = ["-o", "ExitOnForwardFailure=yes", "-L", f"{local}:127.0.0.1:{existing}", "default-0", serve]
    tunnel = subprocess.Popen(
        ["ssh", "-tt", "-F", "config", *forward],
        cwd=cluster.cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def listing() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=10) as page:
                return str(page.read())
        except OSError:
            return ""

    try:
        assert "Directory listing" in wait_for(listing, what="the page of the server on the node")
    finally:
        tunnel.terminate()
        tunnel.wait(timeout=30)
    wait_for(lambda: not processes_with(f"127.0.0.1 {existing}"), what="the end of the server on the node")
