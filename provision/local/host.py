"""One host of the provider `local`: a small real SSH server, `python -P host.py CONFIG`.

CONFIG is a JSON file with `user`, `authorized_key` (text, a key a line), `host_key` (path), `home` (path) and
`gpus` (path of a file with a list such as `0,1`). It may have the `address` on loopback and the `port` to listen on,
and `authorized_keys_files`, paths of files with more keys, which need not exist. The server accepts these keys for
this user, and runs commands in the home with its own environment. Once it accepts connections it prints a line of
JSON, `{"pid": …, "port": …}`; after that its stdout is its stderr.

Run by its path. Imports no package of ours.
"""

import asyncio
import ctypes
import errno
import fcntl
import ipaddress
import json
import logging
import os
import signal as signals
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

ACCEPTED_ENV = ("LANG", "LC_", "COLORTERM")
"""Prefixes of variables that a client may set: as many as an OpenSSH server as distributions ship it."""

CHUNK = 64 * 1024
"""Bytes read at once from a command."""

ALL_RECEIVED = 1 << 30
"""Bytes read at once from a client: in fact at most a few windows of 2 MiB. After each read, asyncssh opens the whole
window again, so smaller reads would let the rest pile up."""

_PR_SET_CHILD_SUBREAPER = 36

Size = tuple[int, int, int, int]
"""Columns, rows, and unused pixels."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The fields of CONFIG."""

    user: str
    authorized_key: str
    host_key: str
    home: str
    gpus: str
    address: str = "127.0.0.1"
    port: int = 0
    """0: the system picks one."""
    authorized_keys_files: tuple[str, ...] = ()
    """Files with more keys, read at each login."""

    def __post_init__(self) -> None:
        # A mistyped address must not open a shell on this machine to the network.
        if not ipaddress.ip_address(self.address).is_loopback:
            raise ValueError(f"'{self.address}' is not on loopback")


class Children:
    """The child processes of this host: commands, and adopted orphans."""

    def __init__(self) -> None:
        self._exits: dict[int, asyncio.Future[int]] = {}

    def exit_of(self, child: subprocess.Popen[bytes]) -> asyncio.Future[int]:
        """Return the future exit code. Negative: ended by that signal."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._exits[child.pid] = future
        future.add_done_callback(lambda done: setattr(child, "returncode", done.result()))
        return future

    def reap(self) -> None:
        """Collect all ended children. Called on SIGCHLD."""
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
    """The rules for logins and tunnels."""

    def __init__(self, config: Config, children: Children) -> None:
        self._config = config
        self._children = children
        lines = [line for line in config.authorized_key.splitlines() if line.strip()]
        self._keys = [asyncssh.import_public_key(line) for line in lines]

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002
        """Require authentication."""
        return True

    def public_key_auth_supported(self) -> bool:
        """Support keys, as the only method."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept the authorised keys, for one user."""
        return username == self._config.user and (key in self._keys or key in self._keys_in_files())

    def _keys_in_files(self) -> list[asyncssh.SSHKey]:
        files = [Path(path) for path in self._config.authorized_keys_files]
        lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
        return [asyncssh.import_public_key(line) for line in lines if line.strip()]

    def session_requested(self) -> "Session":
        """Accept every kind of session."""
        return Session(self._config, self._children)

    def connection_requested(self, dest_host: str, *_: object) -> bool:
        """Accept tunnels to this machine."""
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
    exited: asyncio.Future[int]
    stdin: int
    stdout: int
    stderr: int | None
    terminal: bool

    def send(self, number: int) -> None:
        """Signal the command's process group, which it leads."""
        if not self.exited.done():
            os.killpg(self.child.pid, number)

    def close_stdin(self) -> None:
        """End the command's input. A terminal has no end."""
        if self.child.stdin is not None:
            self.child.stdin.close()

    def close(self) -> None:
        """Close our ends."""
        for stream in (self.child.stdin, self.child.stdout, self.child.stderr):
            if stream is not None:
                stream.close()
        if self.terminal:
            os.close(self.stdin)


class Files(asyncssh.SFTPServer):
    """SFTP. Relative paths begin in the home, the server's current folder."""

    def exit(self) -> None:
        """Exit with 0, without which `scp` reports a failure."""
        self.channel.exit(0)


class Session(asyncssh.SSHServerProcess[bytes]):
    """One channel: a command, a shell, or SFTP by asyncssh."""

    def __init__(self, config: Config, children: Children) -> None:
        super().__init__(lambda _: self._serve(), Files, 3, False)  # type: ignore[arg-type]
        self._config = config
        self._children = children
        self._running: Command | None = None

    def signal_received(self, signal: str) -> None:
        """Send the signal that the client requests."""
        number = getattr(signals, f"SIG{signal}", None)
        if self._running is not None and number is not None:
            self._running.send(number)

    def break_received(self, msec: int) -> bool:  # noqa: ARG002
        """Reject breaks."""
        return False

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:  # noqa: ARG002
        """Resize the terminal to the client's window."""
        if self._running is not None and self._running.terminal:
            termios.tcsetwinsize(self._running.stdin, (height, width))

    async def _serve(self) -> None:
        if self.subsystem:
            self._refuse(f"This host has no subsystem '{self.subsystem}'.")
            return
        try:
            argv = [self._shell()] if self.command is None else ["/bin/sh", "-c", self.command]
            start = _start_with_pipes if self.term_type is None else _start_in_terminal
            command = self._running = start(argv, self._command_env(), self.term_size, self._children)
        except OSError as error:
            self._refuse(f"The command could not be started: {error.strerror}.")
            return
        closed = asyncio.create_task(self.channel.wait_closed())
        pumps = [asyncio.create_task(_feed(command, self.stdin))]
        pumps.append(asyncio.create_task(_forward(command.stdout, self.stdout)))
        if command.stderr is not None:
            pumps.append(asyncio.create_task(_forward(command.stderr, self.stderr)))
        try:
            # As in OpenSSH, the session lasts until no process holds the command's output any more.
            await _until(closed, command.exited)
            await _until(closed, *pumps[1:])
        finally:
            for pump in pumps:
                pump.cancel()
            # Our ends are closed only when no task waits for them any more.
            await asyncio.gather(*pumps, return_exceptions=True)
            self._running = None
            command.close()
            command.send(signals.SIGHUP)
        if not closed.done():
            closed.cancel()
            code = command.exited.result()
            if code >= 0:
                self.exit(code)
            else:
                self.exit_with_signal(signals.Signals(-code).name.removeprefix("SIG"))

    def _shell(self) -> str:
        shell = "/bin/sh" if self.term_type is None else os.environ["SHELL"]
        return shell if os.access(shell, os.X_OK) else "/bin/sh"

    def _command_env(self) -> dict[str, str]:
        accepted = {key: value for key, value in self.env.items() if key.startswith(ACCEPTED_ENV)}
        client, server = self.get_extra_info("peername"), self.get_extra_info("sockname")
        env = os.environ | accepted | {"SSH_CONNECTION": f"{client[0]} {client[1]} {server[0]} {server[1]}"}
        if self.term_type is not None:
            env["TERM"] = self.term_type
        # Read anew for each session: the share changes when the cluster grows.
        gpus = Path(self._config.gpus)
        env["CUDA_VISIBLE_DEVICES"] = gpus.read_text() if gpus.exists() else ""
        env["GPUCTL_UNUSED_GPUS"] = "note"  # a laptop or a container may have unused ones on purpose
        return env

    def _refuse(self, reason: str) -> None:
        self.stderr.write(reason.encode() + b"\n")
        self.exit(126)


def _start_with_pipes(argv: list[str], env: dict[str, str], _size: Size, children: Children) -> Command:
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
    )
    assert child.stdin and child.stdout and child.stderr
    stdin, stdout, stderr = child.stdin.fileno(), child.stdout.fileno(), child.stderr.fileno()
    for end in (stdin, stdout, stderr):
        os.set_blocking(end, False)
    exited = children.exit_of(child)
    return Command(child=child, exited=exited, stdin=stdin, stdout=stdout, stderr=stderr, terminal=False)


def _start_in_terminal(argv: list[str], env: dict[str, str], size: Size, children: Children) -> Command:
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
    exited = children.exit_of(child)
    return Command(child=child, exited=exited, stdin=master, stdout=master, stderr=None, terminal=True)


async def _feed(command: Command, source: asyncssh.SSHReader[bytes]) -> None:
    """Copy the input, to its end."""
    while data := await source.read(ALL_RECEIVED):
        if not await _write(command.stdin, data):
            return
    command.close_stdin()


async def _forward(source: int, target: asyncssh.SSHWriter[bytes]) -> None:
    """Copy the command's output to its end, no faster than the client takes it."""
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
    """Write all. False: the reader closed its end."""
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


async def _until(closed: asyncio.Future[None], *futures: asyncio.Future[Any]) -> None:
    """Wait for the futures, or until the channel is closed."""
    either: list[asyncio.Future[Any]] = [closed, asyncio.gather(*futures, return_exceptions=True)]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)


async def serve(config: Config) -> None:
    """Serve until killed."""
    children = Children()
    asyncio.get_running_loop().add_signal_handler(signals.SIGCHLD, children.reap)
    acceptor = await asyncssh.listen(
        config.address,
        config.port,
        server_factory=lambda: Server(config, children),
        server_host_keys=[config.host_key],
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
    """Become a daemon, and serve."""
    config = Config(**json.loads(Path(config_path).read_text()))
    if os.fork():
        os._exit(0)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    os.chdir(config.home)
    # `nohup` or a background job ignores these signals: commands would inherit that, and could not be ended.
    for number in (signals.SIGHUP, signals.SIGINT, signals.SIGQUIT, signals.SIGTERM):
        signals.signal(number, signals.SIG_DFL)
    # This lock, held until the process ends, keeps systemd-tmpfiles from cleaning the folder up.
    if folder := os.environ.get("TMPDIR"):
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)  # until this process ends
    # Linux: become the parent of orphans below us, so that they can be found there.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        asyncio.run(serve(config))
    except BrokenPipeError:
        sys.exit("Nobody waits for this host any more: it ends.")


if __name__ == "__main__":
    main(sys.argv[1])
