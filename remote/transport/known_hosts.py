"""The keys of hosts in known_hosts files, as OpenSSH reads and writes them."""

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from inventories.machine import Machine
from inventories.threads import read_file
from inventories.user_ssh import SshSettings
from remote.errors import HostKeyRejected

if TYPE_CHECKING:
    import paramiko


USER_FILES = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))


_By = Literal["name", "wildcard"]
"""How a line stands for a host: it names it, or means many."""


def host_pattern(host: str, port: int) -> str:
    """A host as known_hosts files write it: `[host]:port` where the port is not 22."""
    return host if port == 22 else f"[{host}]:{port}"


def known_name(settings: SshSettings) -> str:
    """Return the name that known_hosts files have for a host: its HostKeyAlias, or its address."""
    return settings.host_key_alias or host_pattern(settings.host, settings.port)


def render(machines: Sequence[Machine]) -> str:
    """The text of a known_hosts file with the machines' pinned keys."""
    pinned = [(host_pattern(machine.host, machine.port), machine.host_key) for machine in machines]
    return "".join(f"{pattern} {key}\n" for pattern, key in pinned if key)


def read(files: Sequence[Path]) -> str:
    """Read all existing known_hosts files as one, as OpenSSH does."""
    existing = [file for file in map(Path.expanduser, files) if file.exists() and not file.is_dir()]
    try:
        return "\n".join(read_file(file).decode(errors="replace") for file in existing)
    except TimeoutError as error:
        named = ", ".join(map(str, existing))
        raise HostKeyRejected(
            f"The host keys can't be read ({named}): {error}. Name a plain file."
        ) from error


def find(text: str, host: str) -> dict[str, str]:
    """The keys that a known_hosts file's text has for a host, as `host_pattern` writes it: type → Base64."""
    return {name: key.get_base64() for name, key in find_keys(text, host).items()}


def find_keys(text: str, host: str) -> "dict[str, paramiko.PKey]":
    """Return the keys of a host: the first of each type that is not revoked.

    As in OpenSSH, names may be hashed or have wildcards, `!` excepts a host from its line, and a line that can't be
    read is passed over, as is an `@cert-authority` line: it names no host's own key. OpenSSH takes any key that
    fits; one alone can be pinned, so wildcards count only where no line names the host itself.
    """
    revoked = revoked_keys(text, host)
    good = [(by, key) for by, key in _lines(text, host) if _written(key) not in revoked]
    keys: dict[str, paramiko.PKey] = {}
    for key in [key for by, key in good if by == "name"] or [key for _, key in good]:
        keys.setdefault(key.get_name(), key)
    return keys


def revoked_keys(text: str, host: str) -> set[str]:
    """The keys that a host must not show."""
    return {_written(key) for _, key in _lines(text, host, mark="@revoked")}


def _written(key: "paramiko.PKey") -> str:
    return f"{key.get_name()} {key.get_base64()}"


def _lines(text: str, host: str, *, mark: str | None = None) -> "Iterator[tuple[_By, paramiko.PKey]]":
    """Yield the keys of the lines about a host that have this mark before the names, and how each names it.

    Without a mark: lines that have no mark.
    """
    host = host.lower()
    for line in text.splitlines():
        words = line.split()
        if mark is not None:
            words = words[1:] if words[:1] == [mark] else []
        if words and not words[0].startswith(("#", "@")):
            by = _match(words[0], host)
            if by is not None and (key := _key(words)) is not None:
                yield by, key


def _match(names: str, host: str) -> "_By | None":
    """Return how a line's names match a lower-case host; `None` if they do not."""
    if names.startswith("|1|"):
        import paramiko

        try:
            return "name" if paramiko.HostKeys.hash_host(host, names) == names else None
        except (ValueError, AssertionError):
            return None  # a damaged hash
    listed = names.lower().split(",")
    if any(name.startswith("!") and _fits(name[1:], host) for name in listed):
        return None
    if host in listed:
        return "name"
    return "wildcard" if any(_fits(name, host) for name in listed) else None


def _fits(pattern: str, host: str) -> bool:
    """Return whether a pattern matches a host: `*` is any text, `?` a character, brackets are themselves."""
    if not ("*" in pattern or "?" in pattern):
        return pattern == host
    parts = re.split(r"\*+", pattern)
    texts = (
        "".join("." if character == "?" else re.escape(character) for character in part) for part in parts
    )
    return re.fullmatch(".*".join(texts), host, re.DOTALL) is not None


def _key(words: list[str]) -> "paramiko.PKey | None":
    """The key of a line without its mark; `None` where it can't be read."""
    import paramiko
    from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

    try:
        entry = HostKeyEntry.from_line(" ".join(words))
    except (InvalidHostKey, paramiko.SSHException, ValueError, IndexError, struct.error):
        return None
    return None if entry is None else entry.key


def key_to_pin(text: str, host: str) -> str | None:
    """Return the key to pin: a revoked one if the host has no other key, as no shown key may take its place."""
    keys = find_keys(text, host) or {key.get_name(): key for _, key in _lines(text, host)}
    # ed25519 first: the others may be offered by older clients only.
    key = keys.get("ssh-ed25519") or next(iter(keys.values()), None)
    return None if key is None else _written(key)
