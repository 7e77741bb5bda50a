"""iptables: its rules as `iptables-save` prints them and the files for the next boot keep them.

A cluster has a chain of its own, which INPUT leads to directly before the first rule that would keep a peer out.
"""

import ipaddress
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from remote.firewall.rules import (
    Address,
    Filter,
    Match,
    Networks,
    Rule,
    Verdict,
    all_of,
    negated,
    networks_of,
    ports_match,
)
from remote.firewall.steps import Run, Write

OURS = re.compile(r"gpuctl-[0-9a-f]{10}")
INPUT = "INPUT"
OUTPUT = "OUTPUT"
_SEEN_FROM_OUTSIDE = {
    "-s": "-d",
    "--source": "--destination",
    "-d": "-s",
    "--destination": "--source",
    "-i": "-o",
    "--in-interface": "--out-interface",
    "-o": "-i",
    "--out-interface": "--in-interface",
}
"""Criteria of OUTPUT → criteria of INPUT with the same meaning for the peer."""
_COUNTERS = re.compile(r"^\[\d+:\d+\] ")
_VERDICTS = {
    "ACCEPT": Verdict.ACCEPT,
    "DROP": Verdict.BLOCK,
    "REJECT": Verdict.BLOCK,
    "TARPIT": Verdict.BLOCK,
    "QUEUE": Verdict.BLOCK,
    "NFQUEUE": Verdict.BLOCK,
    "RETURN": Verdict.RETURN,
}
"""Any other target is a chain, or an extension that lets the packet go on."""
_WITHOUT_VALUE = {
    "--syn",
    "-f",
    "--fragment",
    "--rsource",
    "--rdest",
    "--rcheck",
    "--update",
    "--set",
    "--remove",
}


@dataclass(frozen=True, kw_only=True)
class File:
    """A file as it was read on the node."""

    text: str
    sha256: str


def read_filter(save: str, base: str = INPUT) -> Filter | None:
    """Return the rules that begin at INPUT or OUTPUT, from `iptables-save`'s text; `None` if it has no such chain.

    In the rules of OUTPUT the peer is the `source`, too.
    """
    chains: dict[str, list[Rule]] = {}
    accepts, in_table = True, False
    for saved in save.splitlines():
        line = _COUNTERS.sub("", saved).strip()
        if saved.startswith("*"):
            in_table = line == "*filter"
        elif not in_table:
            continue
        elif line.startswith(":"):
            name, policy = line[1:].split()[:2]
            chains.setdefault(name, [])
            accepts = policy == "ACCEPT" if name == base else accepts
        elif line.startswith("-A "):
            words = shlex.split(line)
            if base == OUTPUT:
                words = [_SEEN_FROM_OUTSIDE.get(word, word) for word in words]
            chains.setdefault(words[1], []).append(_rule(words[2:]))
    if base not in chains:
        return None
    return Filter(base=base, accepts=accepts, chains={name: tuple(rules) for name, rules in chains.items()})


def _rule(words: Sequence[str]) -> Rule:
    """Return a rule from its words after `-A CHAIN`."""
    verdict, target, inverted = Verdict.CONTINUE, "", False
    sources: Networks | None = None
    not_from = False
    matches: list[Match] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "!":
            inverted = True
            continue
        value = rest.pop(0) if rest and not rest[0].startswith("-") and word not in _WITHOUT_VALUE else ""
        if word in ("-j", "--jump", "-g", "--goto"):
            target = value
            verdict = Verdict.GOTO if word in ("-g", "--goto") else _VERDICTS.get(value, Verdict.JUMP)
            # What comes after the target are its own options.
            break
        if word in ("-s", "--source"):
            sources, not_from = _networks(value), inverted
            matches += [] if sources else [Match.MAYBE]
        elif word not in ("-m", "--match", "--comment"):
            matches.append(negated(_criterion(word, value), inverted))
        inverted = False
    return Rule(
        verdict=verdict,
        target=target if verdict in (Verdict.JUMP, Verdict.GOTO) else "",
        sources=sources,
        not_from=not_from,
        rest=all_of(matches),
        owner=target if OURS.fullmatch(target) else None,
        text=shlex.join(words),
    )


def _criterion(word: str, value: str) -> Match:
    """Return whether the first packet of a TCP connection from a peer to one of our ports fits a criterion."""
    if word in ("-p", "--protocol"):
        return Match.YES if value in ("tcp", "6", "all", "0") else Match.NO
    if word in ("--dport", "--dports", "--destination-port", "--destination-ports"):
        ports = []
        for part in value.split(","):
            first, _, last = part.partition(":")
            if not (first.isdigit() and (last or first).isdigit()):
                return Match.MAYBE
            ports.append(ports_match(int(first), int(last or first)))
        return max(ports, key=lambda match: match.value)
    if word in ("--ctstate", "--state"):
        return Match.YES if "NEW" in value.split(",") else Match.NO
    if word in ("-i", "--in-interface"):
        return Match.NO if value == "lo" else Match.MAYBE
    if word == "--rt-type":
        return Match.NO  # nobody's connections come with a routing header
    if word == "--dst-type":
        return Match.YES if value == "LOCAL" else Match.NO
    if word in ("-d", "--destination"):
        networks = _networks(value)
        return Match.NO if networks and all(network.is_multicast for network in networks) else Match.MAYBE
    return Match.MAYBE


def _networks(value: str) -> Networks | None:
    """A list of networks; `None` where a person wrote names."""
    try:
        return tuple(ipaddress.ip_network(each, strict=False) for each in value.split(","))
    except ValueError:
        return None


def _settled(filter_: Filter, chain: str, block: int | None, needed: Networks) -> bool:
    """Return whether our rules are as needed: absent, or the needed networks ahead of the block."""
    jumps = [index for index, rule in enumerate(filter_.chains[filter_.base]) if rule.owner == chain]
    if not needed or block is None:
        return chain not in filter_.chains and not jumps
    rules = filter_.chains.get(chain, ())
    only_accepts = all(
        rule.verdict is Verdict.ACCEPT and rule.rest is Match.YES and rule.sources and not rule.not_from
        for rule in rules
    )
    sources = tuple(source for rule in rules for source in rule.sources or ())
    return only_accepts and sources == needed and len(jumps) == 1 and jumps[0] < block


def live_step(
    program: str, filter_: Filter, chain: str, peers: Sequence[Address], block: int | None
) -> Run | None:
    """Return the step that makes the running rules let in these peers, and only these of ours; `None`: nothing to do.

    `block` is the index of INPUT's first rule that keeps one of them out, `None` without such a rule: then our rules
    are removed. One transaction: no moment in which a peer is kept out, or INPUT is without a rule.
    """
    needed = networks_of(peers)
    if _settled(filter_, chain, block, needed):
        return None
    rules = filter_.chains[INPUT]
    lines = [f"-D {INPUT} {rule.text}" for rule in rules if rule.owner == chain]
    if needed and block is not None:
        owned_before = sum(rule.owner == chain for rule in rules[:block])
        lines += [f":{chain} - [0:0]", *_chain_lines(chain, needed)]
        at_end = block == len(rules)
        lines.append(
            f"-A {INPUT} -j {chain}" if at_end else f"-I {INPUT} {block - owned_before + 1} -j {chain}"
        )
    elif chain in filter_.chains:
        lines += [f"-F {chain}", f"-X {chain}"]
    # A chain has to be declared before it is spoken of.
    lines.sort(key=lambda line: not line.startswith(":"))
    return Run(
        argv=(f"{program}-restore", "--wait", "--noflush"), stdin="\n".join(["*filter", *lines, "COMMIT", ""])
    )


def _chain_lines(chain: str, needed: Networks) -> list[str]:
    return [f"-A {chain} -s {network} -p tcp -m tcp --dport 1024:65535 -j ACCEPT" for network in needed]


def file_step(path: str, file: File, chain: str, peers: Sequence[Address]) -> Write | None:
    """The same for the rules of the next boot. Every line that is not ours stays as it is, byte for byte."""
    filter_ = read_filter(file.text)
    if filter_ is None:
        return None
    needed = networks_of(peers)
    block = filter_.without_ours().first_block(peers)
    if _settled(filter_, chain, block, needed):
        return None
    lines = [line for line in file.text.splitlines(keepends=True) if not _is_ours(line, chain)]
    if needed and block is not None:
        # Ours go ahead of the block, or to the table's end.
        foreign = [rule for rule in filter_.chains[INPUT][:block] if rule.owner != chain]
        lines = _with_ours(lines, chain, needed, len(foreign))
    return Write(path=path, sha256=file.sha256, text="".join(lines))


def _is_ours(line: str, chain: str) -> bool:
    words = _COUNTERS.sub("", line).split()
    return words[:1] == [f":{chain}"] or words[:2] == ["-A", chain] or words == ["-A", INPUT, "-j", chain]


def _with_ours(lines: list[str], chain: str, needed: Networks, before: int) -> list[str]:
    """The lines with ours ahead of INPUT's rule number `before`, or at the table's end."""
    start = next(index for index, line in enumerate(lines) if line.strip() == "*filter")
    end = next(index for index in range(start, len(lines)) if lines[index].strip() == "COMMIT")
    inputs = [
        index for index in range(start, end) if _COUNTERS.sub("", lines[index]).split()[:2] == ["-A", INPUT]
    ]
    place = inputs[before] if before < len(inputs) else end
    declared = max(index for index in range(start, end) if index == start or lines[index].startswith(":"))
    rules = [*_chain_lines(chain, needed), f"-A {INPUT} -j {chain}"]
    return [
        *lines[: declared + 1],
        f":{chain} - [0:0]\n",
        *lines[declared + 1 : place],
        *(f"{rule}\n" for rule in rules),
        *lines[place:],
    ]
