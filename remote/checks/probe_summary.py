"""What the nodes' attempts to reach each other say: many failed pairs, few sentences. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from remote.checks.finding import Finding, listed, named
from remote.checks.probe import Attempt, ProbeAnswer
from remote.shared.constants import CONNECT_TIMEOUT_S, EXCHANGE_TIMEOUT_S


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What can't be reached alike: the same outcome, for the same nodes."""

    outcome: str
    sources: tuple[str, ...]
    peers: tuple[str, ...]
    attempts: tuple[Attempt, ...]


def unreachable(
    probes: Mapping[str, ProbeAnswer], *, clouds: Mapping[str, str | None], rendezvous_port: int | None
) -> list[Finding]:
    """A finding for each kind of failure. `clouds`: node → the cloud that it is rented from."""
    addresses = {attempt.peer: attempt.address for answer in probes.values() for attempt in answer.attempts}
    return [
        Finding(
            node=named(blamed(failure)),
            problem=problem_of(failure, rendezvous_port),
            fix=_other_address(failure, probes)
            or fix_of(failure, {clouds.get(peer) for peer in failure.peers}, addresses),
        )
        for failure in failures(probes)
    ]


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


WHAT = {
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
    """Who can't reach whom, on which ports, and how it fails; as said of the nodes that `blamed` names."""
    it, it_has = ("it", "it") if len(blamed(failure)) == 1 else ("they", "them")
    addresses = {attempt.peer: attempt.address for attempt in failure.attempts}
    if set(failure.sources) == set(failure.peers):
        who, whom = "they", "each other"
    elif blamed(failure) == failure.sources:
        who, whom = it, listed([f"{peer} ({addresses[peer]})" for peer in failure.peers])
    else:
        at = listed([addresses[peer] for peer in failure.peers])
        who, whom = named(failure.sources), f"{it_has} (at {at})"
    ports = _ports(failure.attempts, rendezvous_port)
    return f"{who} can't reach {whom} on {ports}: {WHAT.get(failure.outcome, failure.outcome)}"


def blamed(failure: Failure) -> tuple[str, ...]:
    """The nodes on which something has to be done."""
    return failure.sources if _on_the_way_out(failure) else failure.peers


def _on_the_way_out(failure: Failure) -> bool:
    """Whether it is the sources' side: they say so, or one of them alone fails to reach what others do."""
    return failure.outcome == "denied" or (len(failure.sources) == 1 and len(failure.peers) > 1)


def _ports(attempts: Iterable[Attempt], rendezvous_port: int | None) -> str:
    tried = {attempt.port for attempt in attempts}
    high = [str(port) for port in sorted(tried - {rendezvous_port})]
    rendezvous = f"the rendezvous port {rendezvous_port}" if rendezvous_port in tried else ""
    others = f"{'port' if len(high) == 1 else 'ports'} {listed(high)}" if high else ""
    return " and ".join(filter(None, [rendezvous, others]))


MAX_ADDRESSES = 8
"""More of them are told of as their subnet."""
DROPPED = {
    "oci": "let in all TCP from the subnet's own CIDR, by an ingress rule of the subnet's security list or of the "
    "machines' network security group (`gpuctl up` mends gpuctl's own)",
    "aws": "let in all TCP from the security group itself, by an inbound rule of the machines' group "
    "(`gpuctl up` mends gpuctl's own)",
}
"""Cloud → the rule that lets peers in. A cloud's own filter drops, it never rejects."""


def fix_of(failure: Failure, clouds: set[str | None], addresses: Mapping[str, str]) -> str:
    """What to do about it. `clouds`: those of the peers. `addresses`: those of all nodes that are known."""
    known = sorted({addresses[name] for name in failure.sources if name in addresses})
    sources = ",".join(known) if 0 < len(known) <= MAX_ADDRESSES else "SUBNET"
    cloud = next(iter(clouds)) if len(clouds) == 1 else None
    on = named(failure.peers)
    if _on_the_way_out(failure) and failure.outcome in ("denied", "rejected", "timeout"):
        return f"let TCP out on {named(failure.sources)}: sudo iptables -S OUTPUT shows what forbids it"
    match failure.outcome:
        case "timeout":
            return (
                DROPPED.get(cloud or "", "let in all TCP from the other nodes in the firewall between them")
                + f"; if that is so, look for a DROP on {on}: sudo iptables -S INPUT"
            )
        case "rejected":
            return (
                f"open the firewall on {on} to the other nodes: `gpuctl train` does that itself where sudo needs no "
                f"password; by hand: sudo iptables -I INPUT -p tcp -s {sources} -j ACCEPT"
            )
        case "refused" | "stranger":
            return (
                f"see that private_ip in the inventory is an address of {on} itself (gpuctl exec -- ip addr), and "
                "that no firewall there answers for it (sudo iptables -S INPUT)"
            )
        case "silent":
            return (
                f"see whether {on} is overloaded (gpuctl exec -- uptime), and that no other program has its port "
                "(sudo ss -ltnp)"
            )
        case "stalled":
            return (
                "set the interfaces to the MTU of the network between them (sudo ip link set dev IFACE mtu 1500), or "
                "let ICMP type 3 code 4 in"
            )
        case _:
            return f"set private_ip in the inventory to an address of {on} that the other nodes can reach"
