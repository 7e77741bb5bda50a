"""The groups, hosts and variables of an Ansible inventory in YAML, merged as Ansible merges them.

A variable of a host wins over one of its groups, and one of a child group over one of its parent's. Among
groups of the same depth the higher `ansible_group_priority` wins, then the later name.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inventories.address import is_ipv6, read_address
from inventories.text import did_you_mean, shown
from inventories.yaml_source import Keys, Problems, Source

_SECTIONS = ("hosts", "vars", "children")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")


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


@dataclass(kw_only=True)
class _Group:
    vars: dict[str, Var] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    parents: set[str] = field(default_factory=set)


def read_hosts(source: Source, problems: Problems) -> list[Host]:
    """Return the hosts of an inventory, in the file's order. Errors are added to `problems`."""
    if isinstance(source.data, str) and source.data.startswith("$ANSIBLE_VAULT"):
        view = f"ansible-vault view {shlex.quote(str(source.path))} > hosts.yaml"
        problems.add(1, f"the inventory is encrypted, and gpuctl decrypts none. Give a plain copy: {view}")
        return []
    if not isinstance(source.data, dict):
        problem = "is empty" if source.data is None else f"holds {shown(source.data)}"
        problems.add(1, f"the inventory {problem}; it should begin with `all:` and list its `hosts:`.")
        return []
    reader = _Reader(source, problems)
    for name in source.data:
        if name in _SECTIONS:
            problems.add(source.line(name), f"'{name}' is no group; put it under `all:`.")
            continue
        reader.group(name, (name,), parent="all")
    return reader.hosts()


def _name_of(host: str) -> str:
    """Return a host's name: of `user@host:port` or an IPv6 address, the part that a name can have; else the text."""
    address = read_address(host)
    more = address.user is not None or address.port is not None or is_ipv6(address.host)
    return address.name if more and _HOST_NAME.fullmatch(address.host.replace(":", "0")) else host


class _Reader:
    def __init__(self, source: Source, problems: Problems) -> None:
        self._source = source
        self._problems = problems
        self._groups = {"all": _Group()}
        self._host_lines: dict[str, int] = {}
        self._host_vars: dict[str, dict[str, Var]] = {}
        self._addresses: dict[str, str] = {}

    def group(self, name: str, keys: Keys, *, parent: str) -> None:
        """Note a group, its variables, its hosts and its children."""
        group = self._groups.setdefault(name, _Group())
        if name in self._with_ancestors(parent) and keys != ("all",):
            self._problems.add(self._source.line(*keys), f"group '{name}' is a child of itself.")
            return
        if name != "all":
            group.parents.add(parent)
        sections = self._mapping(keys)
        for section in sections:
            if section not in _SECTIONS:
                hint = did_you_mean(section, _SECTIONS) or "."
                self._problems.add(
                    self._source.line(*keys, section),
                    f"key '{section}' is not known in group '{name}'{hint} Allowed: {', '.join(_SECTIONS)}.",
                )
        group.vars |= self._vars((*keys, "vars")) if "vars" in sections else {}
        for host in self._mapping((*keys, "hosts")) if "hosts" in sections else ():
            host_name = _name_of(host)
            group.hosts.add(host_name)
            if host_name != host:
                self._addresses[host_name] = host
            self._host(host_name, (*keys, "hosts", host))
        for child in self._mapping((*keys, "children")) if "children" in sections else ():
            self.group(child, (*keys, "children", child), parent=name)

    def hosts(self) -> list[Host]:
        """The hosts noted, each with its groups' variables under its own."""
        groups_of: dict[str, set[str]] = {name: {"all"} for name in self._host_lines}
        for group, content in self._groups.items():
            for name in content.hosts & groups_of.keys():
                groups_of[name] |= self._with_ancestors(group)
        order = {name: place for place, name in enumerate(sorted(self._groups, key=self._weight))}
        hosts = []
        for name, line in self._host_lines.items():
            merged: dict[str, Var] = {}
            for group in sorted(groups_of[name], key=order.__getitem__):
                merged |= self._groups[group].vars
            hosts.append(
                Host(
                    name=name,
                    line=line,
                    vars=merged | self._host_vars[name],
                    address=self._addresses.get(name),
                )
            )
        return hosts

    def _host(self, name: str, keys: Keys) -> None:
        line = self._source.line(*keys)
        if not _HOST_NAME.fullmatch(name):
            self._problems.add(
                line,
                f"host name '{name}' can't be used: a name is letters, digits, '.', '_' and '-'. "
                "Give each host a line of its own, and write its address and port as ansible_host and "
                "ansible_port.",
            )
            return
        self._host_lines.setdefault(name, line)
        known = self._host_vars.setdefault(name, {})
        for key, var in self._vars(keys).items():
            other = known.setdefault(key, var)
            if other.value != var.value:
                self._problems.add(
                    var.line,
                    f"host '{name}' has {key} {shown(var.value)} here, but {shown(other.value)} in line "
                    f"{other.line}. Remove one of them, or give one of the hosts another name.",
                )

    def _vars(self, keys: Keys) -> dict[str, Var]:
        return {
            key: Var(value=value, line=self._source.line(*keys, key))
            for key, value in self._mapping(keys).items()
        }

    def _mapping(self, keys: Keys) -> dict[str, Any]:
        """Return the mapping at `keys`; an empty value counts as an empty mapping."""
        value = self._source.data
        for key in keys:
            value = value[key]
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._problems.add(
                self._source.line(*keys),
                f"'{keys[-1]}' should be keys with values, but is {shown(value)}.",
            )
            return {}
        return value

    def _with_ancestors(self, group: str) -> set[str]:
        ancestors: set[str] = set()
        left = {group}
        while left:
            name = left.pop()
            ancestors.add(name)
            left |= self._groups[name].parents - ancestors
        return ancestors

    def _weight(self, group: str) -> tuple[int, float, str]:
        """Groups sorted by it are in the order in which their variables are laid over each other."""
        priority = self._groups[group].vars.get("ansible_group_priority")
        value = priority.value if priority and isinstance(priority.value, int | float) else 1
        return self._depth(group), value, group

    def _depth(self, group: str) -> int:
        """The length of the longest way down from `all`."""
        level, depth = self._groups[group].parents, 0
        while level:
            level = set().union(*(self._groups[name].parents for name in level))
            depth += 1
        return depth
