"""The hosts' own firewalls: a cluster's nodes let each other in on the ports that training uses, and nobody else.

Facts → the steps still needed, or an empty list with the reason. Rules of others are never flushed, moved or
loosened; our rules carry the cluster's name and goes without a trace. May not decide whether a firewall that could
not be opened is fatal: the ports may be reachable all the same.
"""

import hashlib
import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from inventories.text import plural
from remote.errors import NodeFailed
from remote.firewall import firewalld, iptables, nftables, ufw
from remote.firewall.iptables import File
from remote.firewall.rules import Address, Filter, networks_of, short
from remote.firewall.steps import Run, Step, Steps, Write, places
from remote.sessions.answers import reading

if TYPE_CHECKING:
    from remote.sessions.session import Node

__all__ = [
    "FirewallFacts",
    "Run",
    "Step",
    "Steps",
    "Write",
    "apply",
    "close_steps",
    "ensure_open",
    "open_steps",
    "parse",
]

_T = TypeVar("_T")
_SAVED = {
    "/etc/iptables/rules.v4": 4,
    "/etc/iptables/rules.v6": 6,
    "/etc/sysconfig/iptables": 4,
    "/etc/sysconfig/ip6tables": 6,
}
"""What iptables loads at boot → the IP version that it is for."""
_NFT_SAVED = ("/etc/nftables.conf", "/etc/sysconfig/nftables.conf")
_STRANGERS = {4: ipaddress.ip_address("192.0.2.1"), 6: ipaddress.ip_address("2001:db8::1")}
"""Addresses that nobody has: a firewall that lets them in lets everybody in."""


@dataclass(frozen=True, kw_only=True)
class FirewallFacts:
    """The state of a host's firewall programs and files."""

    programs: tuple[str, ...]
    """The installed programs."""
    sudo: bool
    """Whether the command sudo is installed."""
    root: bool | None
    """Whether root access is possible; `None`: not checked, as no firewall program exists."""
    unreadable: Mapping[str, str]
    """What could not be read → why."""
    filters: Mapping[str, Filter]
    """iptables by program (`iptables-nft`, `ip6tables-legacy`, …) → its rules, where it has any."""
    bases: tuple[nftables.Base, ...]
    """nftables' chains for incoming packets, without the chains of iptables."""
    outgoing: tuple[Filter, ...]
    """Rules for what goes out, of all programs."""
    files: Mapping[str, File]
    zones: firewalld.Permanent
    """firewalld's own record of our rules."""


def parse(document: Mapping[str, Any]) -> FirewallFacts:
    """Facts from the node's document. Raises KeyError, TypeError or ValueError where it is something else.

    Output of a program that can't be understood is unreadable, as if the program had failed.
    """
    unreadable = dict(document["unreadable"])

    def understood(part: str, read: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            unreadable[part] = f"its output can't be understood: {error!r}"
            return otherwise

    saves = {program: save for program, save in document["saves"].items() if save is not None}
    filters, outgoing = (
        {
            program: filter_
            for program, save in saves.items()
            if (filter_ := understood(program, partial(iptables.read_filter, save, base), None)) is not None
        }
        for base in (iptables.INPUT, iptables.OUTPUT)
    )
    bases: tuple[nftables.Base, ...] = ()
    bases_out: tuple[nftables.Base, ...] = ()
    if document["nft"] is not None:
        bases = understood("nft", partial(nftables.read_bases, document["nft"]), bases)
        bases_out = understood("nft", partial(nftables.read_bases, document["nft"], "output"), bases_out)
    by_iptables = {
        ("ip6" if program.startswith("ip6") else "ip", "filter", base)
        for program in saves
        if not program.endswith("-legacy")
        for base in (iptables.INPUT, iptables.OUTPUT)
    }
    files = {path: File(text=file["text"], sha256=file["sha256"]) for path, file in document["files"].items()}
    for path in files:
        if path in _SAVED:
            understood(path, partial(iptables.read_filter, files[path].text), None)
        elif path in ufw.FILES.values():
            understood(path, partial(ufw.read_shared, [files[path].text]), ufw.NO_OWNERS)
    zones = {path: file.text for path, file in files.items() if path.startswith(firewalld.FOLDER)}
    return FirewallFacts(
        programs=tuple(document["programs"]),
        sudo=bool(document["sudo"]),
        root=document["root"],
        filters=filters,
        bases=_without(by_iptables, bases),
        outgoing=(*outgoing.values(), *(base.filter for base in _without(by_iptables, bases_out))),
        files=files,
        zones=understood(firewalld.FOLDER, partial(firewalld.read_permanent, zones), {}),
        unreadable=unreadable,
    )


def _without(places: set[tuple[str, str, str]], bases: Iterable[nftables.Base]) -> tuple[nftables.Base, ...]:
    return tuple(base for base in bases if (base.family, base.table, base.filter.base) not in places)


def may_drop_outgoing(facts: FirewallFacts, peers: Iterable[str]) -> bool:
    """Return whether the host's own rules may keep connections to these addresses from going out."""
    addresses = []
    for peer in peers:
        with suppress(ValueError):  # the node's own word
            addresses.append(ipaddress.ip_address(peer))
    return any(filter_.first_block(addresses) is not None for filter_ in facts.outgoing)


def owner_tag(owner: str) -> str:
    """Return the tag of a cluster's rules on a host."""
    return f"gpuctl-{hashlib.sha256(owner.encode()).hexdigest()[:10]}"


def open_steps(facts: FirewallFacts, *, owner: str, peers: Iterable[str]) -> Steps:
    """Return the missing steps for these peers to reach TCP ports 1024 to 65535, now and after a reboot.

    `owner` is the cluster's, opaque; `peers` are the other nodes' private addresses, IPv4 or IPv6. Former peers of
    an earlier call are removed. Raises ValueError on a peer that is no address.
    """
    addresses = tuple(dict.fromkeys(ipaddress.ip_address(peer) for peer in peers))
    tag = owner_tag(owner)
    if not facts.programs:
        return Steps(steps=(), reason="no firewall program is installed")
    if unread := _unread(facts, {address.version for address in addresses}):
        return Steps(steps=_guesses(facts, tag, addresses), reason=unread, known=False, sudo=facts.sudo)
    steps = _steps(facts, tag, addresses)
    count = plural(len(addresses), "peer")
    if steps:
        reason = f"{count} to be let in by {', '.join(places(steps))}"
        return Steps(steps=steps, reason=reason, sudo=facts.sudo)
    filters = [(filter_, _version(program)) for program, filter_ in facts.filters.items()]
    filters += [(base.filter, version) for base in facts.bases for version in nftables.VERSIONS[base.family]]
    if all(each.blocked_at(_STRANGERS[version]) is None for each, version in filters):
        return Steps(steps=(), reason="nothing filters incoming connections")
    return Steps(steps=(), reason=f"the firewall lets {count} in already")


def close_steps(facts: FirewallFacts, *, owner: str) -> Steps:
    """Return the steps that remove all rules of `open_steps` for this owner."""
    if not facts.programs:
        return Steps(steps=(), reason="no firewall program is installed")
    if unread := _unread(facts, {4, 6}):
        return Steps(steps=(), reason=unread, known=False)
    steps = _steps(facts, owner_tag(owner), ())
    return Steps(
        steps=steps,
        reason="the cluster's rules go" if steps else "the firewall has no rules of the cluster's",
    )


def apply(node: "Node", steps: Steps) -> FirewallFacts:
    """Do the steps on a node, as root and in one go; what its firewall is afterwards.

    Raises NodeFailed with the commands for an administrator where the firewall could not be read, root can't be
    had or a step failed; ConnectionLost; BadAnswer.
    """
    if not steps.known:
        raise NodeFailed(f"{node.name}: {steps.reason}.{_for_administrator(steps)}")
    request = {"steps": [step.document() for step in steps.steps]}
    try:
        answer = node.call("firewall", request, timeout_s=120 + 5 * len(steps.steps))
    except NodeFailed as error:
        raise NodeFailed(f"{error}{_for_administrator(steps)}") from error
    with reading(node.name, "the firewall's facts"):
        return parse(answer["facts"])


def ensure_open(node: "Node", facts: FirewallFacts, *, owner: str, peers: Sequence[str]) -> Steps:
    """Let the peers in on a node, and verify it; returns a summary. Raises as `apply` does."""
    plan = open_steps(facts, owner=owner, peers=peers)
    if plan.known and not plan.steps:
        return plan
    left = open_steps(apply(node, plan), owner=owner, peers=peers)
    if not left.known or left.steps:
        raise NodeFailed(
            f"{node.name}: its firewall still keeps peers out ({left.reason}).{_for_administrator(left)}"
        )
    return plan


def _steps(facts: FirewallFacts, tag: str, peers: Sequence[Address]) -> tuple[Step, ...]:
    steps: list[Step | None] = []
    by_firewalld = [(base.filter, peers) for base in facts.bases if firewalld.is_firewalld(base.filter)]
    by_ufw: list[Address] = []
    kept_out: set[Address] = set()
    shared = {
        version: ufw.read_shared([facts.files[path].text] if path in facts.files else [])
        for version, path in ufw.FILES.items()
    }
    for program, filter_ in facts.filters.items():
        version = _version(program)
        peers_of_version = [peer for peer in peers if peer.version == version]
        if firewalld.is_firewalld(filter_):
            by_firewalld.append((filter_, peers_of_version))
            continue
        block = ufw.marked(filter_, shared[version]).without_ours().first_block(peers_of_version)
        if block is not None and ufw.manages(filter_, block):
            by_ufw += peers_of_version
            kept_out.update(peer for peer in peers_of_version if filter_.blocked_at(peer) is not None)
            block = None
        steps.append(iptables.live_step(program, filter_, tag, peers_of_version, block))
    steps += ufw.live_steps({**shared[4], **shared[6]}, tag, by_ufw, kept_out)
    number = firewalld.priority(tag.removeprefix("gpuctl-"))
    steps += firewalld.live_steps(by_firewalld, facts.zones, number)
    native = [base for base in facts.bases if not firewalld.is_firewalld(base.filter)]
    steps.append(nftables.live_step(native, tag, peers))
    for path, file in facts.files.items():
        if path in _SAVED:
            peers_of_version = [peer for peer in peers if peer.version == _SAVED[path]]
            steps.append(iptables.file_step(path, file, tag, peers_of_version))
        elif path in _NFT_SAVED:
            steps.append(nftables.file_step(path, facts.files, native, tag, peers))
    return tuple(step for step in steps if step is not None)


def _version(program: str) -> int:
    return 6 if program.startswith("ip6") else 4


def _unread(facts: FirewallFacts, versions: set[int]) -> str:
    """Return a sentence on unreadable parts that matter to these IP versions; empty: all parts could be read."""
    missing = {
        part: why
        for part, why in facts.unreadable.items()
        if 6 in versions or not part.startswith("ip6tables")
    }
    sentences = dict.fromkeys(why if part == "root" else f"{part}: {why}" for part, why in missing.items())
    return f"what the firewall does can't be read ({'; '.join(sentences)})" if sentences else ""


def _guesses(facts: FirewallFacts, tag: str, peers: Sequence[Address]) -> tuple[Step, ...]:
    """Commands that let the peers in, for each kind of firewall that may be in use there."""
    steps: list[Step] = []
    if "firewall-cmd" in facts.programs:
        rules = [
            f"--add-rich-rule={firewalld.rich_rule(network, firewalld.priority(tag.removeprefix('gpuctl-')))}"
            for network in networks_of(peers)
        ]
        steps += [Run(argv=("firewall-cmd", *rules)), Run(argv=("firewall-cmd", "--permanent", *rules))]
    if "ufw" in facts.programs:
        steps += ufw.live_steps({}, tag, peers, kept_out=peers)
    for program in facts.programs:
        networks = networks_of([peer for peer in peers if peer.version == _version(program)])
        if program.startswith(("iptables", "ip6tables")) and networks:
            rule = f"-p tcp --dport 1024:65535 -m comment --comment {tag} -j ACCEPT".split()
            sources = ",".join(map(short, networks))
            steps.append(Run(argv=(program, "--wait", "--insert", iptables.INPUT, "-s", sources, *rule)))
    return tuple(steps)


def _for_administrator(steps: Steps) -> str:
    if not steps.steps:
        return ""
    clause = "" if steps.known else " (those of the firewall that is in use there)"
    root = "" if steps.sudo else ", run as root"
    return f" An administrator of it can let the peers in with these commands{clause}{root}:\n{steps.shell()}"
