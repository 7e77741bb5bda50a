"""The effect of a host's rules on a peer, whichever program wrote them.

Asked of one kind of packet only: the first of a TCP connection to this host's ports 1024 to 65535. A criterion
that this module's callers do not know may or may not match: it never counts as letting a peer in, always as
keeping it out.
"""

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Networks = tuple[Network, ...]

FIRST_PORT, LAST_PORT = 1024, 65535


class Match(Enum):
    """The answer to the question whether a rule takes the packet."""

    NO = 0
    MAYBE = 1
    YES = 2


class Verdict(Enum):
    """The action of a rule on a packet that it takes."""

    ACCEPT = "accept"
    BLOCK = "block"
    RETURN = "return"
    JUMP = "jump"
    GOTO = "goto"
    CONTINUE = "continue"


class _Fate(Enum):
    LET_IN = "let in"
    KEPT_OUT = "kept out"
    THROUGH = "through"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule, as far as it matters to a peer's packet."""

    verdict: Verdict
    target: str = ""
    """The chain of a JUMP or GOTO."""
    sources: Networks | None = None
    """Where the packet has to come from; `None`: from anywhere."""
    not_from: bool = False
    """It has to come from elsewhere than `sources`."""
    rest: Match = Match.YES
    """What its other criteria say of the packet."""
    owner: str | None = None
    """Which cluster's this rule is; `None`: not one of ours."""
    handle: int | None = None
    text: str = ""

    def match(self, peer: Address) -> Match:
        """Return whether the rule takes this peer's packet."""
        if self.sources is None:
            return self.rest
        if all(network.version != peer.version for network in self.sources):
            return Match.NO
        return self.rest if any(peer in network for network in self.sources) != self.not_from else Match.NO


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The chain that incoming packets meet, with the chains that it leads to."""

    base: str
    accepts: bool
    """What becomes of a packet that no rule decided on."""
    chains: Mapping[str, tuple[Rule, ...]]

    def blocked_at(self, peer: Address) -> int | None:
        """The index in the base chain of what may keep this peer out; its length: the policy. `None`: nothing."""
        fate, index = _walk(self.chains, self.base, peer, {})
        if fate is _Fate.LET_IN or (fate is _Fate.THROUGH and self.accepts):
            return None
        return index

    def first_block(self, peers: Iterable[Address]) -> int | None:
        """The smallest `blocked_at` of these peers."""
        blocked = [index for peer in peers if (index := self.blocked_at(peer)) is not None]
        return min(blocked, default=None)

    def without_ours(self) -> "Filter":
        """The same, at the same indices, had gpuctl never been here, for this cluster or another.

        Another cluster's rules may go at any time, and must not be leant on.
        """
        return self.with_rules(
            lambda _, rule: replace(rule, verdict=Verdict.CONTINUE) if rule.owner else rule
        )

    def with_rules(self, change: Callable[[str, Rule], Rule]) -> "Filter":
        """The same with each rule as `change` returns it, given its chain's name."""
        chains = {name: tuple(change(name, rule) for rule in rules) for name, rules in self.chains.items()}
        return replace(self, chains=chains)


def _walk(
    chains: Mapping[str, tuple[Rule, ...]], name: str, peer: Address, known: dict[str, tuple[_Fate, int]]
) -> tuple[_Fate, int]:
    """Return the fate of a peer in a chain, and the index of the deciding rule. `known`: of the chains seen so far.

    Kernels have no chains that lead back to themselves; a node that shows one is taken to keep peers out.
    """
    if name not in known:
        known[name] = (_Fate.KEPT_OUT, 0)
        known[name] = _fate(chains, name, peer, known)
    return known[name]


def _fate(
    chains: Mapping[str, tuple[Rule, ...]], name: str, peer: Address, known: dict[str, tuple[_Fate, int]]
) -> tuple[_Fate, int]:
    rules = chains.get(name, ())
    sure = True
    for index, rule in enumerate(rules):
        match = rule.match(peer)
        if match is Match.NO or rule.verdict is Verdict.CONTINUE:
            continue
        if rule.verdict is Verdict.RETURN:
            if match is Match.YES:
                return _Fate.THROUGH, index
            sure = False
            continue
        if rule.verdict is Verdict.ACCEPT:
            fate = _Fate.LET_IN
        elif rule.verdict is Verdict.BLOCK:
            fate = _Fate.KEPT_OUT
        else:
            fate, _ = _walk(chains, rule.target, peer, known)
        if fate is _Fate.KEPT_OUT:
            return fate, index
        if match is Match.YES and (
            (fate is _Fate.LET_IN and sure) or (fate is _Fate.THROUGH and rule.verdict is Verdict.GOTO)
        ):
            return fate, index
    return _Fate.THROUGH, len(rules)


def all_of(matches: Iterable[Match]) -> Match:
    """Criteria that all have to match."""
    return min(matches, key=lambda match: match.value, default=Match.YES)


def negated(match: Match, inverted: bool) -> Match:
    """A criterion's opposite, where it is inverted."""
    return Match(Match.YES.value - match.value) if inverted else match


def ports_match(first: int, last: int) -> Match:
    """Return whether a range of ports covers the ports that peers need."""
    if first <= FIRST_PORT and last >= LAST_PORT:
        return Match.YES
    return Match.NO if last < FIRST_PORT or first > LAST_PORT else Match.MAYBE


def networks_of(addresses: Iterable[Address]) -> Networks:
    """The fewest networks that hold these addresses and no other ones."""
    return collapsed(ipaddress.ip_network(str(address)) for address in addresses)


def collapsed(networks: Iterable[Network]) -> Networks:
    """The fewest networks that hold the same addresses: IPv4's first, in order."""
    every = list(networks)
    four = [network for network in every if isinstance(network, ipaddress.IPv4Network)]
    six = [network for network in every if isinstance(network, ipaddress.IPv6Network)]
    return (*ipaddress.collapse_addresses(four), *ipaddress.collapse_addresses(six))


def short(network: Network) -> str:
    """A network's text, an address where it is only one."""
    return str(network.network_address) if network.num_addresses == 1 else str(network)
