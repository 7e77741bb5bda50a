"""One host of the provider `local`: a small real SSH server, `python -P local_host.py CONFIG`.

CONFIG is a JSON file with `user`, `authorized_key` (text), `host_key` (path), `home` (path) and `gpus` (path
of a file with a list such as `0,1`). The server listens on loopback, accepts that one key of that one user,
and runs commands in its home with the environment that it was started with. Once it accepts connections it
prints a line of JSON, `{"pid": …, "port": …}`; after that its stdout is its stderr.

It is run by its path and imports nothing of ours.
"""

import asyncio
import ctypes
import errno
import fcntl
import ipaddress
import json
import logging
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

ACCEPTED_ENV = ("LANG", "LC_", "COLORTERM")
"""What a client may set, by prefix: no more than an OpenSSH server as distributions ship it."""

CHUNK = 64 * 1024
"""Bytes passed on at once."""

_PR_SET_CHILD_SUBREAPER = 36

Process = asyncssh.SSHServerProcess[bytes]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The fields of CONFIG."""

    user: str
    authorized_key: str
    host_key: str
    home: str
    gpus: str


class Children:
    """The processes of this host that are our children: commands, and orphans that we adopted."""

    def __init__(self) -> None:
        self._exits: dict[int, asyncio.Future[int]] = {}

    def exit_of(self, child: subprocess.Popen[bytes]) -> asyncio.Future[int]:
        """Will hold the exit code; negative: ended by that signal."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._exits[child.pid] = future
        future.add_done_callback(lambda done: setattr(child, "returncode", done.result()))
        return future

    def reap(self) -> None:
        """Collect all that have ended: called on SIGCHLD."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if future := self._exits.pop(pid, None):
                future.set_result(os.waitstatus_to_exitcode(status))


class Server(asyncssh.SSHServer):
    """Who may come in, and where to they may tunnel."""

    def __init__(self, config: Config) -> None:
        self._user = config.user
        self._key = asyncssh.import_public_key(config.authorized_key)

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002
        """Nobody comes in without a key."""
        return True

    def public_key_auth_supported(self) -> bool:
        """Keys are the only way in."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """One user, one key."""
        return username == self._user and key == self._key

    def connection_requested(self, dest_host: str, *_: object) -> bool:
        """Tunnels end on this machine."""
        if dest_host == "localhost":
            return True
        try:
            return ipaddress.ip_address(dest_host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A running command and our ends of its streams: three pipes, or one terminal for all."""

    child: subprocess.Popen[bytes]
    stdin: int
    stdout: int
    stderr: int | None
    terminal: bool

    def send(self, number: int) -> None:
        """Signal all of the command: it leads a process group of its own."""
        os.killpg(self.child.pid, number)

    def close_stdin(self) -> None:
        """Let the command read the end of its input; a terminal has none."""
        if self.child.stdin is not None:
            self.child.stdin.close()

    def close(self) -> None:
        """Close our ends."""
        for stream in (self.child.stdin, self.child.stdout, self.child.stderr):
            if stream is not None:
                stream.close()
        if self.terminal:
            os.close(self.stdin)


class Sessions:
    """Commands and shells."""

    def __init__(self, config: Config, children: Children) -> None:
        self._config = config
        self._children = children

    async def run(self, process: Process) -> None:
        """Run what the client asks for and report how it ended."""
        if process.subsystem:
            _refuse(process, f"This host has no subsystem '{process.subsystem}'.")
            return
        try:
            command = self._start(process)
        except OSError as error:
            _refuse(process, f"The command could not be started: {error.strerror}.")
            return
        exited = self._children.exit_of(command.child)
        closed = asyncio.create_task(process.channel.wait_closed())
        feed = asyncio.create_task(_feed(process, command, exited))
        outputs = [asyncio.create_task(_forward(command.stdout, process.stdout))]
        if command.stderr is not None:
            outputs.append(asyncio.create_task(_forward(command.stderr, process.stderr)))
        try:
            # As in OpenSSH, the session lasts until nobody holds the command's output any more.
            await _until(closed, exited)
            await _until(closed, *outputs)
        finally:
            for task in (feed, *outputs):
                task.cancel()
            # Our ends are closed only when nobody waits for them any more.
            await asyncio.gather(feed, *outputs, return_exceptions=True)
            command.close()
            if not exited.done():
                command.send(signal.SIGHUP)
        if not closed.done():
            closed.cancel()
            _report(process, exited.result())

    def _start(self, process: Process) -> Command:
        argv = [self._shell(process)] if process.command is None else ["/bin/sh", "-c", process.command]
        env = self._env(process)
        if process.term_type is not None:
            return _start_in_terminal(argv, env, process.term_size)
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
        )
        assert child.stdin and child.stdout and child.stderr
        ends = [stream.fileno() for stream in (child.stdin, child.stdout, child.stderr)]
        for end in ends:
            os.set_blocking(end, False)
        return Command(child=child, stdin=ends[0], stdout=ends[1], stderr=ends[2], terminal=False)

    def _shell(self, process: Process) -> str:
        shell = os.environ["SHELL"] if process.term_type is not None else "/bin/sh"
        return shell if os.access(shell, os.X_OK) else "/bin/sh"

    def _env(self, process: Process) -> dict[str, str]:
        asked = {key: value for key, value in process.env.items() if key.startswith(ACCEPTED_ENV)}
        client, server = process.get_extra_info("peername"), process.get_extra_info("sockname")
        env = os.environ | asked | {"SSH_CONNECTION": f"{client[0]} {client[1]} {server[0]} {server[1]}"}
        if process.term_type is not None:
            env["TERM"] = process.term_type
        # Read anew for each session: the share changes when the cluster grows.
        gpus = Path(self._config.gpus)
        env["CUDA_VISIBLE_DEVICES"] = gpus.read_text() if gpus.exists() else ""
        return env


def _start_in_terminal(argv: list[str], env: dict[str, str], size: tuple[int, int, int, int]) -> Command:
    master, terminal = os.openpty()
    try:
        termios.tcsetwinsize(terminal, (size[1], size[0]))
        child = subprocess.Popen(
            argv,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(terminal)
    os.set_blocking(master, False)
    return Command(child=child, stdin=master, stdout=master, stderr=None, terminal=True)


async def _feed(process: Process, command: Command, exited: asyncio.Future[int]) -> None:
    """Pass on what the client sends: input, signals, its terminal's size. Ends with the input."""
    deaf = False
    while not exited.done():
        try:
            data = await process.stdin.read(CHUNK)
        except asyncssh.TerminalSizeChanged as change:
            if command.terminal:
                termios.tcsetwinsize(command.stdin, (change.height, change.width))
            continue
        except asyncssh.SignalReceived as received:
            number = getattr(signal, f"SIG{received.signal}", None)
            if number is not None and not exited.done():
                command.send(number)
            continue
        except asyncssh.BreakReceived:
            continue
        if not data:
            command.close_stdin()
            return
        # A command may close its input and go on: the rest is for nobody, but signals still are for it.
        deaf = deaf or not await _write(command.stdin, data)


async def _forward(source: int, target: asyncssh.SSHWriter[bytes]) -> None:
    """Pass on what the command writes, no faster than the client takes it, to the end."""
    loop = asyncio.get_running_loop()
    while True:
        await _ready(source, loop.add_reader, loop.remove_reader)
        try:
            data = os.read(source, CHUNK)
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno != errno.EIO:  # Linux: the last process left the terminal
                raise
            return
        if not data:
            return
        target.write(data)
        await target.drain()


async def _write(target: int, data: bytes) -> bool:
    """Write all; False: nobody reads any more."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(target, rest) :]
        except BlockingIOError:
            await _ready(target, loop.add_writer, loop.remove_writer)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return False
    return True


async def _ready(
    file: int, add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], bool]
) -> None:
    ready = asyncio.Event()
    add(file, ready.set)
    try:
        await ready.wait()
    finally:
        remove(file)


async def _until(closed: asyncio.Future[None], *others: asyncio.Future[Any]) -> None:
    """Wait for all the others, or until the channel is closed."""
    every = asyncio.gather(*others, return_exceptions=True)
    await asyncio.wait([closed, every], return_when=asyncio.FIRST_COMPLETED)


def _refuse(process: Process, reason: str) -> None:
    process.stderr.write(reason.encode() + b"\n")
    process.exit(126)


def _report(process: Process, code: int) -> None:
    if code >= 0:
        process.exit(code)
    else:
        process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))


def _adopt_orphans() -> None:
    """Linux: a process whose parent ends becomes our child, so that it can be found below us."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def serve(config: Config) -> None:
    """Serve until killed."""
    children = Children()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, children.reap)
    acceptor = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: Server(config),
        server_host_keys=[config.host_key],
        process_factory=Sessions(config, children).run,
        sftp_factory=True,
        encoding=None,
        line_editor=False,
        password_auth=False,
        kbdint_auth=False,
        gss_host=None,
        agent_forwarding=False,
    )
    print(json.dumps({"pid": os.getpid(), "port": acceptor.get_port()}), flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    await acceptor.wait_closed()


def main(config_path: str) -> None:
    """Become nobody's child, and serve."""
    config = Config(**json.loads(Path(config_path).read_text()))
    if os.fork():
        os._exit(0)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    os.chdir(config.home)
    _adopt_orphans()
    try:
        asyncio.run(serve(config))
    except BrokenPipeError:
        sys.exit("Nobody waits for this host any more: it ends.")


if __name__ == "__main__":
    main(sys.argv[1])
