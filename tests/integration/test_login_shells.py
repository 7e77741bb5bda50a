"""Accounts whose login shell is not bash, or whose start-up files print, read, end or start another shell."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import a_machine

from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from remote import facts
from remote.errors import ConnectionLost, NodeFailed, NoPython, ShellFailed
from remote.sessions.connect import connect
from remote.transport import known_hosts
from tests.fakes.vms import Host, lacking, vms

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]

BASHRC = "/home/ubuntu/.bashrc"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with vms(tmp_path_factory.mktemp("vms"), count=1) as net:
        yield net.hosts[0]


@pytest.fixture
def machine(host: Host) -> Iterator[Machine]:
    yield a_machine(name="box", host=host.address, user=host.user, gpus=None, key_file=host.key_file)
    host.root(f": > {BASHRC}; usermod -s /bin/bash {host.user}")


def twice(host: Host, machine: Machine, folder: Path, *, runs: bool = True, errors: bytes = b"two\n") -> None:
    """Ask for facts with the first command of a connection, and with a later one; then run a person's command."""
    cluster = ClusterFolder(folder / "cluster")
    cluster.make()
    cluster.known_hosts_path.write_text(f"{known_hosts.host_pattern(machine.host, 22)} {host.host_key}\n")
    node = connect(machine, cluster)
    try:
        assert facts.gather(node, ()).boot_id == facts.gather(node, ()).boot_id
        if runs:
            done = node.run("sh -c 'echo one; echo two >&2; exit 3'")
            assert (done.exit_code, done.stdout.removesuffix(b"bye\n"), done.stderr) == (3, b"one\n", errors)
        else:
            with pytest.raises(ShellFailed, match="did not run the command: it ended with exit status 0"):
                node.run("echo one")
    finally:
        node.close()


@pytest.mark.parametrize("shell", ["sh", "tcsh", "fish", "zsh"])
def test_login_shells_run_what_gpuctl_asks_for(
    host: Host, machine: Machine, tmp_path: Path, shell: str
) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"needs {shell} (Debian: apt-get install {shell})")
    host.root(f"usermod -s {path} {host.user}")
    twice(host, machine, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        'echo "Welcome to alpha!"',
        "printf Welcome",
        'read -p "which env? " E',
        "read A; read B; read C",
        "exec /bin/bash --norc",
        "exec /bin/sh",
        "[ -x /usr/bin/zsh ] && exec /usr/bin/zsh",
        "trap 'echo bye' EXIT",
        "echo {} >&2",
    ],
)
def test_start_up_files_that_print_or_read_are_passed(
    host: Host, machine: Machine, tmp_path: Path, line: str
) -> None:
    if "zsh" in line and shutil.which("zsh") is None:
        pytest.skip("needs zsh (Debian: apt-get install zsh)")
    host.root(f"cat > {BASHRC} <<'EOF'\n{line}\nEOF")
    errors = b"{}\ntwo\n" if ">&2" in line else b"two\n"
    twice(host, machine, tmp_path, runs="exec" not in line, errors=errors)


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("exit 0", "0 and printed nothing"),
        ("set -e; false", "1 and printed nothing"),
        ("echo 'no jobs here'; exit 3", "3 and printed 'no jobs here'"),
        ("exec sh -c 'echo not a terminal >&2; exit 1'", "1 and printed 'not a terminal'"),
    ],
)
def test_start_up_files_that_end_are_named(
    host: Host, machine: Machine, tmp_path: Path, line: str, printed: str
) -> None:
    host.root(f"cat > {BASHRC} <<'EOF'\n{line}\nEOF")
    with pytest.raises(ShellFailed) as caught:
        twice(host, machine, tmp_path)
    expected = (
        f"box: the login shell of ubuntu did not run the command: it ended with exit status {printed}. "
    )
    assert str(caught.value).startswith(expected)
    assert "ython" not in str(caught.value)
    command = f"ssh -i {machine.key_file} ubuntu@{machine.host} 'echo this account runs commands'"
    assert str(caught.value).endswith(f"See: {command}")


def test_account_that_may_not_log_in_is_named(host: Host, machine: Machine, tmp_path: Path) -> None:
    host.root(f"usermod -s /usr/sbin/nologin {host.user}")
    with pytest.raises(
        ShellFailed, match=r"'This account is currently not available\.'\. .*chsh -s /bin/bash ubuntu$"
    ):
        twice(host, machine, tmp_path)


def test_start_up_file_that_takes_all_input_is_named(host: Host, machine: Machine, tmp_path: Path) -> None:
    host.root(f"echo 'echo waiting; cat >/dev/null' > {BASHRC}")
    cluster = ClusterFolder(tmp_path / "cluster")
    cluster.make()
    cluster.known_hosts_path.write_text(f"{machine.host} {host.host_key}\n")
    node = connect(machine, cluster)
    with pytest.raises(ConnectionLost, match=r"has not run the command\. It printed 'waiting'.*See: ssh "):
        node.call("facts", {}, timeout_s=2)
    node.close()


def test_python_is_blamed_with_proof(host: Host, machine: Machine, tmp_path: Path) -> None:
    for path, error, text in (
        ("/no/python3", NoPython, r"Python \(/no/python3\) is not there, or can't be started: .*not found"),
        ("/bin/true", NodeFailed, "/bin/true does not run gpuctl's part: it ended with exit status 0"),
    ):
        with pytest.raises(error, match=text):
            twice(host, replace(machine, python=path), tmp_path)
