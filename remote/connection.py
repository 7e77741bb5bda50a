"""One SSH connection a node: pinned host key, a socket that notices a dead peer, and requests to the agent."""

import logging
import shlex
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Self

import fabric
import paramiko
from paramiko.pkey import UnknownKeyType

from inventories.machine import Machine
from remote import agent
from remote.errors import (
    AuthenticationFailed,
    BadAnswer,
    ConnectionLost,
    DiskFull,
    HostKeyRejected,
    NodeFailed,
    Unreachable,
)
from remote.known_hosts import host_pattern
from remote.node import frames
from remote.node.__main__ import DISK_FULL

CONNECT_TIMEOUT_S = 15.0
KEEPALIVE_S = 10
DEAD_PEER_S = 20
"""Unacknowledged data for this long means that the peer is gone (TCP_USER_TIMEOUT)."""

# paramiko's threads print tracebacks of their own; what matters reaches us as an exception.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that ended."""

    exit_code: int
    """Negative: the connection or the process died of a signal."""
    stdout: bytes
    stderr: bytes


class Node:
    """An open connection to a machine."""

    def __init__(self, machine: Machine, connection: fabric.Connection) -> None:
        self.machine = machine
        self.python = machine.python or "python3"
        self._connection = connection
        self._booted = False
        self._lock = Lock()

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.machine.name

    def close(self) -> None:
        """Close the connection; what runs detached on the node goes on."""
        self._connection.close()

    def run(self, command: str, stdin: bytes = b"") -> Completed:
        """Run a shell command to its end. Raises ConnectionLost where the link breaks."""
        channel = self._open(command)
        stderr: list[bytes] = []
        reader = Thread(target=_drain_stderr, args=(channel, stderr), daemon=True)
        reader.start()
        try:
            channel.sendall(stdin)
            channel.shutdown_write()
            stdout = b"".join(iter(lambda: channel.recv(frames.CHUNK_BYTES), b""))
            code = channel.recv_exit_status()
            reader.join()
        except OSError as error:
            raise ConnectionLost(f"{self.name}: the connection broke during `{command}`: {error}.") from error
        finally:
            channel.close()
        return Completed(exit_code=code, stdout=stdout, stderr=b"".join(stderr))

    def ask(self, command: str, request: dict[str, Any]) -> dict[str, Any]:
        """One request to the agent, one frame as the answer."""
        with self.converse(command, request) as talk:
            answers = [header for header, _ in talk.frames()]
        if len(answers) != 1:
            raise BadAnswer(f"{self.name}: expected one answer to {command}, got {len(answers)}.")
        return answers[0]

    def converse(
        self, command: str, request: dict[str, Any], *, timeout_s: float | None = 60
    ) -> "Conversation":
        """Start an agent command; the conversation must be closed (it is a context manager)."""
        document = frames.encode(request)
        with self._lock:
            if self._booted:
                channel, ahead = self._open(agent.next_command(self.python, command)), b""
            else:
                line, ahead = agent.first_command(self.python, command)
                channel = self._open(line)
                self._booted = True
        channel.settimeout(timeout_s)
        talk = Conversation(self, command, channel)
        talk.send_bytes(ahead + document)
        return talk

    def _open(self, command: str) -> paramiko.Channel:
        try:
            transport = self._connection.transport
            if transport is None:
                raise ConnectionLost(f"{self.name}: the connection is closed.")
            channel: paramiko.Channel = transport.open_session(timeout=CONNECT_TIMEOUT_S)
            channel.exec_command(command.encode())
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise ConnectionLost(f"{self.name}: the connection broke: {error or 'closed'}.") from error
        return channel


class Conversation:
    """A running agent command: frames both ways."""

    def __init__(self, node: Node, command: str, channel: paramiko.Channel) -> None:
        self._node = node
        self._command = command
        self._channel = channel

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def send_bytes(self, data: bytes) -> None:
        """Send bytes to the command's standard input."""
        try:
            self._channel.sendall(data)
        except OSError as error:
            self._fail_if_it_ended()
            raise ConnectionLost(
                f"{self._node.name}: the connection broke during {self._command}."
            ) from error

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Send one frame."""
        self.send_bytes(frames.encode(header, body))

    def frames(self) -> Iterator[frames.Frame]:
        """The command's frames to their end.

        Raises ConnectionLost (link broken, or silent for longer than the timeout), NodeFailed with the
        command's own sentence, BadAnswer where something else speaks.
        """
        stream = self._channel.makefile("rb", -1)
        try:
            yield from frames.decode(stream.readline, stream.read)
        except TimeoutError as error:
            silent = self._channel.gettimeout()
            raise ConnectionLost(f"{self._node.name}: nothing was heard for {silent:.0f} s.") from error
        except OSError as error:
            raise ConnectionLost(f"{self._node.name}: the connection broke: {error}.") from error
        except frames.BadFrame as error:
            self._fail_if_it_ended()
            raise BadAnswer(f"{self._node.name}: {error}.") from error
        self._fail_if_it_ended(wait=True)

    def _fail_if_it_ended(self, *, wait: bool = False) -> None:
        """Raise what the command said if it ended badly."""
        channel, name = self._channel, self._node.name
        if not wait and not channel.exit_status_ready():
            return
        # After the end of output the status follows at once; a broken link never sends one.
        if not channel.status_event.wait(10):
            raise ConnectionLost(f"{name}: the connection broke during {self._command}.")
        code = channel.recv_exit_status()
        said = (
            b"".join(iter(lambda: channel.recv_stderr(frames.CHUNK_BYTES), b""))
            .decode(errors="replace")
            .strip()
        )
        last = said.splitlines()[-1] if said else f"exit status {code}"
        if code == 0:
            return
        if code < 0:
            raise ConnectionLost(f"{name}: the connection broke during {self._command}.")
        if code == DISK_FULL:
            raise DiskFull(
                f"{name}: the disk is full: {last}. Free some space there "
                "(`gpuctl exec -- df -h`), or choose a larger --disk-gb."
            )
        if code == 127 or ("No such file or directory" in said and self._node.python in said):
            raise NodeFailed(
                f"{name}: Python ({self._node.python}) is not there. Install python3, or name an interpreter "
                "with --python PATH or ansible_python_interpreter."
            )
        raise NodeFailed(f"{name}: {self._command} failed: {last}.")


def _drain_stderr(channel: paramiko.Channel, into: list[bytes]) -> None:
    try:
        while data := channel.recv_stderr(frames.CHUNK_BYTES):
            into.append(data)
    except OSError:
        return  # the reader of standard output meets the same break, and reports it


def connect(machine: Machine, known_hosts: Path, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Node:
    """Open the connection to a machine whose host key is pinned in `known_hosts`.

    Raises Unreachable with the stage that failed, HostKeyRejected before anything was sent,
    AuthenticationFailed.
    """
    where = f"{machine.name} ({machine.user}@{machine.host}:{machine.port})"
    private_key = _private_key(machine.key_file) if machine.key_file else None
    stream = _tcp(machine, where, timeout_s)
    connection = fabric.Connection(
        machine.host,
        user=machine.user,
        port=machine.port,
        config=_config(),
        connect_timeout=timeout_s,
        connect_kwargs={
            "sock": stream,
            # A machine without a key of its own is one that the user reaches with theirs.
            "pkey": private_key,
            "allow_agent": machine.key_file is None,
            "look_for_keys": machine.key_file is None,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
        },
    )
    client = connection.client
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    try:
        pattern = host_pattern(machine.host, machine.port)
        for name, key in (_pinned_keys(known_hosts).lookup(pattern) or {}).items():
            client.get_host_keys().add(pattern, name, key)
        connection.open()
    except paramiko.BadHostKeyException as error:
        raise HostKeyRejected(
            f"{where}: the host key has changed: expected {error.expected_key.fingerprint}, got "
            f"{error.key.fingerprint}. Nothing was sent. If the machine was really made anew, pin its key "
            "with `gpuctl up` again; if not, somebody else is answering."
        ) from error
    except paramiko.AuthenticationException as error:
        offered = machine.key_file or "the keys of your agent and of ~/.ssh"
        raise AuthenticationFailed(f"{where}: the host did not accept {offered}: {error}.") from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        stream.close()
        if "not found in known_hosts" in str(error):
            raise HostKeyRejected(
                f"{where}: no host key is pinned for {host_pattern(machine.host, machine.port)} in {known_hosts}. "
                "Run `gpuctl up` again to pin it."
            ) from error
        if "No authentication methods available" in str(error):
            raise AuthenticationFailed(
                f"{where}: there is no key to offer: your agent has none, and ~/.ssh neither. "
                "Name one in the inventory with ansible_ssh_private_key_file."
            ) from error
        stage = "banner" if "banner" in str(error) else "key exchange"
        raise Unreachable(f"{where}: the port answers, but SSH failed in its {stage}: {error}.") from error
    # Something to be acknowledged every few seconds, so that TCP_USER_TIMEOUT notices a peer that is gone.
    connection.transport.set_keepalive(KEEPALIVE_S)
    return Node(machine, connection)


@cache
def _config() -> fabric.Config:
    """Fabric's configuration without any file of the user's: made once, as each costs a millisecond."""
    return fabric.Config(lazy=True, overrides={"load_ssh_configs": False})


@cache
def _private_key(path: Path) -> paramiko.PKey:
    """A private key, read once for all machines. Raises AuthenticationFailed where it can't be used."""
    try:
        return paramiko.PKey.from_path(path)
    except paramiko.PasswordRequiredException as error:
        raise AuthenticationFailed(
            f"The key {path} has a passphrase. Load it into your agent (ssh-add {path}) and take "
            "ansible_ssh_private_key_file out of the inventory."
        ) from error
    except (OSError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
        raise AuthenticationFailed(f"The key {path} can't be used: {error}.") from error


def _pinned_keys(known_hosts: Path) -> paramiko.HostKeys:
    """The pinned keys, read again only when the file has changed."""
    return _read_keys(known_hosts, known_hosts.stat().st_mtime_ns)


@cache
def _read_keys(known_hosts: Path, _mtime_ns: int) -> paramiko.HostKeys:
    return paramiko.HostKeys(str(known_hosts))


def _tcp(machine: Machine, where: str, timeout_s: float) -> socket.socket:
    """A connected socket without Nagle's delay that reports a dead peer in `DEAD_PEER_S`."""
    try:
        stream = socket.create_connection((machine.host, machine.port), timeout=timeout_s)
    except TimeoutError as error:
        raise Unreachable(
            f"{where}: no answer within {timeout_s:.0f} s. A firewall drops the packets, or the machine is off: "
            "see `gpuctl status`."
        ) from error
    except OSError as error:
        raise Unreachable(
            f"{where}: no TCP connection: {error.strerror or error}. See `gpuctl status`; `gpuctl up` replaces "
            "a machine that is gone."
        ) from error
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)
    return stream


def reconnect(machine: Machine, known_hosts: Path, *, deadline_s: float) -> Node:
    """Connect again to a machine that was reachable a moment ago, with a growing pause between attempts.

    A wrong host key or a refused login ends it at once. Raises the last Unreachable after the deadline.
    """
    limit, pause_s = time.monotonic() + deadline_s, 0.5
    while True:
        try:
            return connect(machine, known_hosts, timeout_s=min(10.0, deadline_s))
        except Unreachable:
            if time.monotonic() + pause_s > limit:
                raise
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 5.0)


def shell_command(words: tuple[str, ...]) -> str:
    """What a person typed after `--`: one word is a shell command line, several are an argv."""
    return words[0] if len(words) == 1 else shlex.join(words)
