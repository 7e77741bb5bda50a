"""Test the rules for each kind of firewall, from the answers of such hosts."""

import json
from pathlib import Path
from typing import Any

import pytest

from remote import firewall
from remote.firewall import Run, Write, parse

RECORDED = Path(__file__).parent / "recorded" / "firewall"
KINDS = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())
PEERS = ["10.77.0.2", "10.77.0.3", "fd77::2", "fd77::3"]
A, B = firewall.owner_tag("a"), firewall.owner_tag("b")
OCI = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT
{}-A INPUT -j REJECT --reject-with icmp-host-prohibited
COMMIT
"""


def recorded(kind: str, name: str) -> dict[str, Any]:
    return json.loads((RECORDED / kind / name).read_text())


def answer(**parts: object) -> dict[str, Any]:
    """A host's answer with nothing in it but these parts."""
    empty: dict[str, Any] = {
        "programs": ["iptables-nft", "nft"], "sudo": True, "root": True, "saves": {}, "nft": None, "files": {},
        "unreadable": {},
    }  # fmt: skip
    return {**empty, **parts}


def iptables(save: str) -> dict[str, Any]:
    return answer(saves={"iptables-nft": save})


def stdin(document: dict[str, Any], *peers: str, owner: str = "a") -> list[str]:
    """Return the lines of the single step for a document."""
    plan = firewall.open_steps(parse(document), owner=owner, peers=peers)
    (step,) = plan.steps
    assert isinstance(step, Run)
    return step.stdin.splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_open_and_close_steps_match_the_recorded_host(kind: str) -> None:
    shut, opened = parse(recorded(kind, "shut.json")), parse(recorded(kind, "open.json"))
    plan = firewall.open_steps(shut, owner="a", peers=PEERS)
    assert plan.shell() + "\n" == (RECORDED / kind / "open.sh").read_text()
    assert (
        firewall.close_steps(opened, owner="a").shell() + "\n" == (RECORDED / kind / "close.sh").read_text()
    )

    again = firewall.open_steps(opened, owner="a", peers=PEERS)
    assert (again.steps, again.reason) == ((), "the firewall lets 4 peers in already")
    nothing = firewall.close_steps(shut, owner="a")
    assert (nothing.steps, nothing.reason) == ((), "the firewall has no rules of the cluster's")


@pytest.mark.parametrize("kind", KINDS)
def test_open_steps_of_another_cluster_use_its_own_rules(kind: str) -> None:
    shut, opened = parse(recorded(kind, "shut.json")), parse(recorded(kind, "open.json"))
    local = firewall.open_steps(opened, owner="b", peers=PEERS)
    assert len(local.steps) == len(firewall.open_steps(shut, owner="b", peers=PEERS).steps)
    assert firewall.close_steps(opened, owner="b").steps == ()


def test_open_steps_remove_former_peers() -> None:
    def first(kind: str) -> list[Run | Write]:
        opened = parse(recorded(kind, "open.json"))
        return list(firewall.open_steps(opened, owner="a", peers=PEERS[1:2]).steps)

    restore, missing, *_ = first("iptables-nft-and-docker")
    assert isinstance(restore, Run) and restore.stdin.splitlines() == [
        "*filter",
        f":{A} - [0:0]",
        f"-D INPUT -j {A}",
        f"-A {A} -s 10.77.0.3/32 -p tcp -m tcp --dport 1024:65535 -j ACCEPT",
        f"-I INPUT 6 -j {A}",
        "COMMIT",
    ]
    assert isinstance(missing, Run) and missing.stdin.splitlines() == [
        "*filter", f"-D INPUT -j {A}", f"-F {A}", f"-X {A}", "COMMIT"
    ]  # fmt: skip
    assert [step.shell() for step in first("ufw")] == [
        f"sudo ufw prepend allow proto tcp from 10.77.0.3 to any port 1024:65535 comment {A}",
        "sudo ufw delete allow proto tcp from 10.77.0.2/31 to any port 1024:65535",
        "sudo ufw delete allow proto tcp from fd77::2/127 to any port 1024:65535",
    ]
    words = [step.argv[1:] for step in first("firewalld") if isinstance(step, Run)]
    assert [(each[0], each[-1].split("=")[0]) for each in words] == [
        ("--zone=public", "--add-rich-rule"),
        ("--permanent", "--add-rich-rule"),
        ("--zone=public", "--remove-rich-rule"),
        ("--permanent", "--remove-rich-rule"),
    ]
    nft, _ = first("nftables")
    assert isinstance(nft, Run) and [line.split(" saddr")[0] for line in nft.stdin.splitlines()] == [
        "delete rule inet filter input handle 9",
        "delete rule inet filter input handle 8",
        "insert rule inet filter input ip",
        "delete rule ip extra input handle 7",
        "insert rule ip extra input ip",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_open_steps_without_peers_equal_close_steps(kind: str) -> None:
    opened = parse(recorded(kind, "open.json"))
    assert (
        firewall.open_steps(opened, owner="a", peers=()).steps
        == firewall.close_steps(opened, owner="a").steps
    )


def test_ufw_shares_one_rule_between_clusters() -> None:
    document = recorded("ufw", "open.json")
    rule = ("proto", "tcp", "from", "10.77.0.2/31", "to", "any", "port", "1024:65535")
    shared = firewall.open_steps(parse(document), owner="b", peers=PEERS[:2]).steps
    assert shared == (Run(argv=("ufw", "allow", *rule, "comment", f"{A} {B}")),)

    rules = document["files"]["/etc/ufw/user.rules"]
    rules["text"] = rules["text"].replace(A.encode().hex(), f"{A} {B}".encode().hex())
    left = firewall.close_steps(parse(document), owner="b").steps
    assert left == (Run(argv=("ufw", "allow", *rule, "comment", A)),)


UFW_RULE = "-A ufw-user-input -s 10.77.0.2/31 -p tcp -m multiport --dports 1024:65535 -j ACCEPT\n"
UFW_KERNEL = {
    "lost from the kernel": "",
    "behind one that refuses": f"-A ufw-user-input -s 10.77.0.0/24 -j DROP\n{UFW_RULE}",
}


@pytest.mark.parametrize("instead", UFW_KERNEL.values(), ids=UFW_KERNEL.keys())
def test_ufw_rule_without_effect_in_the_kernel_is_recreated(instead: str) -> None:
    document = recorded("ufw", "open.json")
    document["saves"]["iptables-nft"] = document["saves"]["iptables-nft"].replace(UFW_RULE, instead)
    plan = firewall.open_steps(parse(document), owner="a", peers=PEERS)
    rule = "allow proto tcp from 10.77.0.2/31 to any port 1024:65535"
    again = [f"sudo ufw delete {rule}", f"sudo ufw prepend {rule} comment {A}"]
    assert [step.shell() for step in plan.steps] == again
    both = firewall.open_steps(parse(document), owner="b", peers=PEERS[:2]).steps[1]
    assert both.shell() == f"sudo ufw prepend {rule} comment '{A} {B}'"


def test_iptables_chain_is_inserted_before_the_reject_rule() -> None:
    chain = ["*filter", f":{A} - [0:0]", f"-A {A} -s 10.0.0.2/32 -p tcp -m tcp --dport 1024:65535 -j ACCEPT"]
    assert stdin(iptables(OCI.format("")), "10.0.0.2") == [*chain, f"-I INPUT 3 -j {A}", "COMMIT"]
    policy = "*filter\n:INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT\nCOMMIT\n"
    assert stdin(iptables(policy), "10.0.0.2") == [*chain, f"-A INPUT -j {A}", "COMMIT"]


def test_iptables_chain_behind_the_reject_is_moved() -> None:
    rule = f"-A {A} -s 10.0.0.2/32 -p tcp -m tcp --dport 1024:65535 -j ACCEPT"
    behind = OCI.format("").replace("COMMIT\n", f"-A INPUT -j {A}\n{rule}\nCOMMIT\n")
    assert stdin(iptables(behind), "10.0.0.2") == [
        "*filter", f":{A} - [0:0]", f"-D INPUT -j {A}", rule, f"-I INPUT 3 -j {A}", "COMMIT"
    ]  # fmt: skip


KEEPS_OUT = {
    "a subnet's rule": ("-A INPUT -s 10.0.0.0/16 -j ACCEPT\n", False),
    "another subnet's": ("-A INPUT -s 10.1.0.0/16 -j ACCEPT\n", True),
    "all but it": ("-A INPUT ! -s 10.1.0.0/16 -j ACCEPT\n", False),
    "all ports that are needed": ("-A INPUT -p tcp -m tcp --dport 1000:65535 -j ACCEPT\n", False),
    "too few ports": ("-A INPUT -p tcp -m multiport --dports 29500,32768:65535 -j ACCEPT\n", True),
    "another protocol": ("-A INPUT -s 10.0.0.0/16 -p udp -j ACCEPT\n", True),
    "one interface": ("-A INPUT -i ens3 -j ACCEPT\n", True),
    "connections that are there": ("-A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT\n", True),
    "new ones too": ("-A INPUT -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT\n", False),
    "a limit": ("-A INPUT -m limit --limit 3/min -j ACCEPT\n", True),
    "a comment with spaces": (
        '-A INPUT -s 10.0.0.2/32 -m comment --comment "our -j peers" -j ACCEPT\n',
        False,
    ),
    "another cluster's": (f"-A INPUT -j {B}\n-A {B} -s 10.0.0.0/16 -j ACCEPT\n", True),
    "a chain": ("-A INPUT -j peers\n-A peers -s 10.0.0.2/32 -j ACCEPT\n", False),
    "a chain that goes back": ("-A INPUT -j peers\n-A peers -j RETURN\n-A peers -j ACCEPT\n", True),
    "a chain that may go back": ("-A INPUT -j peers\n-A peers -i eth0 -j RETURN\n-A peers -j ACCEPT\n", True),
    "a goto whose chain ends": ("-A INPUT -g peers\n-A peers -i lo -j DROP\n", False),
    "an address written as a name": ("-A INPUT -s head,10.0.0.2 -j ACCEPT\n", True),
}


@pytest.mark.parametrize(("rules", "keeps_out"), KEEPS_OUT.values(), ids=KEEPS_OUT.keys())
def test_iptables_rules_before_the_reject_decide_about_peers(rules: str, keeps_out: bool) -> None:
    facts = parse(iptables(OCI.format(rules)))
    assert bool(firewall.open_steps(facts, owner="a", peers=["10.0.0.2"]).steps) is keeps_out


DROPS = {
    "other ports": ("-p tcp -m tcp --dport 23 -j DROP", False),
    "somebody else": ("-s 203.0.113.0/24 -j DROP", False),
    "what belongs to no connection": ("-m conntrack --ctstate INVALID -j DROP", False),
    "the peers' network": ("-s 10.0.0.0/8 -j DROP", True),
    "one of the ports": ("-p tcp -m tcp --dport 3306 -j REJECT", True),
    "who knows": ("-m set --match-set banned src -j DROP", True),
    "to a program": ("-j NFQUEUE --queue-num 0", True),
}


@pytest.mark.parametrize(("rule", "keeps_out"), DROPS.values(), ids=DROPS.keys())
def test_iptables_drop_rule_decides_about_peers(rule: str, keeps_out: bool) -> None:
    save = f"*filter\n:INPUT ACCEPT [0:0]\n-A INPUT {rule}\nCOMMIT\n"
    assert bool(firewall.open_steps(parse(iptables(save)), owner="a", peers=["10.0.0.2"]).steps) is keeps_out


def match(left: dict[str, Any], right: object, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


SADDR = {"payload": {"protocol": "ip", "field": "saddr"}}
DPORT = {"payload": {"protocol": "tcp", "field": "dport"}}
FLAGS = {"payload": {"protocol": "tcp", "field": "flags"}}
STATE = {"ct": {"key": "state"}}
NFT = {
    "everything": ([{"accept": None}], False),
    "nothing": ([{"drop": None}], True),
    "a network": ([match(SADDR, {"prefix": {"addr": "10.0.0.0", "len": 8}}), {"accept": None}], False),
    "a range": ([match(SADDR, {"range": ["10.0.0.1", "10.0.0.9"]}), {"accept": None}], False),
    "a set": ([match(SADDR, {"set": ["10.0.0.9", "10.0.0.2"]}), {"accept": None}], False),
    "a named set": ([match(SADDR, "@peers"), {"accept": None}], True),
    "elsewhere": ([match(SADDR, "10.0.0.2", "!="), {"accept": None}], True),
    "ports": ([match(DPORT, {"set": [22, {"range": [1024, 65535]}]}), {"accept": None}], False),
    "old connections": ([match(STATE, ["established", "related"], "in"), {"accept": None}], True),
    "loopback": ([match({"meta": {"key": "iifname"}}, "lo"), {"accept": None}], True),
    "a map": ([{"vmap": {"key": STATE, "data": {"set": [["new", {"accept": None}]]}}}], False),
    "a named map": ([{"vmap": {"key": SADDR, "data": "@verdicts"}}], True),
    "a limit": ([{"limit": {"rate": 9, "per": "minute"}}, {"accept": None}], True),
    "ports above": ([match(DPORT, 1023, ">"), {"accept": None}], True),
    "a counter": ([{"counter": {"packets": 0, "bytes": 0}}, {"accept": None}], False),
}  # fmt: skip


def nft(expression: list[dict[str, Any]], policy: str = "drop", family: str = "inet") -> dict[str, Any]:
    where = {"family": family, "table": "t"}
    chain = {
        **where,
        "name": "c",
        "handle": 1,
        "type": "filter",
        "hook": "input",
        "prio": 0,
        "policy": policy,
    }
    rule = {**where, "chain": "c", "handle": 4, "expr": expression}
    return answer(nft=json.dumps({"nftables": [{"metainfo": {}}, {"chain": chain}, {"rule": rule}]}))


@pytest.mark.parametrize(("expression", "keeps_out"), NFT.values(), ids=NFT.keys())
def test_nftables_accept_rule_decides_about_peers(expression: list[dict[str, Any]], keeps_out: bool) -> None:
    plan = firewall.open_steps(parse(nft(expression)), owner="a", peers=["10.0.0.2"])
    rule = f'insert rule inet t c ip saddr {{ 10.0.0.2 }} tcp dport 1024-65535 accept comment "{A}"\n'
    assert plan.steps == ((Run(argv=("nft", "-f", "-"), stdin=rule),) if keeps_out else ())


NFT_DROPS = {
    "other ports": ([match(DPORT, 23), {"drop": None}], False),
    "ports above": ([match(DPORT, 1023, ">"), {"drop": None}], True),
    "addresses above": ([match(SADDR, "9.0.0.0", ">="), {"drop": None}], True),
    "flags that are not there": ([match(FLAGS, "ack", "!"), {"drop": None}], True),
}  # fmt: skip


@pytest.mark.parametrize(("expression", "keeps_out"), NFT_DROPS.values(), ids=NFT_DROPS.keys())
def test_nftables_drop_rule_decides_about_peers(expression: list[dict[str, Any]], keeps_out: bool) -> None:
    facts = parse(nft(expression, policy="accept"))
    assert bool(firewall.open_steps(facts, owner="a", peers=["10.0.0.2"]).steps) is keeps_out


def test_nftables_ignores_chains_of_other_families() -> None:
    facts = parse(nft([{"drop": None}], family="bridge"))
    assert (
        firewall.open_steps(facts, owner="a", peers=["10.0.0.2"]).reason
        == "nothing filters incoming connections"
    )


def test_nftables_finds_a_saved_chain_in_an_included_file() -> None:
    blocks = (
        "table inet t { # the table c {\n chain c { type filter hook input priority 0; policy drop; }\n}\n"
    )
    files = {
        "/etc/sysconfig/nftables.conf": {"text": 'include "/etc/nftables/main.nft"\n', "sha256": "0" * 64},
        "/etc/nftables/main.nft": {"text": blocks, "sha256": "1" * 64},
    }
    document = {**nft([{"drop": None}]), "files": files}
    rule = f'insert rule inet t c ip saddr {{ 10.0.0.2 }} tcp dport 1024-65535 accept comment "{A}"\n'
    written = 'include "/etc/nftables/main.nft"\n' + rule
    plan = firewall.open_steps(parse(document), owner="a", peers=["10.0.0.2"])
    assert plan.steps[1:] == (Write(path="/etc/sysconfig/nftables.conf", sha256="0" * 64, text=written),)
    files["/etc/nftables/main.nft"]["text"] = "table inet other { chain c { } }\n"
    assert len(firewall.open_steps(parse(document), owner="a", peers=["10.0.0.2"]).steps) == 1


def test_open_steps_merge_many_peers_into_few_networks() -> None:
    peers = [f"10.0.{number // 256}.{number % 256}" for number in range(1, 257)]
    rules = [
        line.split()[3] for line in stdin(iptables(OCI.format("")), *peers) if line.startswith(f"-A {A}")
    ]
    assert rules == [
        "10.0.0.1/32", "10.0.0.2/31", "10.0.0.4/30", "10.0.0.8/29", "10.0.0.16/28", "10.0.0.32/27", "10.0.0.64/26",
        "10.0.0.128/25", "10.0.1.0/32",
    ]  # fmt: skip


def test_open_steps_without_a_firewall_are_empty() -> None:
    plan = firewall.open_steps(parse(answer(programs=[])), owner="a", peers=["10.0.0.2"])
    assert (plan.steps, plan.reason, plan.known) == ((), "no firewall program is installed", True)


def test_unreadable_firewall_is_unknown_not_open() -> None:
    why = "root is needed, and `sudo -n` says: sudo: a password is required"
    document = answer(programs=["iptables-nft", "ufw"], root=False, unreadable={"root": why})
    plan = firewall.open_steps(parse(document), owner="a", peers=["10.0.0.2"])
    assert not plan.known
    assert plan.reason == f"what the firewall does can't be read ({why})"
    assert plan.shell().splitlines() == [
        f"sudo ufw prepend allow proto tcp from 10.0.0.2 to any port 1024:65535 comment {A}",
        "sudo iptables-nft --wait --insert INPUT -s 10.0.0.2 -p tcp --dport 1024:65535 -m comment --comment "
        f"{A} -j ACCEPT",
    ]


def test_unparsable_firewall_is_unknown_not_open() -> None:
    torn = {"text": '*filter\n:INPUT DROP [0:0]\n-A INPUT --comment "half', "sha256": "0" * 64}
    for part in (
        {"nft": '{"nftables": [{"rule": {}}]}'},
        {"saves": {"iptables-nft": "*filter\n:INPUT\n"}},
        {"files": {"/etc/iptables/rules.v4": torn}},
    ):
        plan = firewall.open_steps(parse(answer(**part)), owner="a", peers=["10.0.0.2"])
        assert not plan.known and "can't be understood" in plan.reason


def test_unreadable_ip6tables_matters_only_for_ipv6_peers() -> None:
    facts = parse(answer(saves={"iptables-nft": ""}, nft="", unreadable={"ip6tables-nft": "exit status 1"}))
    assert firewall.open_steps(facts, owner="a", peers=["10.0.0.2"]).known
    assert not firewall.open_steps(facts, owner="a", peers=["fd00::2"]).known


def test_open_steps_refuse_a_peer_that_is_no_address() -> None:
    with pytest.raises(ValueError, match=r"head\.example"):
        firewall.open_steps(parse(answer()), owner="a", peers=["head.example"])
