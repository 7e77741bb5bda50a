"""The user's SSH configuration for a host, as OpenSSH resolves it.

`ssh -G` answers, so aliases, `Include`, `Match`, `IgnoreUnknown` and the system's own file mean the same as for
`ssh HOST`.
"""

import getpass
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inventories.errors import InvalidInput

CONFIG = Path("~/.ssh/config")
TIMEOUT_S = 20.0
"""For programs of `Match exec`."""
DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "id_xmss", "id_dsa")
_DEFAULT_KNOWN = ("known_hosts", "known_hosts2")
_SYSTEM_KNOWN = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))


@dataclass(frozen=True, kw_only=True)
class SshSettings:
    """Settings for one host."""

    host: str
    port: int
    user: str
    host_key_alias: str | None
    """Name in known_hosts files. `None`: the address."""
    known_hosts: tuple[Path, ...]
    """Empty: the usual files."""
    key_files: tuple[Path, ...]
    """Existing ones, in their order."""
    names_keys: bool
    """Whether the configuration names keys. False: `key_files` are the usual ones."""
    missing_keys: tuple[Path, ...] = ()
    """Key files that the configuration names and that do not exist."""
    only_these_keys: bool
    """IdentitiesOnly: of the agent's keys, only the keys of `key_files`."""
    agent: str
    """Socket of the SSH agent; empty: no agent."""
    certificates: tuple[Path, ...]
    jump: str | None
    """ProxyJump: one bastion, or several with commas."""
    proxy_command: str | None
    """ProxyCommand, with its tokens replaced."""


def read_settings(host: str, *, user: str | None = None, port: int | None = None) -> SshSettings:
    """Return the settings for a host, as typed after `ssh`. `user` and `port` win over the configuration.

    Raises InvalidInput with what ssh answered.
    """
    values = _resolve(host, user, port)
    address = values.get("hostname", [host])[0]
    number = int(values.get("port", ["22"])[0])
    login = user or values.get("user", [""])[0]
    if user is None and login in ("", _account().pw_name):
        login = getpass.getuser()  # the default of Ansible and of gpuctl, which LOGNAME may set
    tokens = {
        "%": "%", "d": str(Path.home()), "h": address, "n": host, "p": str(number), "r": login,
        "u": getpass.getuser(), "i": str(os.getuid()), "l": socket.gethostname(),
        "L": socket.gethostname().split(".")[0], "k": values.get("hostkeyalias", [host])[0],
    }  # fmt: skip
    paths = [_path(text, tokens) for text in values.get("identityfile", []) if text != "none"]
    usual = _in_ssh_folder(DEFAULT_KEYS)
    names_keys = "identityfile" in values and not set(paths) <= set(usual)
    command = values.get("proxycommand", ["none"])[0]
    jump = values.get("proxyjump", ["none"])[0]
    return SshSettings(
        host=address,
        port=number,
        user=login,
        host_key_alias=values.get("hostkeyalias", [None])[0],
        known_hosts=_known_hosts(values, tokens),
        key_files=tuple(filter(os.path.isfile, paths if "identityfile" in values else usual)),
        names_keys=names_keys,
        missing_keys=tuple(path for path in paths if names_keys and not path.is_file()),
        only_these_keys=values.get("identitiesonly") == ["yes"],
        agent=_agent(values.get("identityagent", ["SSH_AUTH_SOCK"])[0], tokens),
        certificates=tuple(_path(text, tokens) for text in values.get("certificatefile", [])),
        jump=None if jump == "none" else jump,
        proxy_command=None if command == "none" else expand_tokens(command, tokens),
    )


def ssh_argv() -> list[str]:
    """Return the system's ssh with the options that have it read this user's configuration.

    ssh looks for it in the home of the account, whatever HOME is.
    """
    home = os.environ.get("HOME", "")
    if home in ("", _account().pw_dir):
        return ["ssh"]
    config = CONFIG.expanduser()
    return ["ssh", "-F", str(config) if config.exists() else "none"]


def expand_tokens(text: str, tokens: Mapping[str, str]) -> str:
    """Replace ssh's %-tokens; a token that is not known stays."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def login_words(user: str | None, port: int | None) -> list[str]:
    """Return the words of ssh for a login and a port, as far as they are given."""
    return (["-l", user] if user else []) + (["-p", str(port)] if port else [])


def _resolve(host: str, user: str | None, port: int | None) -> dict[str, list[str]]:
    """Return ssh's answer by lower-case keyword. ssh needs a few milliseconds for it."""
    if not _account().pw_dir:
        return {}  # ssh serves no user without an account
    if shutil.which("ssh") is None:
        if not CONFIG.expanduser().exists():
            return {}
        raise InvalidInput(
            f"{CONFIG} can't be read for '{host}': this computer has no ssh. Install OpenSSH's client "
            "(Debian, Ubuntu: sudo apt-get install openssh-client)."
        )
    argv = [*ssh_argv(), "-G", "-T", *login_words(user, port), "--", host]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InvalidInput(
            f"Your SSH configuration gave no settings for '{host}' within {TIMEOUT_S:.0f} s, as where a program of "
            f"`Match exec` hangs. See: {shlex.join(argv)}"
        ) from None
    except OSError as error:
        raise InvalidInput(
            f"Your SSH configuration can't be read for '{host}', as ssh can't be started: {error.strerror}. See: "
            + shlex.join(argv)
        ) from error
    lines = [line.decode(errors="replace").strip() for line in done.stderr.splitlines()]
    if done.returncode:
        why = "; ".join(line for line in lines if line and "Pseudo-terminal" not in line) or "no reason given"
        raise InvalidInput(
            f"Your SSH configuration can't be used for '{host}': ssh answers '{why}'. See: {shlex.join(argv)}"
        )
    values: dict[str, list[str]] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)
    return values


def _known_hosts(values: Mapping[str, list[str]], tokens: dict[str, str]) -> tuple[Path, ...]:
    """Return the user's files and the system's where the configuration names others than the usual ones."""
    user, system = values.get("userknownhostsfile"), values.get("globalknownhostsfile")
    usual = {Path(_account().pw_dir, ".ssh", name) for name in _DEFAULT_KNOWN}
    usual |= {*_in_ssh_folder(_DEFAULT_KNOWN), *_SYSTEM_KNOWN}
    paths = [_path(part, tokens) for texts in (user, system) for part in _parts(texts)]
    if "none" not in (*(user or ()), *(system or ())) and set(paths) <= usual:
        return ()
    return tuple(paths) or (Path(os.devnull),)


def _parts(texts: list[str] | None) -> list[str]:
    """Return the files of an option. ssh prints no quotes: a text with spaces may be one path."""
    text = texts[0] if texts else ""
    parts = [text] if os.path.exists(text) else text.split(" ")  # noqa: PTH110 - any text, however long
    return [part for part in parts if part not in ("", "none")]


def _agent(text: str, tokens: dict[str, str]) -> str:
    if text == "none":
        return ""
    if text == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK", "")
    if text.startswith("$"):
        return os.environ.get(text.strip("${}"), "")
    return str(_path(text, tokens))


def _in_ssh_folder(names: tuple[str, ...]) -> list[Path]:
    return [CONFIG.expanduser().with_name(name) for name in names]


def _path(text: str, tokens: dict[str, str]) -> Path:
    expanded = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), expand_tokens(text, tokens))
    return Path(expanded).expanduser()


def _account() -> pwd.struct_passwd:
    """Return the account of this process; an empty one if the system has no such account."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return pwd.struct_passwd(("", "", os.getuid(), os.getgid(), "", "", ""))
