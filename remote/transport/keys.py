"""The keys that a login offers, in OpenSSH's order.

Given keys are the only ones; else the user's configuration and agent have them. A key with a passphrase is used
through the agent where the agent holds it. Else the passphrase is asked for once, on the terminal.
"""

import base64
import getpass
import shlex
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import paramiko
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from paramiko.pkey import UnknownKeyType

from inventories.threads import READ_S, within
from inventories.user_ssh import SshSettings
from remote.errors import AuthenticationFailed, RemoteError, Unreachable
from remote.transport.known_hosts import host_pattern
from remote.transport.paramiko_errors import HungUp, hung_up, incompatible
from remote.transport.ssh_agent import Agent, open_agent

TRIES = 3
"""For a passphrase, as ssh has it."""
_MAGIC = b"openssh-key-v1\0"
_PUBLIC = ("ssh-", "ecdsa-", "sk-")

_reading = Lock()
_typing = Lock()


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """A key file as far as it can be read without its passphrase."""

    path: Path
    key: paramiko.PKey | None = None
    public: bytes | None = None
    """The public half, by which the agent knows the key."""
    locked: bool = False
    """Whether it has a passphrase."""
    problem: str = ""
    """Sentence on a file that holds no usable key; empty for others."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The keys of one login."""

    files: tuple[Path, ...]
    only_files: bool
    """Whether no other key of the agent is offered."""
    agent: str
    """The agent's socket; empty: no agent."""
    named: bool
    """Whether the user named the files. False: the usual ones, of which some may be unusable."""
    certificates: tuple[Path, ...] = ()
    missing: tuple[Path, ...] = ()
    """Key files that the user's configuration names and that do not exist."""

    def __str__(self) -> str:
        return ", ".join(map(str, self.files)) if self.named else "the keys of your agent and of ~/.ssh"


def offer_of(key_file: Path | None, settings: Callable[[], SshSettings]) -> Offer:
    """Return the keys to offer: the given file first and only, else the keys of the user's `settings`.

    These are read only where they are needed: a plain key file needs no agent.
    """
    if key_file is not None:
        plain = read_key(key_file).key is not None
        return Offer(files=(key_file,), only_files=True, agent="" if plain else settings().agent, named=True)
    values = settings()
    return Offer(
        files=values.key_files,
        only_files=values.only_these_keys,
        agent=values.agent,
        named=values.names_keys and bool(values.key_files),
        certificates=values.certificates,
        missing=values.missing_keys,
    )


def unlock(offer: Offer) -> None:
    """Ask for the passphrase of a given key, where it is needed, before a server waits for the login.

    Raises AuthenticationFailed for a given key that can't be used.
    """
    if not (offer.named and offer.only_files):
        return
    files = [read_key(path) for path in offer.files]
    if any(file.key for file in files):
        return
    agent = open_agent(offer.agent, login_s=READ_S)
    try:
        held = {key.asbytes() for key in agent.get_keys()} if agent else set()
    finally:
        if agent:
            agent.close()
    if not any(file.public in held for file in files):
        unlocked_key(files[0])


class KeyLogin:
    """Offers keys one after the other: what paramiko takes for an AuthStrategy."""

    def __init__(self, user: str, offer: Offer, login_s: float) -> None:
        self.user = user
        self.offer = offer
        self._login_s = login_s
        self._agent: Agent | None = None
        self._refused = 0

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Log in. Raises AuthenticationFailed for keys that can't be used, else what paramiko raises."""
        refusal: Exception | None = None
        for key in self._keys():
            try:
                missing = transport.auth_publickey(self.user, key)
            except paramiko.BadAuthenticationType:
                raise
            except paramiko.AuthenticationException as error:
                refusal, self._refused = error, self._refused + 1
                if not transport.is_active():
                    raise TooManyKeys(self._refused) from error
                continue
            if missing:
                raise SecondFactor(", ".join(missing))
            return []
        raise refusal or NoKey

    def close(self) -> None:
        """Close the connection to the agent."""
        if self._agent is not None:
            self._agent.close()

    def _keys(self) -> Iterator[paramiko.PKey]:
        """The keys that the agent holds of the files, its others, and the files that it does not hold."""
        files = [read_key(path, self.offer.certificates) for path in self.offer.files]
        if not self.offer.only_files or not all(file.key for file in files):
            self._agent = open_agent(self.offer.agent, login_s=self._login_s)
        keys: Sequence[paramiko.PKey] = self._agent.get_keys() if self._agent else ()
        held = {key.asbytes(): key for key in keys}
        named = [file for file in files if file.public in held]
        for file in named:
            if file.public in held:
                key = held.pop(file.public)
                _certify(key, [*self.offer.certificates, Path(f"{file.path}-cert.pub")])
                yield key
        if not self.offer.only_files:
            yield from held.values()
        locked = []
        for file in (file for file in files if file not in named):
            if file.key is None:
                locked.append(file)
            else:
                yield file.key
        for file in locked:
            try:
                yield unlocked_key(file)
            except AuthenticationFailed:
                if self.offer.named or not self._refused:
                    raise


class NoKey(paramiko.SSHException):
    """No key exists to log in with."""

    def __init__(self) -> None:
        super().__init__("there is none")


class TooManyKeys(paramiko.SSHException):
    """The server hung up after it had refused several keys."""

    def __init__(self, count: int) -> None:
        super().__init__(f"it hung up after {count} refused keys")
        self.count = count


class SecondFactor(paramiko.SSHException):
    """The server took the key, and demands more: a password or a code."""


REFUSALS = (paramiko.AuthenticationException, NoKey, TooManyKeys, SecondFactor)
"""Errors of a login for which the server took no key."""


def open_client(
    address: tuple[str, int],
    stream: object,
    login: KeyLogin,
    timeout_s: float,
    *,
    where: str,
    host_keys: Mapping[str, paramiko.PKey],
    explain: Callable[[Exception], RemoteError | None],
    **options: Any,  # noqa: ANN401 - paramiko's
) -> paramiko.SSHClient:
    """Return a client that is logged in over a stream to a host with one of these keys.

    `where`: begins the errors' sentences. `explain`: the caller's own error for one of paramiko's, if it has one.
    Raises AuthenticationFailed, HungUp, Unreachable, and the caller's own errors.
    """
    with ExitStack() as opened, closing(login):
        client = paramiko.SSHClient()
        opened.callback(client.close)
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        for name, key in host_keys.items():
            client.get_host_keys().add(host_pattern(*address), name, key)
        try:
            client.connect(
                *address,
                username=login.user,
                sock=stream,  # type: ignore[arg-type]
                auth_strategy=login,  # type: ignore[arg-type]
                timeout=timeout_s,
                banner_timeout=timeout_s,
                auth_timeout=timeout_s,
                **options,
            )
        except AuthenticationFailed as error:
            raise AuthenticationFailed(f"{where}: {error}") from error
        except (paramiko.SSHException, InvalidTag, OSError, EOFError, ValueError) as error:
            if explained := explain(error):
                raise explained from error
            if hung_up(error):
                raise HungUp(
                    f"{where}: the port answers, but the server hung up before its banner."
                ) from error
            if sentence := incompatible(error):
                raise Unreachable(f"{where}: {sentence}") from error
            # Both stages are given up after the same time, and paramiko's words tell which only by chance.
            transport = client.get_transport()
            stage = "key exchange" if transport is not None and transport.remote_version else "banner"
            raise Unreachable(
                f"{where}: the port answers, but SSH failed in its {stage}: {str(error).rstrip('.')}."
            ) from error
        opened.pop_all()
    return client


@cache
def _read_key(path: Path, certificates: Sequence[Path]) -> KeyFile:
    try:
        data = within(READ_S, path.read_bytes, what="it could not be read")
    except OSError as error:
        return KeyFile(path=path, problem=f"The key {path} can't be read: {error.strerror or error}.")
    first = data.lstrip()[:200].decode(errors="replace")
    quoted = shlex.quote(str(path))
    if first.startswith("PuTTY-User-Key-File"):
        new = path.with_suffix(".openssh")
        return KeyFile(
            path=path,
            problem=f"The key {path} has PuTTY's format. Convert it, and name {new} instead: "
            f"puttygen {quoted} -O private-openssh -o {shlex.quote(str(new))}",
        )
    if first.startswith(_PUBLIC):
        # The agent may hold its private half.
        private = path.with_suffix("") if path.suffix == ".pub" else None
        if private is not None and private.is_file():
            advice = f"Name the private one: {private}"
        else:
            advice = "Name the private one, or load that into your agent: ssh-add FILE"
        return KeyFile(path=path, public=_blob(data), problem=f"The key {path} is a public key. {advice}")
    try:
        key = paramiko.PKey.from_path(path)
        _certify(key, certificates)
        return KeyFile(path=path, key=key, public=key.asbytes())
    except (paramiko.PasswordRequiredException, TypeError):
        return KeyFile(path=path, public=_public_of(path, data), locked=True)
    except (OSError, ValueError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm) as error:
        public = _public_of(path, data)
        if public is not None:
            kind = paramiko.Message(public).get_text()
            advice = (
                f"gpuctl uses keys of the kind {kind} through your agent alone. Load it: ssh-add {quoted}"
            )
            return KeyFile(path=path, public=public, problem=f"The key {path} can't be used: {advice}")
        return KeyFile(path=path, problem=f"The key {path} can't be used: {error}.")


def read_key(path: Path, certificates: Sequence[Path] = ()) -> KeyFile:
    """Return a key file, read once for all machines."""
    with _reading:
        return _read_key(path, tuple(certificates))


def unlocked_key(file: KeyFile) -> paramiko.PKey:
    """Return the key of a file with a passphrase, which is asked for on the terminal, once.

    Raises AuthenticationFailed where the file holds no usable key, and without a terminal.
    """
    if file.problem:
        raise AuthenticationFailed(file.problem)
    with _typing:
        if file.path not in _unlocked:
            _unlocked[file.path] = _ask(file.path)
        known = _unlocked[file.path]
    if isinstance(known, AuthenticationFailed):
        raise known
    return known


_unlocked: dict[Path, paramiko.PKey | AuthenticationFailed] = {}


def _ask(path: Path) -> paramiko.PKey | AuthenticationFailed:
    advice = f"Load it into your agent: ssh-add {shlex.quote(str(path))}"
    if not (sys.stdin is not None and sys.stdin.isatty()):
        return AuthenticationFailed(
            f"The key {path} has a passphrase, and there is no terminal to ask for it. {advice}"
        )
    for _ in range(TRIES):
        try:
            typed = getpass.getpass(f"Enter passphrase for key '{path}': ")
            return paramiko.PKey.from_path(path, typed.encode())  # type: ignore[arg-type]
        except (ValueError, TypeError, paramiko.SSHException):
            continue
        except EOFError:
            break
    return AuthenticationFailed(f"The key {path} was not opened: the passphrase is wrong. {advice}")


def _public_of(path: Path, data: bytes) -> bytes | None:
    """Return the public half of a private key: OpenSSH has it unencrypted; other formats have a .pub file."""
    lines = data.split(b"\n")
    try:
        body = base64.b64decode(b"".join(line.strip() for line in lines if b"-----" not in line))
        if body.startswith(_MAGIC):
            fields = paramiko.Message(body[len(_MAGIC) :])
            for _ in range(3):
                fields.get_binary()
            fields.get_int()
            return fields.get_binary()
    except (ValueError, struct.error):
        pass
    try:
        return _blob(Path(f"{path}.pub").read_bytes())
    except OSError:
        return None


def _blob(data: bytes) -> bytes | None:
    try:
        return base64.b64decode(data.split()[1])
    except (ValueError, IndexError):
        return None


def _certify(key: paramiko.PKey, certificates: Sequence[Path]) -> None:
    """Give the key the first certificate that is for it."""
    fields = paramiko.Message(key.asbytes())
    fields.get_text()
    for path in certificates:
        try:
            if fields.get_remainder() in (_blob(path.read_bytes()) or b""):
                key.load_certificate(str(path))
                return
        except (OSError, ValueError, paramiko.SSHException):
            continue
