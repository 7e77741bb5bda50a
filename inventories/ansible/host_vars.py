"""A machine from the variables of its host in an Ansible inventory.

Ansible's connection variables and ours are read; any other variable is left to Ansible, unless it looks like
one of them misspelt.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

from inventories.address import read_address, read_bastion
from inventories.ansible.ssh_args import (
    SshArgs,
    connection_problem,
    proxy_of_hops,
    read_args,
)
from inventories.errors import InvalidInput
from inventories.machine import Machine, MachineState
from inventories.text import Foreign, nearest, shown
from inventories.user_ssh import expand_tokens, read_settings
from inventories.yaml_source import Problems

_KEY_FILE = "ansible_ssh_private_key_file"
_ARGS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
"""In Ansible's order; ssh takes the first value of an option."""
_PASSWORDS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
_CONNECTION = "ansible_connection"

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


@dataclass(frozen=True, kw_only=True)
class Var:
    """A variable's value and the line that it is in."""

    value: Any
    line: int


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host with the variables that hold for it."""

    name: str
    line: int
    """Of its first mention."""
    vars: Mapping[str, Var]
    address: str | None = None
    """The host as it is written, where that is more than a name: `user@host`, `host:22`."""


class _Wrong(ValueError):
    """An invalid value; the message is a clause that names the allowed values."""


def machines_of(
    hosts: Sequence[Host], problems: Problems, *, folder: Path, complete: bool
) -> tuple[Machine, ...]:
    """Return the machines by rank. Errors are added to `problems`; with problems the result means nothing.

    With `complete`, all that gpuctl writes itself has to be there. Without, all but the name has a default,
    and the key files have to exist. Relative paths are relative to `folder`.
    """
    values = [_checked(host, problems) for host in hosts]
    for host, values_of_host in zip(hosts, values, strict=True):
        _read_args(host, values_of_host, problems)
        if not complete:
            _read_address(host, values_of_host, problems)
            _apply_user_ssh(host, values_of_host, problems)
        if _KEY_FILE in values_of_host:
            values_of_host[_KEY_FILE] = folder / values_of_host[_KEY_FILE]
        if complete:
            for key in [key for key in _REQUIRED if key not in values_of_host]:
                problems.add(host.line, f"host '{host.name}' has no {key}.")
        else:
            if ":" in values_of_host.setdefault("private_ip", values_of_host["ansible_host"]):
                line = host.vars["private_ip"].line if "private_ip" in host.vars else host.line
                problems.add(
                    line,
                    f"host '{host.name}' needs a private_ip that is an IPv4 address, and "
                    f"{values_of_host['private_ip']} is none: the machines reach each other by IPv4 (127.0.0.1 does "
                    "where there is but one; SSH may go by IPv6).",
                )
            values_of_host.setdefault("id", host.name)
            key_file = values_of_host.get(_KEY_FILE)
            if key_file is not None and not key_file.is_file():
                line = next(host.vars[key].line for key in (_KEY_FILE, *_OTHER_NAMES) if key in host.vars)
                problems.add(line, f"{_KEY_FILE}: there is no file '{key_file}'.")
    ranks = _ranks(hosts, values, problems)
    _refuse_same_address(hosts, values, problems)
    machines = [
        _machine(host, values_of_host, rank)
        for host, values_of_host, rank in zip(hosts, values, ranks, strict=True)
    ]
    return tuple(sorted(machines, key=lambda machine: machine.rank))


def _machine(host: Host, values: dict[str, Any], rank: int) -> Machine:
    return Machine(
        name=host.name,
        rank=rank,
        state=values.get("state", "unknown"),
        host=values.get("ansible_host", ""),
        port=values.get("ansible_port", 22),
        user=values.get("ansible_user", ""),
        transport=values.get("gpuctl_transport", "ssh"),
        context=values.get("ansible_kubectl_context"),
        bastion=values.get("bastion"),
        proxy_command=_proxy_command(values),
        ssh_alias=values.get("ssh_alias"),
        private_ip=values.get("private_ip", ""),
        gpus=values.get("gpus"),
        id=values.get("id", ""),
        shape=values.get("shape"),
        key_file=values.get(_KEY_FILE),
        python=values.get("ansible_python_interpreter"),
        host_key=values.get("host_key"),
        launched_at=values.get("launched_at"),
    )


def _read_args(host: Host, values: dict[str, Any], problems: Problems) -> None:
    """Add the settings in arguments of ssh that no variable has."""
    args = SshArgs()
    for key in [key for key in _ARGS if key in values]:
        args = args.over(values.pop(key))
    if "bastion" not in values:
        if args.jump is not None and "," in args.jump:
            values["proxy_command"] = proxy_of_hops(args.jump)
        elif args.jump is not None:
            values["bastion"] = None if args.jump == "none" else args.jump
        elif args.proxy_command is not None:
            values["proxy_command"] = args.proxy_command
    options = {"ansible_user": args.user, "ansible_port": args.port, _KEY_FILE: args.key_file}
    for key in [key for key, text in options.items() if text is not None and key not in values]:
        try:
            values[key] = _CHECKS[key](options[key])
        except _Wrong as error:
            problems.add(
                host.line, f"host '{host.name}': {key} should be {error}, but is {shown(options[key])}."
            )


def _read_address(host: Host, values: dict[str, Any], problems: Problems) -> None:
    """Take `user@host:port` apart. A variable wins over the user, as in ssh; two ports contradict each other."""
    address = read_address(values.get("ansible_host", host.address or host.name))
    values["ansible_host"] = address.host
    if address.user is not None:
        values.setdefault("ansible_user", address.user)
    if address.port is not None and values.setdefault("ansible_port", address.port) != address.port:
        problems.add(
            host.line,
            f"host '{host.name}' has port {address.port} in its address, and ansible_port {values['ansible_port']}. "
            "Remove one of them.",
        )
    if not 1 <= values.get("ansible_port", 22) <= 65535:
        problems.add(host.line, f"host '{host.name}' has port {address.port}; ports are 1 to 65535.")


def _apply_user_ssh(host: Host, values: dict[str, Any], problems: Problems) -> None:
    """Add the settings of the user's SSH configuration that the inventory lacks."""
    written = values["ansible_host"]
    try:
        settings = read_settings(written, user=values.get("ansible_user"), port=values.get("ansible_port"))
    except (KeyError, OSError):
        if "ansible_user" not in values:
            problems.add(host.line, f"host '{host.name}' needs ansible_user: the current user has no name.")
        return
    except InvalidInput as error:
        problems.add(host.line, f"host '{host.name}': {error}")
        return
    if settings.host != written:
        values |= {"ansible_host": settings.host, "ssh_alias": written}
    values.setdefault("ansible_user", settings.user)
    values.setdefault("ansible_port", settings.port)
    if "bastion" in values or "proxy_command" in values:
        return
    if settings.proxy_command is not None:
        values["proxy_command"] = settings.proxy_command.replace("%", "%%")
    elif settings.jump is not None:
        try:
            args = read_args(shlex.join(["-J", settings.jump]))
        except InvalidInput as error:
            problems.add(host.line, f"host '{host.name}': ProxyJump of your SSH configuration: {error}")
            return
        single = "," not in settings.jump
        values |= {"bastion": args.jump} if single else {"proxy_command": proxy_of_hops(args.jump or "")}


def _proxy_command(values: dict[str, Any]) -> str | None:
    command: str | None = values.get("proxy_command")
    if command is None:
        return None
    host = values.get("ansible_host", "")
    tokens = {"%": "%", "h": host, "n": values.get("ssh_alias") or host}
    tokens |= {"p": str(values.get("ansible_port", 22)), "r": values.get("ansible_user", "")}
    return expand_tokens(command, tokens)


def _checked(host: Host, problems: Problems) -> dict[str, Any]:
    """The values of the variables that are known, by the variable's main name."""
    values: dict[str, Any] = {}
    for written, var in host.vars.items():
        key = _OTHER_NAMES.get(written, written)
        if written in _PASSWORDS and var.value is not None:
            _refuse_password(host, written, var, problems)
        if written == _CONNECTION and (why := connection_problem(str(var.value))):
            problems.add(var.line, why)
        if key not in _CHECKS:
            close = _meant(written)
            if close:
                problems.add(
                    var.line,
                    f"key '{written}' is not known; did you mean '{close[0]}'? gpuctl reads {', '.join(_CHECKS)}.",
                )
            continue
        if key != written and key in host.vars:
            continue
        try:
            # Of ssh's arguments only some are ours to understand.
            value = var.value if key in _ARGS else _no_template(var.value)
            values[key] = None if value is None else _CHECKS[key](value)
        except _Wrong as error:
            fault = f"should be {error}, but is {shown(var.value)}."
            if isinstance(var.value, Foreign):
                fault = f"has the tag {var.value.tag}, which gpuctl can't evaluate. Write the plain value."
            problems.add(var.line, f"{written} {fault}")
    return {key: value for key, value in values.items() if value is not None}


def _refuse_password(host: Host, key: str, var: Var, problems: Problems) -> None:
    """Refuse a password for SSH, unless the host has a key: it is not needed then."""
    if any(name in host.vars for name in (_KEY_FILE, "ansible_private_key_file")):
        return
    address = read_address(str(host.vars["ansible_host"].value if "ansible_host" in host.vars else host.name))
    user = host.vars["ansible_user"].value if "ansible_user" in host.vars else address.user
    port = host.vars["ansible_port"].value if "ansible_port" in host.vars else address.port
    command = ["ssh-copy-id", *(["-p", str(port)] if port not in (None, 22) else [])]
    command.append(f"{user}@{address.host}" if user else address.host)
    problems.add(
        var.line,
        f"{key} is not supported, as gpuctl logs in with keys alone. Put your key on the machine, and remove the "
        f"line: {shlex.join(command)}",
    )


@cache
def _meant(key: str) -> list[str]:
    """Return the variables of which a key looks like a misspelling: looked up once for all hosts that have it."""
    known = {*_FACTS, *_PASSWORDS, _CONNECTION}
    return [] if key in known else nearest(key, [*_CHECKS, *_OTHER_NAMES], limit=1, cutoff=0.85)


def _ranks(hosts: Sequence[Host], values: Sequence[dict[str, Any]], problems: Problems) -> list[int]:
    """Return the ranks: explicit ones as they are, then the free numbers for the other hosts, in the file's order."""
    by_rank: dict[int, Host] = {}
    for host, values_of_host in zip(hosts, values, strict=True):
        rank = values_of_host.get("rank")
        if rank is None:
            continue
        line = host.vars["rank"].line
        if rank in by_rank:
            problems.add(
                line,
                f"host '{host.name}' has rank {rank}, which host '{by_rank[rank].name}' in line "
                f"{by_rank[rank].vars['rank'].line} has too. Give each a rank of its own, or none any.",
            )
        elif rank >= len(hosts):
            problems.add(
                line,
                f"host '{host.name}' has rank {rank}, but ranks begin at 0 and end at {len(hosts) - 1} here, "
                "one for each host.",
            )
        by_rank.setdefault(rank, host)
    free = (rank for rank in range(2 * len(hosts)) if rank not in by_rank)
    return [values_of_host["rank"] if "rank" in values_of_host else next(free) for values_of_host in values]


def _refuse_same_address(hosts: Sequence[Host], values: Sequence[dict[str, Any]], problems: Problems) -> None:
    by_address: dict[tuple[str, int], Host] = {}
    for host, values_of_host in zip(hosts, values, strict=True):
        address = (
            values_of_host.get("ansible_host", host.name).casefold(),
            values_of_host.get("ansible_port", 22),
        )
        other = by_address.setdefault(address, host)
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
    try:
        return str(read_bastion(value))
    except InvalidInput as error:
        raise _Wrong("a bastion as in user@host or user@host:22") from error


def _args(value: object) -> SshArgs | None:
    if not isinstance(value, str):
        return None
    try:
        args = read_args(value)
    except InvalidInput as error:
        raise _Wrong("a bastion as in user@host or user@host:22") from error
    except ValueError as error:
        raise _Wrong("arguments of ssh, quoted as in a shell") from error
    for text in (args.proxy_command, args.user, args.port, args.key_file):
        _no_template(text)
    return args


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
    **dict.fromkeys(_ARGS, _args),
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
    "ssh_alias": _word,
}
_REQUIRED = ("ansible_host", "ansible_user", "rank", "private_ip", "id", "state")
