"""Read the settings of an inventory for SSH: `user@host:port`, arguments of ssh, kinds of connection."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from inventories.address import read_bastion
from inventories.user_ssh import login_words

SSH_CONNECTIONS = ("ssh", "smart", "paramiko", "paramiko_ssh")
_WITH_VALUE = "BbcDEeFIiJLlmOoPpQRSWw"
"""Options of ssh that take a value."""
_FIELDS = {
    "proxycommand": "proxy_command", "l": "user", "user": "user", "p": "port", "port": "port",
    "i": "key_file", "identityfile": "key_file",
}  # fmt: skip
"""Option → the field of SshArgs."""


@dataclass(frozen=True, kw_only=True)
class SshArgs:
    """Arguments of ssh that change where a connection goes. `None`: not among them."""

    jump: str | None = None
    """ProxyJump: a bastion, several with commas, or `none`."""
    proxy_command: str | None = None
    user: str | None = None
    port: str | None = None
    key_file: str | None = None

    def over(self, other: "SshArgs") -> "SshArgs":
        """Return these, and the other's where these say nothing. If these have any proxy, the other's is ignored."""
        proxied = self.jump is not None or self.proxy_command is not None
        return SshArgs(
            jump=self.jump if proxied else other.jump,
            proxy_command=self.proxy_command if proxied else other.proxy_command,
            user=self.user or other.user,
            port=self.port or other.port,
            key_file=self.key_file or other.key_file,
        )


@cache
def read_args(text: str) -> SshArgs:
    """Return what arguments of ssh say on the way to a host; all others are ignored. Raises ValueError."""
    args = SshArgs()
    for option, value in _options(shlex.split(text)):
        if option == "o":
            name, rest = (*re.split(r"[=\s]+", value.strip(), maxsplit=1), "")[:2]
            option, value = name.lower(), rest.strip().strip('"')
        args = args.over(_read_option(option, value.strip()))
    return args


def _read_option(option: str, value: str) -> SshArgs:
    if option in ("J", "proxyjump") and value != "none":
        hops = [str(read_bastion(hop.removeprefix("ssh://"))) for hop in value.split(",")]
        return SshArgs(jump=",".join(hops))
    if option in ("J", "proxyjump", "proxycommand") and value == "none":
        return SshArgs(jump="none")
    name = _FIELDS.get(option)
    return SshArgs(**{name: value}) if name else SshArgs()


def _options(args: list[str]) -> Iterator[tuple[str, str]]:
    """Options of ssh: letter and value."""
    left = iter(args)
    for arg in left:
        if not arg.startswith("-"):
            continue
        for place, letter in enumerate(arg[1:], 2):
            if letter in _WITH_VALUE:
                value = arg[place:] or next(left, "")
                yield letter, value
                break


def proxy_of_hops(hops: str) -> str:
    """Return the program that reaches a host over several bastions."""
    *before, last = hops.split(",")
    bastion = read_bastion(last)
    login = login_words(bastion.user, bastion.port)
    return shlex.join(["ssh", "-J", ",".join(before), *login, "-W", "[%h]:%p", "--", bastion.host])


def connection_problem(kind: str) -> str | None:
    """Return why a kind of connection can't be used, with what to do instead; `None`: it is SSH."""
    short = kind.rpartition(".")[2]
    if short in SSH_CONNECTIONS:
        return None
    other = {
        "local": "for machines on this computer: gpuctl up --provider local",
        "kubectl": "for pods: gpuctl up --provider kubernetes",
        "docker": "run an SSH server in the container, or use gpuctl on its host",
        "podman": "run an SSH server in the container, or use gpuctl on its host",
        "winrm": "machines need Linux and an SSH server",
        "psrp": "machines need Linux and an SSH server",
    }.get(short, "give the machine an SSH server, and leave out the variable")
    return f"ansible_connection '{kind}' is not supported, as gpuctl reaches machines by SSH; {other}."
