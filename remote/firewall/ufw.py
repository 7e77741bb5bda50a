"""ufw: rules in its own words, which it persists itself.

It knows one rule of a kind, whoever asked for it: clusters that share a peer share its rule, whose comment names
them, and the last one takes it away.
"""

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from remote.firewall.iptables import OURS
from remote.firewall.rules import Address, Filter, Network, networks_of, short
from remote.firewall.steps import Run

FILES = {4: "/etc/ufw/user.rules", 6: "/etc/ufw/user6.rules"}
_PORTS = "1024:65535"
_USER_CHAINS = ("ufw-user-input", "ufw6-user-input")

Shared = Mapping[Network, tuple[str, ...]]
"""Whom our rules let in → the clusters that want it."""
NO_OWNERS: Shared = {}


def read_shared(texts: Iterable[str]) -> Shared:
    """Our rules in ufw's own record of its commands."""
    rules: dict[Network, tuple[str, ...]] = {}
    for text in texts:
        for line in text.splitlines():
            # ### tuple ### allow tcp 1024:65535 0.0.0.0/0 any 10.0.0.2 in comment=<hex>
            words = line.split()
            if words[:3] != ["###", "tuple", "###"] or words[3:6] != ["allow", "tcp", _PORTS]:
                continue
            comment = next((word[8:] for word in words if word.startswith("comment=")), "")
            owners = bytes.fromhex(comment).decode(errors="replace").split()
            if owners and all(OURS.fullmatch(owner) for owner in owners):
                rules[ipaddress.ip_network(words[8])] = tuple(owners)
    return rules


def manages(filter_: Filter, index: int) -> bool:
    """Return whether ufw blocks a peer at this index of INPUT: a jump to its chains, or the policy after them."""
    rules = filter_.chains[filter_.base]
    jumps = [at for at, rule in enumerate(rules) if rule.target.startswith(("ufw-", "ufw6-"))]
    return bool(jumps) and (index in jumps or index == len(rules))


def marked(filter_: Filter, shared: Shared) -> Filter:
    """The same with our rules known as ours: ufw keeps their comments to itself."""
    texts = {f"-s {network} -p tcp -m multiport --dports {_PORTS} -j ACCEPT" for network in shared}
    return filter_.with_rules(
        lambda chain, rule: (
            replace(rule, owner="ufw") if chain in _USER_CHAINS and rule.text in texts else rule
        )
    )


def live_steps(
    shared: Shared, owner: str, peers: Sequence[Address], kept_out: Collection[Address]
) -> list[Run]:
    """Return the steps that make ufw let in these peers for this cluster: first new peers, then leaving ones.

    `kept_out`: the peers that the kernel's rules do not let in, whatever ufw's record says.
    """
    needed = networks_of(peers)
    steps = []
    for network in needed:
        owners = shared.get(network, ())
        in_vain = bool(owners) and any(peer in network for peer in kept_out)
        if owner in owners and not in_vain:
            continue
        if in_vain:
            # It is lost from the kernel, or behind one that refuses: ufw does not move a rule that it knows.
            steps.append(_ufw(["delete", "allow"], network, ()))
        # Ahead of all others, as an earlier rule may refuse them. A rule that is there keeps its place.
        words = ["allow"] if owners and not in_vain else ["prepend", "allow"]
        steps.append(_ufw(words, network, tuple(dict.fromkeys((*owners, owner)))))
    for network, owners in shared.items():
        if owner in owners and network not in needed:
            other_owners = tuple(each for each in owners if each != owner)
            steps.append(
                _ufw(["allow"], network, other_owners)
                if other_owners
                else _ufw(["delete", "allow"], network, ())
            )
    return steps


def _ufw(words: Sequence[str], network: Network, owners: Sequence[str]) -> Run:
    rule = ("proto", "tcp", "from", short(network), "to", "any", "port", _PORTS)
    return Run(argv=("ufw", *words, *rule, *(("comment", " ".join(owners)) if owners else ())))
