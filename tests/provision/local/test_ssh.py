"""A local host seen from outside: a real SSH server, as real SSH clients find it."""

import asyncio
import contextlib
import hashlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import psutil
import pytest
from support import alive, wait_for

from inventories.machine import Machine
from provision.ssh_keys import make_key

pytestmark = pytest.mark.slow

LIMIT_S = 20


@pytest.fixture(scope="module")
def cluster(make_cluster, tmp_path_factory):
    """Create a cluster of one host; its server is checked at the end of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        patch.setenv("OCI_CLI_KEY_CONTENT", "hunter2")
        patch.setenv("HF_TOKEN", "hunter2")
        patch.setenv("GPUCTL_HOME", "/nowhere")
        patch.setenv("LC_ALL", "C.UTF-8")
        made = make_cluster(tmp_path_factory.mktemp("home"))
        (machine,) = made.up(1)
    server = psutil.Process(made.server_pid(machine))
    files = server.num_fds()
    yield made
    # After all that the tests did to it: no traceback, no file left open, no child left over.
    wait_for(lambda: server.num_fds() == files, what="the server's close of its files")
    assert (made.folder.path / "local" / machine.name / "server.log").read_text() == ""
    assert [child.name() for child in server.children() if child.status() == psutil.STATUS_ZOMBIE] == []


@pytest.fixture(scope="module")
def machine(cluster) -> Machine:
    return cluster.provider.find()[0]


@pytest.fixture(scope="module")
def home(cluster, machine) -> Path:
    return Path(os.path.realpath(cluster.folder.path)) / "local" / machine.name / "home"


@pytest.fixture(scope="module")
def ssh(ssh_to, machine):
    return ssh_to(machine)


@contextlib.asynccontextmanager
async def connect(ssh, **options) -> AsyncIterator[asyncssh.SSHClientConnection]:
    machine = ssh.machine
    chosen = {"username": machine.user, "client_keys": [str(machine.key_file)], "agent_path": None} | options
    async with asyncio.timeout(LIMIT_S):
        async with asyncssh.connect(
            machine.host, machine.port, known_hosts=str(ssh.known_hosts), config=None, **chosen
        ) as connection:
            yield connection


def ended(pid: int) -> None:
    wait_for(lambda: not alive(pid), what="the end of the command")


def test_commands_take_signals_that_were_ignored_where_the_host_was_made(make_cluster, ssh_to, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        (machine,) = make_cluster(tmp_path / "home").up(1)
    finally:
        signal.signal(signal.SIGHUP, before)
    done = ssh_to(machine).run("kill -HUP $$; echo ignored")
    assert (done.stdout, done.returncode) == (b"", 255)


class TestCommands:
    def test_ssh_command_returns_stdout_stderr_and_exit_code(self, ssh):
        done = ssh.run("echo out; echo err >&2; exit 7")
        assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)

    def test_ssh_command_runs_in_its_home_with_its_own_environment(self, ssh, home, machine):
        done = ssh.run("pwd; env")
        where, _, env = done.stdout.decode().partition("\n")
        result = dict(line.split("=", 1) for line in env.splitlines())
        assert where == str(home)
        assert result["HOME"] == str(home)
        assert result["USER"] == result["LOGNAME"] == machine.user
        assert result["PATH"] == os.environ["PATH"]
        assert result["LC_ALL"] == "C.UTF-8"
        assert result["CUDA_VISIBLE_DEVICES"] == ""
        assert result["SSH_CONNECTION"].endswith(f"127.0.0.1 {machine.port}")

    def test_ssh_command_does_not_inherit_the_creators_secrets(self, ssh):
        env = ssh.run("env").stdout.decode()
        assert "hunter2" not in env
        assert set(re.findall(r"^GPUCTL_\w+", env, re.MULTILINE)) == {
            "GPUCTL_LOCAL_HOST",
            "GPUCTL_LOCAL_CLUSTER",
            "GPUCTL_UNUSED_GPUS",
        }

    def test_ssh_client_may_set_locale_variables_only(self, ssh):
        env = {**os.environ, "LC_TIME": "C", "LD_PRELOAD": "", "EVIL": "yes"}
        command = ssh.command("env", SendEnv="LC_TIME LD_PRELOAD EVIL")
        done = subprocess.run(command, env=env, capture_output=True, timeout=LIMIT_S, check=True)
        assert b"LC_TIME=C\n" in done.stdout
        assert b"EVIL" not in done.stdout
        assert b"LD_PRELOAD" not in done.stdout

    def test_ssh_copies_100_mib_both_ways_in_bounded_memory(self, ssh, cluster, machine, tmp_path):
        size, block = 100 << 20, os.urandom(1 << 20)
        source, sink = tmp_path / "source", tmp_path / "sink"
        with source.open("wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
        with source.open("rb") as stdin, sink.open("wb") as stdout:
            subprocess.run(ssh.command("cat"), stdin=stdin, stdout=stdout, check=True, timeout=120)
        assert digest(sink) == digest(source)
        if sys.platform == "linux":
            status = Path(f"/proc/{cluster.server_pid(machine)}/status").read_text()
            (peak_kb,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
            assert int(peak_kb) < 120_000

    def test_ssh_command_may_leave_its_input_unread(self, ssh):
        done = ssh.run("exec <&-; echo done", input=b"x" * (8 << 20))
        assert (done.stdout, done.returncode) == (b"done\n", 0)

    def test_ssh_command_receives_end_of_input(self, ssh):
        assert ssh.run("wc -c", input=b"12345").stdout.strip() == b"5"

    def test_ssh_command_keeps_quoted_arguments(self, ssh):
        text = 'it\'s "a" $HOME `x` \\ \n line'
        assert ssh.run(shlex.join(["printf", "%s", text])).stdout.decode() == text

    def test_ssh_command_that_is_too_long_exits_126_with_a_message(self, ssh):
        async def main() -> asyncssh.SSHCompletedProcess:
            async with connect(ssh) as connection:
                return await connection.run("true " + "x" * (200 << 10))

        done = asyncio.run(main())
        assert done.exit_status == 126
        assert "could not be started" in str(done.stderr)

    def test_ssh_session_ends_before_a_detached_background_process(self, ssh):
        done = ssh.run("sleep 300 </dev/null >/dev/null 2>&1 & echo $!")
        pid = int(done.stdout)
        try:
            assert alive(pid)
        finally:
            os.kill(pid, 9)

    def test_ssh_session_waits_for_background_process_with_its_output(self, ssh):
        done = ssh.run("(sleep 0.3; echo late) & echo early")
        assert done.stdout == b"early\nlate\n"

    def test_ssh_connection_carries_30_channels(self, ssh):
        async def main() -> list[str]:
            async with connect(ssh) as connection:
                runs = [connection.run(f"sleep 0.1; echo {number}", check=True) for number in range(30)]
                return [str(done.stdout).strip() for done in await asyncio.gather(*runs)]

        assert asyncio.run(main()) == [str(number) for number in range(30)]

    def test_ssh_refuses_an_unknown_subsystem(self, ssh):
        done = ssh.run("-s", "nonsense")  # the option's place is after the host's name for OpenSSH as well
        assert done.returncode != 0


class TestSignals:
    def test_ssh_reports_the_signal_that_ended_a_command(self, ssh):
        async def main() -> asyncssh.SSHCompletedProcess:
            async with connect(ssh) as connection:
                return await connection.run("kill -KILL $$")

        done = asyncio.run(main())
        assert done.exit_signal[0] == "KILL"
        assert ssh.run("kill -KILL $$").returncode == 255

    def test_ssh_client_signal_reaches_the_whole_process_group(self, ssh):
        async def main() -> tuple[int | None, str]:
            async with connect(ssh) as connection:
                inner = "trap 'echo inner; exit' TERM; echo ready; while :; do sleep 0.05; done"
                command = f'trap "wait; echo outer; exit 5" TERM; sh -c {shlex.quote(inner)} & wait'
                async with connection.create_process(command, stdin=asyncssh.DEVNULL) as process:
                    await process.stdout.readline()
                    process.terminate()
                    done = await process.wait()
                    return done.exit_status, str(done.stdout)

        assert asyncio.run(main()) == (5, "inner\nouter\n")

    @pytest.mark.parametrize("manner", ["the channel", "the connection"])
    def test_closed_ssh_channel_ends_the_command_but_not_a_setsid_child(self, ssh, manner):
        async def main() -> tuple[int, int]:
            async with connect(ssh) as connection:
                process = await connection.create_process(
                    "setsid sh -c 'echo detached $$; exec sleep 300 </dev/null >/dev/null 2>&1' & "
                    "sleep 300 & echo attached $!; wait"
                )
                lines = [await process.stdout.readline(), await process.stdout.readline()]
                pids = {name: int(pid) for name, pid in (line.split() for line in lines)}
                attached, detached = pids["attached"], pids["detached"]
                if manner == "the channel":
                    process.close()
                    await process.wait_closed()
                    await asyncio.to_thread(ended, attached)
                return detached, attached

        detached, attached = asyncio.run(main())
        try:
            ended(attached)
            assert alive(detached)
        finally:
            os.kill(detached, 9)


class TestTerminal:
    def test_ssh_terminal_supports_resize_and_interrupt(self, ssh):
        async def main() -> str:
            async with (
                connect(ssh) as connection,
                connection.create_process(term_type="xterm", term_size=(80, 24)) as shell,
            ):
                shell.stdin.write("PS1=; stty -echo; tty; stty size; echo $TERM; echo mark$((0+1))\n")
                received = await shell.stdout.readuntil("mark1\r\n")
                shell.change_terminal_size(132, 50)
                shell.stdin.write("stty size; echo mark$((1+1))\n")
                received += await shell.stdout.readuntil("mark2\r\n")
                shell.stdin.write("sh -c 'echo sleeping; exec sleep 300'; echo status $?\n")
                await shell.stdout.readuntil("sleeping\r\n")
                shell.stdin.write("\x03")
                shell.stdin.write("echo status $?\n")
                received += await shell.stdout.readuntil(["status 0\r\n", "status 130\r\n"])
                shell.stdin.write("exit 3\n")
                done = await shell.wait()
                assert done.exit_status == 3
                return received

        received = asyncio.run(main())
        assert re.search(r"/dev/(pts/\d+|ttys\d+)", received)
        assert "24 80" in received
        assert "50 132" in received
        assert "xterm" in received
        assert "status 130" in received

    def test_ssh_command_gets_a_forced_terminal(self, ssh):
        command = ssh.command("test -t 0 && test -t 1 && echo terminal; exit 4", RequestTTY="force")
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S)
        assert (done.stdout, done.returncode) == (b"terminal\r\n", 4)

    def test_ssh_shell_without_terminal_runs_a_script_from_stdin(self, ssh):
        assert ssh.run(input=b"echo one\nexit 6\n").returncode == 6

    def test_lost_ssh_connection_ends_the_terminal_process(self, ssh):
        async def main() -> int:
            async with connect(ssh) as connection:
                process = await connection.create_process("echo $$; sleep 300", term_type="xterm")
                pid = int(await process.stdout.readline())
                connection.abort()
                return pid

        pid = asyncio.run(main())
        wait_for(lambda: not alive(pid), what="the command's end with its terminal")


class TestFiles:
    def test_scp_copies_both_ways_relative_to_the_home(self, ssh, home, tmp_path):
        data = os.urandom(3 << 20)
        source, back = tmp_path / "a file", tmp_path / "back"
        source.write_bytes(data)
        options = ssh.options(Port=str(ssh.machine.port))
        subprocess.run(
            ["scp", "-q", *options, source, f"{ssh.machine.host}:copied"], check=True, timeout=LIMIT_S
        )
        assert (home / "copied").read_bytes() == data
        subprocess.run(
            ["scp", "-q", *options, f"{ssh.machine.host}:copied", back], check=True, timeout=LIMIT_S
        )
        assert back.read_bytes() == data

    def test_sftp_starts_in_the_home_folder(self, ssh, home):
        (home / "folder").mkdir()
        command = ["sftp", "-q", *ssh.options(Port=str(ssh.machine.port)), "-b", "-", ssh.machine.host]
        done = subprocess.run(
            command, input=b"pwd\nmkdir folder/inner\nls folder\n", capture_output=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stderr
        assert str(home).encode() in done.stdout
        assert (home / "folder" / "inner").is_dir()


class TestWhoMayComeIn:
    def test_ssh_refuses_another_key(self, ssh, tmp_path):
        make_key(tmp_path / "other")
        command = ssh.command("true", IdentityFile=str(tmp_path / "other"))
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S)
        assert done.returncode == 255
        assert b"Permission denied (publickey)" in done.stderr

    def test_ssh_refuses_another_user(self, ssh):
        done = subprocess.run(ssh.command("true", User="somebody"), capture_output=True, timeout=LIMIT_S)
        assert b"Permission denied (publickey)" in done.stderr

    @pytest.mark.parametrize("password", ["", "root", "password"])
    def test_ssh_refuses_password_login(self, ssh, password):
        async def main() -> None:
            async with connect(ssh, password=password, client_keys=None):
                pass

        with pytest.raises(asyncssh.PermissionDenied):
            asyncio.run(main())

    def test_ssh_server_listens_on_loopback_only(self, cluster, machine):
        server = psutil.Process(cluster.server_pid(machine))
        listening = [entry.laddr for entry in server.net_connections("inet") if entry.status == "LISTEN"]
        assert listening == [("127.0.0.1", machine.port)]


class TestTunnels:
    @pytest.fixture
    def echo_port(self) -> Iterator[int]:
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve() -> None:
                connection, _ = server.accept()
                with connection:
                    connection.sendall(connection.recv(100).upper())

            thread = threading.Thread(target=serve)
            thread.start()
            yield server.getsockname()[1]
            thread.join(LIMIT_S)

    def test_ssh_tunnel_reaches_a_local_port(self, ssh, echo_port):
        async def main() -> bytes:
            async with connect(ssh) as connection:
                reader, writer = await connection.open_connection("127.0.0.1", echo_port)
                writer.write(b"hello")
                data = await reader.read(100)
                writer.close()
                return data

        assert asyncio.run(main()) == b"HELLO"

    @pytest.mark.parametrize("target", ["192.0.2.1", "example.invalid"])
    def test_ssh_tunnel_to_another_address_is_refused(self, ssh, target):
        async def main() -> None:
            async with connect(ssh) as connection:
                await connection.open_connection(target, 80)

        with pytest.raises(asyncssh.ChannelOpenError):
            asyncio.run(main())


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
