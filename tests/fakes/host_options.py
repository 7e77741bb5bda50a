"""Options of a fake cloud that choose the hosts behind its instances."""

import argparse
from pathlib import Path

from tests.fakes.hosts import Hosts, HostsLike
from tests.fakes.vm_hosts import VmHosts


def add_host_options(parser: argparse.ArgumentParser) -> None:
    """Add them; without any of them instances are records and nothing more."""
    behind = parser.add_mutually_exclusive_group()
    behind.add_argument("--hosts", action="store_true", help="instances are real SSH servers")
    behind.add_argument(
        "--vms", type=Path, metavar="PROFILES", help="instances are VM-like hosts, as a file of JSON says"
    )
    parser.add_argument("--mirror", type=Path, help="files of a package mirror that VM-like hosts can reach")


def hosts_of(options: argparse.Namespace, home: Path, ssh_port: int) -> HostsLike | None:
    """Return the hosts that the options request."""
    if options.vms:
        return VmHosts(home, options.vms, options.mirror)
    return Hosts(home / "hosts", ssh_port) if options.hosts else None
