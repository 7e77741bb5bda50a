"""The inventory as a file that Ansible reads as it is.

`ansible-inventory -i FILE --list` shows the machines under `all.children.gpu.hosts`; the cluster's own facts are
the variable `gpuctl` of all. `read_inventory` reads files of `write_inventory`; `read_hosts_file` reads files of
people.
"""

import shlex
from pathlib import Path
from typing import Any

import yaml

from inventories import codec, yaml_source
from inventories.ansible.groups import read_hosts
from inventories.ansible.host_vars import machines_of
from inventories.errors import CorruptFile, InvalidInput
from inventories.machine import Inventory, Machine
from inventories.text import shown
from inventories.yaml_source import Problems

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
        _check_facts(source, facts, problems)
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


def _check_facts(source: yaml_source.Source, facts: dict[str, Any], problems: Problems) -> None:
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
