"""nftables' own rules, as `nft -j list ruleset` prints them, and nftables.conf for the next boot.

A packet has to be accepted by every chain that hooks into input: each that may keep a peer out gets a rule of ours,
at its head. The file takes the same command after all else: whatever it loads, the rule comes first again.
"""

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from remote.firewall.iptables import OURS, File
from remote.firewall.rules import (
    Address,
    Filter,
    Match,
    Network,
    Networks,
    Rule,
    Verdict,
    all_of,
    collapsed,
    negated,
    networks_of,
    ports_match,
    short,
)
from remote.firewall.steps import Run, Write

VERSIONS = {"ip": (4,), "ip6": (6,), "inet": (4, 6)}
"""The families of tables whose chains see what comes in for this host, and the IP versions there."""
_SADDR = {4: "ip", 6: "ip6"}
_PASSING = {"counter", "log", "limit", "mangle", "meta", "set", "ct helper", "notrack", "comment", "continue"}
_BLOCKING = {"drop", "reject", "queue", "synproxy"}
_EQUAL = ("==", "in")
_UNEQUAL = "!="


@dataclass(frozen=True, kw_only=True)
class Base:
    """A chain that hooks into input or output."""

    family: str
    table: str
    filter: Filter

    @property
    def words(self) -> str:
        """Return its name in nft's commands."""
        return f"{self.family} {self.table} {self.filter.base}"


def read_bases(ruleset: str, hook: Literal["input", "output"] = "input") -> tuple[Base, ...]:
    """Return the chains that hook into input or output, from nft's JSON; empty where the kernel has no nftables.

    In the rules of output the peer is the `source`, too.

    Raises what comes of reading something else: ValueError, LookupError, TypeError or AttributeError.
    """
    chains: dict[tuple[str, str], dict[str, list[Rule]]] = {}
    bases: list[tuple[str, str, str, bool]] = []
    for item in json.loads(ruleset)["nftables"] if ruleset else ():
        if "chain" in item:
            chain = item["chain"]
            family, table, name = chain["family"], chain["table"], chain["name"]
            chains.setdefault((family, table), {}).setdefault(name, [])
            if chain.get("hook") == hook and family in VERSIONS:
                bases.append((family, table, name, chain.get("policy", "accept") == "accept"))
        elif "rule" in item:
            rule = item["rule"]
            chains.setdefault((rule["family"], rule["table"]), {}).setdefault(rule["chain"], []).extend(
                _rules(rule, "saddr" if hook == "input" else "daddr")
            )
    return tuple(
        Base(
            family=family,
            table=table,
            filter=Filter(
                base=name,
                accepts=accepts,
                chains={chain: tuple(rules) for chain, rules in chains[family, table].items()},
            ),
        )
        for family, table, name, accepts in bases
    )


def _rules(rule: Mapping[str, Any], peer_field: str) -> list[Rule]:
    """A rule; one for each entry where it decides by a map of verdicts. `peer_field`: the peer's address."""
    sources: Networks | None = None
    not_from = False
    matches: list[Match] = []
    comment = rule.get("comment") or ""
    fixed = {
        "owner": comment if OURS.fullmatch(comment) else None,
        "handle": rule["handle"],
    }
    for statement in rule["expr"]:
        kind, value = next(iter(statement.items()))
        if kind == "match":
            unequal = value["op"] == _UNEQUAL
            networks = _networks(value["right"]) if _is_address(value["left"], peer_field) else None
            if not unequal and value["op"] not in _EQUAL:
                matches.append(Match.MAYBE)
            elif networks is not None and sources is None:
                sources, not_from = networks, unequal
            else:
                matches.append(negated(_criterion(value["left"], value["right"]), unequal))
        elif kind == "vmap":
            return [
                Rule(
                    **_verdict(verdict),
                    sources=sources,
                    not_from=not_from,
                    rest=all_of([*matches, _criterion(value["key"], key)]),
                    **fixed,
                )
                for key, verdict in _entries(value["data"])
            ]
        elif kind in ("accept", "return", "jump", "goto") or kind in _BLOCKING:
            return [
                Rule(**_verdict(statement), sources=sources, not_from=not_from, rest=all_of(matches), **fixed)
            ]
        elif kind == "xt" and (value is None or value.get("type") == "target"):
            # iptables' own targets, which nft does not tell apart by what they do.
            matches.append(Match.MAYBE)
            return [Rule(verdict=Verdict.BLOCK, rest=all_of(matches), **fixed)]
        elif kind not in _PASSING or kind == "limit":
            matches.append(Match.MAYBE)
    return [Rule(verdict=Verdict.CONTINUE, **fixed)]


def _verdict(statement: Mapping[str, Any]) -> dict[str, Any]:
    kind, value = next(iter(statement.items()))
    if kind in _BLOCKING:
        return {"verdict": Verdict.BLOCK}
    if kind in ("jump", "goto"):
        return {"verdict": Verdict(kind), "target": value["target"]}
    return {"verdict": Verdict(kind) if kind in ("accept", "return") else Verdict.CONTINUE}


def _entries(data: object) -> list[tuple[Any, Mapping[str, Any]]]:
    """A verdict map's keys and verdicts; a named map is not followed."""
    if isinstance(data, dict) and isinstance(data.get("set"), list):
        return [(entry[0], entry[1]) for entry in data["set"]]
    return [({"unknown": data}, {"drop": None})]


def _is_address(left: object, field: str) -> bool:
    payload = left.get("payload") if isinstance(left, dict) else None
    return (
        isinstance(payload, Mapping) and payload.get("field") == field and payload.get("protocol") != "ether"
    )


def _elements(right: object) -> list[Any]:
    """The elements of a set, or the one that is no set."""
    if isinstance(right, dict) and isinstance(right.get("set"), list):
        return list(right["set"])
    return list(right) if isinstance(right, list) else [right]


def _networks(right: object) -> Networks | None:
    """Addresses, networks, ranges, or a set of them; `None`: something else, such as the name of a set."""
    networks: list[Network] = []
    try:
        for element in _elements(right):
            if isinstance(element, str):
                networks.append(ipaddress.ip_network(element))
            elif "prefix" in element:
                networks.append(
                    ipaddress.ip_network(
                        f"{element['prefix']['addr']}/{element['prefix']['len']}", strict=False
                    )
                )
            else:
                first, last = (ipaddress.ip_address(end) for end in element["range"])
                networks += ipaddress.summarize_address_range(first, last)
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(networks)


def _criterion(left: object, right: object) -> Match:
    """Return whether the first packet of a TCP connection from a peer to one of our ports fits a criterion."""
    kind, value = next(iter(left.items())) if isinstance(left, dict) else ("", {})
    listed = _elements(right)
    if kind == "ct" and value.get("key") == "state":
        return Match.YES if "new" in listed else Match.NO
    if kind == "meta" and value["key"] in ("iif", "iifname"):
        return Match.NO if listed == ["lo"] else Match.MAYBE
    if kind == "meta" and value["key"] == "l4proto":
        return Match.YES if "tcp" in listed or 6 in listed else Match.NO
    if kind == "payload" and value.get("protocol") in ("tcp", "th") and value.get("field") == "dport":
        ports = []
        for each in listed:
            first, last = each["range"] if isinstance(each, Mapping) and "range" in each else (each, each)
            if not (isinstance(first, int) and isinstance(last, int)):
                return Match.MAYBE
            ports.append(ports_match(first, last))
        return max(ports, key=lambda match: match.value, default=Match.MAYBE)
    if kind == "payload" and value.get("protocol") in ("udp", "icmp", "icmpv6", "sctp", "udplite", "dccp"):
        return Match.NO
    if kind == "payload" and value.get("field") in ("protocol", "nexthdr"):
        return Match.YES if "tcp" in listed else Match.NO
    if kind == "fib" and value.get("result") == "type" and "daddr" in value.get("flags", ()):
        return Match.YES if "local" in listed else Match.NO
    return Match.MAYBE


def live_step(bases: Sequence[Base], owner: str, peers: Sequence[Address]) -> Run | None:
    """Return the step that makes every chain let in these peers, and only these of ours; `None`: nothing to do."""
    lines: list[str] = []
    for base in bases:
        block, needed = _needed(base, peers)
        ours = [
            (index, rule)
            for index, rule in enumerate(base.filter.chains[base.filter.base])
            if rule.owner == owner
        ]
        present = [collapsed(rule.sources or ()) for _, rule in ours]
        ahead = all(index < block for index, _ in ours)
        if present == [networks for networks in needed if networks] and ahead:
            continue
        lines += [f"delete rule {base.words} handle {rule.handle}" for _, rule in ours]
        lines += _inserts(base, owner, needed)
    return Run(argv=("nft", "-f", "-"), stdin="\n".join([*lines, ""])) if lines else None


def _needed(base: Base, peers: Sequence[Address]) -> tuple[int, tuple[Networks, ...]]:
    """Return the index at which the chain blocks a peer, and the networks to let in, a rule each.

    (0, ()): the chain blocks no peer.
    """
    matching = [peer for peer in peers if peer.version in VERSIONS[base.family]]
    block = base.filter.without_ours().first_block(matching)
    if block is None:
        return 0, ()
    four = [peer for peer in matching if peer.version == 4]
    six = [peer for peer in matching if peer.version == 6]
    return block, (networks_of(four), networks_of(six))


def _inserts(base: Base, owner: str, networks_by_version: Sequence[Networks]) -> list[str]:
    # An insertion goes to the head: the last one is the first.
    return [
        f"insert rule {base.words} {_SADDR[networks[0].version]} saddr {{ {', '.join(map(short, networks))} }} "
        f'tcp dport 1024-65535 accept comment "{owner}"'
        for networks in reversed(networks_by_version)
        if networks
    ]


def file_step(
    path: str, files: Mapping[str, File], bases: Sequence[Base], owner: str, peers: Sequence[Address]
) -> Write | None:
    """Return the same for the next boot, for the chains that the file, or an included file, makes."""
    file = files[path]
    made = set().union(
        *(chains_made(files[each].text) for each in files if each == path or each.endswith(".nft"))
    )
    new_rules = [
        line
        for base in bases
        if (base.family, base.table, base.filter.base) in made
        for line in _inserts(base, owner, _needed(base, peers)[1])
    ]
    text = with_lines(file.text, owner, new_rules)
    return Write(path=path, sha256=file.sha256, text=text) if text != file.text else None


def with_lines(text: str, owner: str, new_lines: Sequence[str]) -> str:
    """Return the text with these lines of ours at its end, in place of its earlier ones."""
    lines = text.splitlines(keepends=True)
    end = f'comment "{owner}"'
    other_lines = [
        line for line in lines if not (line.startswith("insert rule ") and line.rstrip().endswith(end))
    ]
    if lines and len(other_lines) < len(lines) and not lines[-1].endswith("\n"):
        # The file had no end of line when ours came.
        other_lines[-1:] = [line.removesuffix("\n") for line in other_lines[-1:]]
    whole = "".join(other_lines)
    if not new_lines:
        return whole
    added = "\n".join(new_lines)
    return f"{whole}{added}\n" if whole.endswith("\n") or not whole else f"{whole}\n{added}"


def chains_made(text: str) -> set[tuple[str, str, str]]:
    """(family, table, chain) that a configuration makes, as blocks or as commands."""
    bare = re.sub(r"#.*", "", text)
    chains = {
        (family or "ip", table, chain)
        for family, table, chain in re.findall(
            r"(?:add|create)\s+chain\s+(?:(ip6?|inet)\s+)?([\w./-]+)\s+([\w./-]+)\s*\{", bare
        )
    }
    depth, table, since = 0, ("", ""), 0
    for brace in re.finditer(r"[{}]", bare):
        before = bare[since : brace.start()]
        since = brace.end()
        if brace.group() == "}":
            depth -= 1
            continue
        if depth == 0 and (opened := re.search(r"\btable\s+(?:(\w+)\s+)?([\w./-]+)\s*$", before)):
            table = (opened[1] or "ip", opened[2])
        elif depth == 1 and (opened := re.search(r"\bchain\s+([\w./-]+)\s*$", before)):
            chains.add((*table, opened[1]))
        depth += 1
    return chains
