"""Summary of the nodes' attempts to reach each other: many failed pairs, few sentences. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from inventories.text import listed
from remote.checks.probe import Attempt, ProbeAnswer
from remote.findings import Finding, named
from remote.firewall.steps import SUDO
from remote.shared.constants import CONNECT_TIMEOUT_S, EXCHANGE_TIMEOUT_S


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A group of failed connections with the same outcome, for the same nodes."""

    outcome: str
    sources: tuple[str, ...]
    peers: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    drop_outgoing: tuple[str, ...] = ()
    """Nodes whose own firewalls may drop what goes out, where each failed connection has one of them at an end."""


def unreachable(
    probes: Mapping[str, ProbeAnswer],
    *,
    clouds: Mapping[str, str | None],
    rendezvous_port: int | None,
    without_sudo: Collection[str] = (),
    drop_outgoing: Collection[str] = (),
) -> list[Finding]:
    """A finding for each kind of failure. `clouds`: node → the cloud that it is rented from.

    `without_sudo`: nodes that have no command sudo; root types the same without it. `drop_outgoing`: nodes whose own
    firewall may keep what goes to the others from going out.
    """
    addresses = {attempt.peer: attempt.address for answer in probes.values() for attempt in answer.attempts}
    return [
        Finding(
            node=named(blamed(failure)),
            problem=problem_of(failure, rendezvous_port),
            fix=_other_address(failure, probes)
            or fix_of(
                failure,
                {clouds.get(peer) for peer in failure.peers},
                addresses,
                root="" if {*without_sudo} & {*failure.sources, *failure.peers} else SUDO,
            ),
        )
        for failure in (_with_outgoing(each, drop_outgoing) for each in failures(probes))
    ]


def _with_outgoing(failure: Failure, drop_outgoing: Collection[str]) -> Failure:
    """Return the failure with the nodes that drop what goes out: connections from these, or answers to others."""
    dropping = tuple(
        name for name in dict.fromkeys([*failure.sources, *failure.peers]) if name in drop_outgoing
    )
    rest = ({*failure.sources} - {*dropping}, {*failure.peers} - {*dropping})
    # A pair without such a node needs another explanation.
    explained = all(source == peer for source in rest[0] for peer in rest[1])
    return replace(failure, drop_outgoing=dropping) if explained else failure


def _other_address(failure: Failure, probes: Mapping[str, ProbeAnswer]) -> str:
    """Return the fix where only the first address of the peers' interfaces, not their private_ip, fails; else ''."""
    failed = {(attempt.peer, attempt.address) for attempt in failure.attempts}
    if not all(probes[peer].rank_address == address for peer, address in failed):
        return ""
    each = listed([f"{address} ({peer})" for peer, address in sorted(failed)])
    return (
        f"NCCL and gloo listen at the first address of an interface, and that is not private_ip: {each}. Set "
        "private_ip in the inventory to it, or let in the other nodes' first addresses, too"
    )


def failures(probes: Mapping[str, ProbeAnswer]) -> list[Failure]:
    """Failed attempts, by outcome and by the nodes concerned, in as few groups as possible."""
    tried: dict[str, dict[str, dict[str, list[Attempt]]]] = {}
    for source, answer in probes.items():
        for attempt in answer.attempts:
            if attempt.outcome != "connected":
                by_peer = tried.setdefault(attempt.outcome, {}).setdefault(attempt.peer, {})
                by_peer.setdefault(source, []).append(attempt)
    return [
        Failure(
            outcome=outcome,
            sources=tuple(name for name in probes if any(name in by_peer[peer] for peer in peers)),
            peers=tuple(name for name in probes if name in peers),
            attempts=tuple(a for peer in peers for some in by_peer[peer].values() for a in some),
        )
        for outcome, by_peer in tried.items()
        for peers in _alike({peer: frozenset(sources) for peer, sources in by_peer.items()})
    ]


def _alike(sources: Mapping[str, frozenset[str]]) -> list[set[str]]:
    """Peers that the same nodes fail to reach, together.

    Where no node reaches a peer, all nodes *but itself* are against it: peers like that are alike, too.
    """
    same: dict[frozenset[str], set[str]] = {}
    with_itself: dict[frozenset[str], set[str]] = {}
    for peer, names in sources.items():
        same.setdefault(names, set()).add(peer)
        with_itself.setdefault(names | {peer}, set()).add(peer)
    return list(min(same, with_itself, key=len).values())


PROBLEMS = {
    "refused": "the connection was refused",
    "rejected": "a firewall rejects it (EHOSTUNREACH at once)",
    "no host": "no machine answers for the address (EHOSTUNREACH after a while)",
    "no route": "there is no route to it (ENETUNREACH)",
    "denied": "its own firewall does not let it out (EPERM)",
    "timeout": f"no answer within {CONNECT_TIMEOUT_S:.0f} s, so something drops the packets",
    "stranger": "something answers there that is not that node's probe",
    "silent": f"it connects, and hears nothing within {EXCHANGE_TIMEOUT_S:.0f} s",
    "stalled": "it connects, but 64 kB do not get through: the MTU on the way is smaller than the interfaces think",
    "unresolved": "the name has no address",
}


def problem_of(failure: Failure, rendezvous_port: int | None) -> str:
    """Return which nodes can't reach which, on which ports, and how it fails; about the nodes that `blamed` names."""
    if failure.drop_outgoing:
        its = "its own firewall drops" if len(failure.drop_outgoing) == 1 else "their own firewalls drop"
        others_involved = {*failure.sources, *failure.peers} - {*failure.drop_outgoing}
        return f"{its} what goes out to {listed(sorted(others_involved)) or 'each other'}"
    it, it_has = ("it", "it") if len(blamed(failure)) == 1 else ("they", "them")
    addresses = {attempt.peer: attempt.address for attempt in failure.attempts}
    if set(failure.sources) == set(failure.peers):
        subject, whom = "they", "each other"
    elif blamed(failure) == failure.sources:
        subject, whom = it, listed([f"{peer} ({addresses[peer]})" for peer in failure.peers])
    else:
        at = listed([addresses[peer] for peer in failure.peers])
        subject, whom = named(failure.sources), f"{it_has} (at {at})"
    tried = {attempt.port for attempt in failure.attempts}
    high = [str(port) for port in sorted(tried - {rendezvous_port})]
    rendezvous = f"the rendezvous port {rendezvous_port}" if rendezvous_port in tried else ""
    high_ports = f"{'port' if len(high) == 1 else 'ports'} {listed(high)}" if high else ""
    ports = " and ".join(filter(None, [rendezvous, high_ports]))
    return f"{subject} can't reach {whom} on {ports}: {PROBLEMS.get(failure.outcome, failure.outcome)}"


def blamed(failure: Failure) -> tuple[str, ...]:
    """The nodes on which something has to be done."""
    return failure.drop_outgoing or (failure.sources if _on_the_way_out(failure) else failure.peers)


def _on_the_way_out(failure: Failure) -> bool:
    """Return whether the sources are at fault.

    They report it, or a single node fails to reach nodes that others reach.
    """
    return failure.outcome == "denied" or (len(failure.sources) == 1 and len(failure.peers) > 1)


MAX_ADDRESSES = 8
"""A larger number of addresses is shown as their subnet."""
DROPPED = {
    "oci": "let in all TCP from the subnet's own CIDR, by an ingress rule of the subnet's security list or of the "
    "machines' network security group (`gpuctl up` mends gpuctl's own)",
    "aws": "let in all TCP from the security group itself, by an inbound rule of the machines' group "
    "(`gpuctl up` mends gpuctl's own)",
}
"""Cloud → the rule that lets peers in. A cloud's own filter drops, it never rejects."""


_ADDRESS_AND_FIREWALL = (
    "see that private_ip in the inventory is an address of {on} itself (gpuctl exec -- ip addr), and that no "
    "firewall there answers for it ({root}iptables -S INPUT)"
)
FIXES = {
    "rejected": "open the firewall on {on} to the other nodes: `gpuctl train` does that itself as root or with a "
    "sudo that needs no password; {by_hand}: {root}iptables -I INPUT -p tcp -s {sources} -j ACCEPT",
    "refused": _ADDRESS_AND_FIREWALL,
    "stranger": _ADDRESS_AND_FIREWALL,
    "silent": "see whether {on} is overloaded (gpuctl exec -- uptime), and that no other program has its port "
    "({root}ss -ltnp)",
    "stalled": "set the interfaces to the MTU of the network between them ({root}ip link set dev IFACE mtu 1500), or "
    "let ICMP type 3 code 4 in",
}
OTHER_FIX = "set private_ip in the inventory to an address of {on} that the other nodes can reach"


def fix_of(
    failure: Failure, clouds: set[str | None], addresses: Mapping[str, str], *, root: str = SUDO
) -> str:
    """Return the fix. `clouds`: those of the peers. `addresses`: those of all nodes that are known.

    `root`: what begins a command for root.
    """
    known = sorted({addresses[name] for name in failure.sources if name in addresses})
    sources = ",".join(known) if 0 < len(known) <= MAX_ADDRESSES else "SUBNET"
    cloud = next(iter(clouds)) if len(clouds) == 1 else None
    on = named(failure.peers)
    on_the_way_out = _on_the_way_out(failure) and failure.outcome in ("denied", "rejected", "timeout")
    if failure.drop_outgoing or on_the_way_out:
        nodes = named(failure.drop_outgoing or failure.sources)
        return f"let TCP out on {nodes}: {root}iptables -S OUTPUT or {root}nft list ruleset shows the rule"
    if failure.outcome == "timeout":
        rule = DROPPED.get(cloud or "", "let in all TCP from the other nodes in the firewall between them")
        return f"{rule}; if that is so, look for a DROP on {on}: {root}iptables -S INPUT"
    by_hand = "by hand" if root else "by hand, as root"
    return FIXES.get(failure.outcome, OTHER_FIX).format(on=on, root=root, sources=sources, by_hand=by_hand)
