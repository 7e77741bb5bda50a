"""One machine out of the variables of its host in an Ansible inventory.

Ansible's connection variables and ours are read; any other variable is left to Ansible, unless it looks like
one of them misspelt.
"""

import getpass
import re
import shlex
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

from inventories.ansible.groups import Host, Var
from inventories.did_you_mean import nearest
from inventories.errors import InvalidInput
from inventories.machine import Machine, MachineState
from inventories.yaml_source import Problems, shown

_KEY_FILE = "ansible_ssh_private_key_file"
_COMMON_ARGS = "ansible_ssh_common_args"

_OTHER_NAMES = {
    "ansible_ssh_host": "ansible_host",
    "ansible_ssh_port": "ansible_port",
    "ansible_ssh_user": "ansible_user",
    "ansible_private_key_file": _KEY_FILE,
    "jump": "bastion",
}
"""Other names of the same variables: Ansible's, and one of earlier releases."""

_FACTS = {
    "ansible_hostname",
    "ansible_user_id",
    "ansible_user_dir",
    "ansible_user_uid",
    "ansible_user_gid",
    "gpuctl",
}
"""Ansible's own, though they look like ours misspelt, and the cluster's."""

_INTERPRETER = re.compile(r"/[^\n]*|[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_HOST_KEY = re.compile(r"(ssh-|ecdsa-|sk-)[A-Za-z0-9@.-]+ [A-Za-z0-9+/]+=*")


class _Wrong(ValueError):
    """A value that can't be used; the message is a clause that says what is allowed."""


def machines_of(
    hosts: Sequence[Host], problems: Problems, *, folder: Path, complete: bool
) -> tuple[Machine, ...]:
    """The machines by rank. What is wrong is added to `problems`; with problems the result means nothing.

    With `complete`, all that gpuctl writes itself has to be there. Without, all but the name has a default,
    and the key files have to exist. Relative paths are relative to `folder`.
    """
    values = [_checked(host, problems) for host in hosts]
    for host, found in zip(hosts, values, strict=True):
        if _KEY_FILE in found:
            found[_KEY_FILE] = folder / found[_KEY_FILE]
        if complete:
            for key in [key for key in _REQUIRED if key not in found]:
                problems.add(host.line, f"host '{host.name}' has no {key}.")
        else:
            _add_defaults(host, found, problems)
    ranks = _ranks(hosts, values, problems)
    _refuse_same_address(hosts, values, problems)
    machines = [_machine(host, found, rank) for host, found, rank in zip(hosts, values, ranks, strict=True)]
    return tuple(sorted(machines, key=lambda machine: machine.rank))


def _machine(host: Host, found: dict[str, Any], rank: int) -> Machine:
    return Machine(
        name=host.name,
        rank=rank,
        state=found.get("state", "unknown"),
        host=found.get("ansible_host", ""),
        port=found.get("ansible_port", 22),
        user=found.get("ansible_user", ""),
        transport=found.get("gpuctl_transport", "ssh"),
        context=found.get("ansible_kubectl_context"),
        bastion=found.get("bastion") or found.get(_COMMON_ARGS),
        private_ip=found.get("private_ip", ""),
        gpus=found.get("gpus"),
        id=found.get("id", ""),
        shape=found.get("shape"),
        key_file=found.get(_KEY_FILE),
        python=found.get("ansible_python_interpreter"),
        host_key=found.get("host_key"),
        launched_at=found.get("launched_at"),
    )


def _add_defaults(host: Host, found: dict[str, Any], problems: Problems) -> None:
    """What a person may leave out."""
    address = found.setdefault("ansible_host", host.name)
    if ":" in found.setdefault("private_ip", address):
        line = host.vars["private_ip"].line if "private_ip" in host.vars else host.line
        problems.add(
            line,
            f"host '{host.name}' needs a private_ip that is an IPv4 address, and {found['private_ip']} is none: the "
            "machines reach each other by IPv4 (127.0.0.1 does where there is but one; SSH may go by IPv6).",
        )
    found.setdefault("id", host.name)
    if "ansible_user" not in found:
        try:
            found["ansible_user"] = getpass.getuser()
        except (KeyError, OSError):
            problems.add(host.line, f"host '{host.name}' needs ansible_user: the current user has no name.")
    key_file = found.get(_KEY_FILE)
    if key_file is not None and not key_file.is_file():
        line = next(host.vars[key].line for key in (_KEY_FILE, *_OTHER_NAMES) if key in host.vars)
        problems.add(line, f"{_KEY_FILE}: there is no file '{key_file}'.")


def _checked(host: Host, problems: Problems) -> dict[str, Any]:
    """The values of the variables that are known, by the variable's main name."""
    found: dict[str, Any] = {}
    for written, var in host.vars.items():
        key = _OTHER_NAMES.get(written, written)
        if key not in _CHECKS:
            _report_typo(written, var, problems)
            continue
        if key != written and key in host.vars:
            continue
        try:
            # Of ssh's arguments only some are ours to understand.
            value = var.value if key == _COMMON_ARGS else _no_template(var.value)
            found[key] = None if value is None else _CHECKS[key](value)
        except _Wrong as error:
            problems.add(var.line, f"{written} should be {error}, but is {shown(var.value)}.")
    return {key: value for key, value in found.items() if value is not None}


def _report_typo(key: str, var: Var, problems: Problems) -> None:
    close = _meant(key)
    if close:
        problems.add(
            var.line,
            f"key '{key}' is not known; did you mean '{close[0]}'? gpuctl reads {', '.join(_CHECKS)}.",
        )


@cache
def _meant(key: str) -> list[str]:
    """Of which variable a key looks like a misspelling: looked up once for all hosts that have it."""
    return [] if key in _FACTS else nearest(key, [*_CHECKS, *_OTHER_NAMES], limit=1, cutoff=0.85)


def _ranks(hosts: Sequence[Host], values: Sequence[dict[str, Any]], problems: Problems) -> list[int]:
    """Ranks as given; the hosts without one take those that are free, in the file's order."""
    given: dict[int, Host] = {}
    for host, found in zip(hosts, values, strict=True):
        rank = found.get("rank")
        if rank is None:
            continue
        line = host.vars["rank"].line
        if rank in given:
            problems.add(
                line,
                f"host '{host.name}' has rank {rank}, which host '{given[rank].name}' in line "
                f"{given[rank].vars['rank'].line} has too. Give each a rank of its own, or none any.",
            )
        elif rank >= len(hosts):
            problems.add(
                line,
                f"host '{host.name}' has rank {rank}, but ranks begin at 0 and end at {len(hosts) - 1} here, "
                "one for each host.",
            )
        given.setdefault(rank, host)
    free = (rank for rank in range(2 * len(hosts)) if rank not in given)
    return [found["rank"] if "rank" in found else next(free) for found in values]


def _refuse_same_address(hosts: Sequence[Host], values: Sequence[dict[str, Any]], problems: Problems) -> None:
    seen: dict[tuple[str, int], Host] = {}
    for host, found in zip(hosts, values, strict=True):
        address = (found.get("ansible_host", host.name).casefold(), found.get("ansible_port", 22))
        other = seen.setdefault(address, host)
        if other is not host:
            problems.add(
                host.line,
                f"host '{host.name}' has the same address and port, {address[0]} port {address[1]}, "
                f"as host '{other.name}' in line {other.line}. Remove one of them.",
            )


def _no_template(value: object) -> object:
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        raise _Wrong("a plain value, as gpuctl evaluates no templates")
    return value


def _text(value: object) -> str:
    if isinstance(value, str) and value and value == value.strip() and value.isprintable():
        return value
    raise _Wrong("text (put it in quotes if it is)")


def _word(value: object) -> str:
    text = _text(value)
    # It is written into an ssh configuration, which has no way to escape a double quote for every version of ssh.
    if " " in text or '"' in text or text.startswith("-"):
        raise _Wrong("one word without a double quote that does not begin with '-'")
    return text


def _bastion(value: object) -> str:
    from inventories.bastion import read_bastion  # few machines have one

    try:
        return str(read_bastion(value))
    except InvalidInput as error:
        raise _Wrong("a bastion as in user@host or user@host:22") from error


def _bastion_of_args(value: object) -> str | None:
    return _bastion_among(value) if isinstance(value, str) else None


@cache
def _bastion_among(args_text: str) -> str | None:
    """The bastion among ssh's arguments (`-J x`, `-o ProxyJump=x`), often all hosts' own. None: there is none."""
    try:
        args = iter(shlex.split(args_text))
    except ValueError as error:
        raise _Wrong("arguments of ssh, quoted as in a shell") from error
    for arg in args:
        option, text = arg[:2], arg[2:]
        if option not in ("-J", "-o"):
            continue
        text = (text or next(args, "")).strip()
        name, bastion = (
            ("proxyjump", text) if option == "-J" else (*re.split(r"[=\s]+", text, maxsplit=1), "")[:2]
        )
        if name.lower() == "proxyjump" and bastion != "none":
            return _bastion(bastion)
    return None


def _port(value: object) -> int:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= 65535:
        return number
    raise _Wrong("a port from 1 to 65535")


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise _Wrong("a whole number from 0")


def _state(value: object) -> MachineState:
    for state in get_args(MachineState):
        if value == state:
            return state  # type: ignore[no-any-return]
    raise _Wrong("one of " + ", ".join(get_args(MachineState)))


def _path(value: object) -> Path:
    try:
        return Path(_text(value)).expanduser()
    except RuntimeError as error:
        raise _Wrong("the path of a file; that user's home folder is not known") from error


def _interpreter(value: object) -> str | None:
    text = _text(value)
    if text.startswith("auto"):
        return None
    if not _INTERPRETER.fullmatch(text):
        raise _Wrong("an absolute path, the name of a command, or 'auto'")
    return text


def _host_key(value: object) -> str:
    if not isinstance(value, str) or not _HOST_KEY.fullmatch(value):
        raise _Wrong("a public key as in 'ssh-ed25519 AAAA…'")
    return value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "ansible_host": _word,
    "ansible_port": _port,
    "ansible_user": _word,
    "gpuctl_transport": _word,
    "ansible_kubectl_context": _text,
    "bastion": _bastion,
    _COMMON_ARGS: _bastion_of_args,
    _KEY_FILE: _path,
    "ansible_python_interpreter": _interpreter,
    "rank": _whole,
    "private_ip": _word,
    "gpus": _whole,
    "shape": _text,
    "id": _text,
    "state": _state,
    "host_key": _host_key,
    "launched_at": _text,
}
_REQUIRED = ("ansible_host", "ansible_user", "rank", "private_ip", "id", "state")
