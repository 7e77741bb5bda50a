"""The inventory as a file that Ansible reads as it is.

`ansible-inventory -i FILE --list` shows the machines under `all.children.gpu.hosts`; the cluster's own facts are
the variable `gpuctl` of all. `read_inventory` reads files of `write_inventory`; `read_hosts_file` reads files of
people.
"""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from inventories import codec, yaml_source
from inventories.address import is_ipv6, read_address
from inventories.ansible.host_vars import Host, Var, machines_of
from inventories.errors import CorruptFile, InvalidInput
from inventories.machine import Inventory, Machine
from inventories.text import did_you_mean, shown
from inventories.yaml_source import Keys, Problems, Source

_HEADER = "# An Ansible inventory, written by gpuctl; `gpuctl up` and `gpuctl down` replace it.\n"
_COMMON_ARGS = "ansible_ssh_common_args"
_FACTS: dict[str, tuple[tuple[type, ...], bool]] = {
    "cluster": ((str,), True),
    "provider": ((str,), True),
    "region": ((str,), False),
    "shape": ((str,), False),
    "hourly_usd": ((int, float), False),
    "created_at": ((str,), True),
}
"""The cluster's facts: their types, and whether they have to be there."""
_SECTIONS = ("hosts", "vars", "children")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")


def write_inventory(inventory: Inventory, known_hosts: Path | None = None) -> str:
    """The file's text. With `known_hosts`, Ansible too trusts the host keys in that file and no others."""
    facts = {"format": codec.FORMAT} | {key: codec.plain(getattr(inventory, key)) for key in _FACTS}
    variables: dict[str, Any] = {"gpuctl": facts}
    if known_hosts is not None:
        variables[_COMMON_ARGS] = _pinning(known_hosts)
    hosts = {machine.name: _host(machine, known_hosts) for machine in inventory.machines}
    document = {"all": {"vars": variables, "children": {"gpu": {"hosts": hosts}}}}
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    # The explicit end, `...`, is how a reader knows that the file is whole.
    text: str = yaml.dump(
        document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1000, explicit_end=True
    )
    return _HEADER + text


def read_inventory(path: Path) -> Inventory:
    """The inventory in a file that `write_inventory` made. Raises CorruptFile or NewerFormat."""
    try:
        source = yaml_source.read(path)
        facts = _facts(source)
        if facts.get("format") is not None:
            codec.check_format(facts["format"], str(path))
        if not source.ended:
            raise CorruptFile(f"'{path}' can't be used: it is cut off, as its last line is not '...'.")
        problems = Problems(path)
        if facts.get("format") is None:
            problems.add(source.line("all", "vars", "gpuctl"), "key 'gpuctl.format' is missing.")
        for key, (kinds, required) in _FACTS.items():
            value = facts.get(key)
            if value is None and not required:
                continue
            if not isinstance(value, kinds) or isinstance(value, bool):
                names = "a number" if float in kinds else "text"
                line = source.line("all", "vars", "gpuctl", key)
                problems.add(line, f"key 'gpuctl.{key}' should be {names}, but is {shown(value)}.")
        machines = machines_of(
            read_hosts(source, problems), problems, folder=path.absolute().parent, complete=True
        )
        problems.raise_if_any()
    except InvalidInput as error:
        raise CorruptFile(str(error)) from error
    values: dict[str, Any] = {key: facts.get(key) for key in _FACTS}
    return Inventory(**values, machines=machines)


def read_hosts_file(path: Path) -> tuple[Machine, ...]:
    """The machines in an inventory that a person wrote, by rank; at least one. Raises InvalidInput.

    A host needs nothing but a name: `ansible_host` is the name, `ansible_user` the current user,
    `private_ip` the address and `rank` the place in the file where they are not given. Nobody has asked
    the machines, so their state is `unknown`.
    """
    source = yaml_source.read(path, foreign_tags=True)
    facts = _facts(source)
    if "format" in facts:
        codec.check_format(facts["format"], str(path))
    problems = Problems(path)
    hosts = read_hosts(source, problems)
    machines = machines_of(hosts, problems, folder=path.absolute().parent, complete=False)
    if not hosts and not problems.found:
        problems.add(1, "the inventory has no hosts; list them as `all.hosts.NAME.ansible_host: ADDRESS`.")
    problems.raise_if_any()
    return machines


def _host(machine: Machine, known_hosts: Path | None) -> dict[str, Any]:
    # The arguments of a host replace the arguments of all.
    through = [_pinning(known_hosts)] if known_hosts is not None else []
    if machine.proxy_command is not None:
        # ssh expands %-tokens.
        through.append("-o " + shlex.quote("ProxyCommand=" + machine.proxy_command.replace("%", "%%")))
    elif machine.bastion is not None:
        through.append(f"-o ProxyJump={machine.bastion}")
    optional = {
        "gpuctl_transport": None if machine.transport == "ssh" else machine.transport,
        "ansible_kubectl_context": machine.context,
        "bastion": machine.bastion,
        _COMMON_ARGS: None if machine.is_direct else " ".join(through),
        "ssh_alias": machine.ssh_alias,
        "ansible_ssh_private_key_file": machine.key_file and str(machine.key_file.absolute()),
        "ansible_python_interpreter": machine.python,
        "shape": machine.shape,
        "host_key": machine.host_key,
        "launched_at": machine.launched_at,
    }
    return {
        "ansible_host": machine.host,
        "ansible_port": machine.port,
        "ansible_user": machine.user,
        "rank": machine.rank,
        "private_ip": machine.private_ip,
        "gpus": machine.gpus,
        "id": machine.id,
        "state": machine.state,
    } | {key: value for key, value in optional.items() if value is not None}


def _pinning(known_hosts: Path) -> str:
    # ssh expands %-tokens in the path and splits it at spaces; Ansible splits the whole like a shell.
    path = str(known_hosts.absolute()).replace("%", "%%")
    options = (f'UserKnownHostsFile="{path}"', "GlobalKnownHostsFile=/dev/null", "StrictHostKeyChecking=yes")
    return " ".join(f"-o {shlex.quote(option)}" for option in options)


def _facts(source: yaml_source.Source) -> dict[str, Any]:
    """Return the mapping at `all.vars.gpuctl`; an empty one if that is no mapping."""
    value = source.data
    for key in ("all", "vars", "gpuctl"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


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
            address = read_address(host)
            more = address.user is not None or address.port is not None or is_ipv6(address.host)
            host_name = (
                address.name if more and _HOST_NAME.fullmatch(address.host.replace(":", "0")) else host
            )
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
        level, depth = self._groups[group].parents, 0
        while level:
            level = set().union(*(self._groups[name].parents for name in level))
            depth += 1
        return depth, value, group
