"""firewalld: rich rules, now and for later boots, without a reload that would lose the rules of others.

Rich rules carry no comment: the rules of a cluster have a priority of its own. Only firewalld is changed, never the
tables that it keeps in the kernel; these show its present rules.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from remote.firewall.rules import Address, Filter, Match, Network, Networks, Rule, Verdict, networks_of
from remote.firewall.steps import Run

FOLDER = "/etc/firewalld/zones/"
PRIORITIES = range(-32000, -2000)
"""Ours, and negative: before the rejections of a zone."""
_ZONES_CHAIN = re.compile(r"(?:filter_)?INPUT_ZONES")
_ZONE_CHAIN = re.compile(r"(?:filter_)?IN_([A-Za-z0-9_.-]+)")

Permanent = Mapping[str, Mapping[int, Networks]]
"""Zone → priority → whom our rules let in."""


def is_firewalld(filter_: Filter) -> bool:
    """Return whether these are rules of firewalld, with either of its back ends."""
    return any(_ZONES_CHAIN.fullmatch(name) for name in filter_.chains)


def priority(digest: str) -> int:
    """A cluster's priority, of the hexadecimal digest in its name."""
    return PRIORITIES[int(digest, 16) % len(PRIORITIES)]


def read_permanent(files: Mapping[str, str]) -> Permanent:
    """Our rules in the zones' files. Raises ValueError on a file that is no XML."""
    from xml.etree import ElementTree as ET

    by_zone: dict[str, dict[int, Networks]] = {}
    for path, text in files.items():
        zone = path.removeprefix(FOLDER).removesuffix(".xml")
        try:
            # The host's own configuration, written by root there; expat expands nothing from outside it.
            rules = ET.fromstring(text.encode()).findall("rule")  # noqa: S314
        except ET.ParseError as error:
            raise ValueError(f"{path} is not XML: {error}") from error
        for rule in rules:
            number = int(rule.get("priority", "0"))
            source, port = rule.find("source"), rule.find("port")
            if number not in PRIORITIES or source is None or port is None or rule.find("accept") is None:
                continue
            if port.get("port") == "1024-65535" and port.get("protocol") == "tcp":
                network = ipaddress.ip_network(source.get("address", ""))
                ours = by_zone.setdefault(zone, {})
                ours[number] = (*ours.get(number, ()), network)
    return by_zone


def marked(filter_: Filter, permanent: Permanent) -> Filter:
    """The same with our rules known as ours."""
    ours = {network for zone in permanent.values() for networks in zone.values() for network in networks}

    def mark(chain: str, rule: Rule) -> Rule:
        accepts = rule.verdict is Verdict.ACCEPT and rule.rest is Match.YES and not rule.not_from
        is_ours = chain.endswith("_pre") and accepts and set(rule.sources or ()) & ours
        return replace(rule, owner="firewalld") if is_ours else rule

    return filter_.with_rules(mark)


def zones_of(filter_: Filter, peers: Sequence[Address]) -> tuple[str, ...]:
    """The zones that what these peers send may go through."""
    zones: dict[str, None] = {}
    for name, rules in filter_.chains.items():
        if not _ZONES_CHAIN.fullmatch(name):
            continue
        for peer in peers:
            for rule in rules:
                zone = _ZONE_CHAIN.fullmatch(rule.target)
                match = rule.match(peer)
                if zone is None or match is Match.NO:
                    continue
                zones[zone[1]] = None
                if match is Match.YES:
                    break
    return tuple(zones)


def live_steps(
    filters: Sequence[tuple[Filter, Sequence[Address]]], permanent: Permanent, number: int
) -> list[Run]:
    """Return the steps that make firewalld let peers in, each filter its own: first new peers, then leaving ones.

    A rule that is there already is no error to firewalld, and neither is one to be removed that is not.
    """
    networks_of_zone: dict[str, Networks] = {}
    missing = False
    for filter_, peers in filters:
        foreign = marked(filter_, permanent).without_ours()
        kept_out = [peer for peer in peers if foreign.blocked_at(peer) is not None]
        missing = missing or filter_.first_block(kept_out) is not None
        for zone in zones_of(foreign, kept_out):
            networks_of_zone[zone] = networks_of(
                {*kept_out, *(address for network in networks_of_zone.get(zone, ()) for address in network)}
            )
    permanent_rules = {zone: numbers[number] for zone, numbers in permanent.items() if number in numbers}
    steps: list[Run] = []
    for zone, networks in networks_of_zone.items():
        coming = [each for each in networks if missing or each not in permanent_rules.get(zone, ())]
        steps += _both("--add-rich-rule", zone, number, coming)
    for zone, networks in permanent_rules.items():
        leaving = [each for each in networks if each not in networks_of_zone.get(zone, ())]
        steps += _both("--remove-rich-rule", zone, number, leaving)
    return steps


def _both(option: str, zone: str, number: int, networks: Sequence[Network]) -> list[Run]:
    if not networks:
        return []
    options = tuple(f"{option}={rich_rule(network, number)}" for network in networks)
    return [
        Run(argv=("firewall-cmd", f"--zone={zone}", *options)),
        Run(argv=("firewall-cmd", "--permanent", f"--zone={zone}", *options)),
    ]


def rich_rule(network: Network, number: int) -> str:
    """Firewalld's words for: this network may come in to the ports that peers need."""
    return (
        f'rule priority="{number}" family="ipv{network.version}" source address="{network}" '
        'port port="1024-65535" protocol="tcp" accept'
    )
