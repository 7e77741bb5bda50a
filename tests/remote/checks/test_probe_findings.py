"""Test the findings from the nodes' attempts to reach each other. Pure: answers in, findings out."""

import itertools

import pytest
from node_facts import facts
from support import a_machine

from remote.checks.probe import Attempt, Health, PortUse, ProbeAnswer, StaleProcess
from remote.checks.probe_findings import probed
from remote.checks.probe_summary import unreachable
from remote.findings import Finding

RENDEZVOUS = 20001
NOBODY = ": no peer can meet it by that name"
ADDRESSES = {f"g-{n}": f"10.0.0.{n + 1}" for n in range(20)}
MASTER = a_machine(name="g-0", host="203.0.113.1", private_ip="10.0.0.1")


def health(**changed: object) -> Health:
    fields: dict[str, object] = {
        "interface": "ens3", "mtu": 9000, "hostname": "h", "hostname_addresses": ("10.0.0.9",), "free_inodes": 10**6,
        "nccl": None, "stale": (),
    }  # fmt: skip
    return Health(**{**fields, **changed})  # type: ignore[arg-type]


def probes(count: int, failed: dict[tuple[str, str], str]) -> dict[str, ProbeAnswer]:
    """Everybody reaches everybody on port 40000 and the rendezvous port of g-0, but for (source, peer) → outcome."""
    names = list(ADDRESSES)[:count]
    attempts: dict[str, list[Attempt]] = {name: [] for name in names}
    for source, peer in itertools.permutations(names, 2):
        for port in (RENDEZVOUS, 40000) if peer == "g-0" else (40000,):
            outcome = failed.get((source, peer), "connected")
            attempts[source].append(Attempt(peer=peer, address=ADDRESSES[peer], port=port, outcome=outcome))
    return {name: ProbeAnswer(node=name, attempts=tuple(attempts[name]), health=health()) for name in names}


def findings_of(answers: dict[str, ProbeAnswer], cloud: str | None = None) -> list[Finding]:
    clouds = dict.fromkeys(ADDRESSES, cloud)
    return unreachable(answers, clouds=clouds, rendezvous_port=RENDEZVOUS)


def test_probed_finds_nothing_when_all_connect() -> None:
    assert findings_of(probes(3, {})) == []


def test_probed_reports_a_rejecting_firewall_with_fix() -> None:
    (result,) = findings_of(probes(3, {("g-0", "g-1"): "rejected", ("g-2", "g-1"): "rejected"}))
    assert result.node == "g-1"
    assert result.problem == (
        "g-0 and g-2 can't reach it (at 10.0.0.2) on port 40000: a firewall rejects it (EHOSTUNREACH at once)"
    )
    assert result.fix == (
        "open the firewall on g-1 to the other nodes: `gpuctl train` does that itself as root or with a sudo that "
        "needs no password; "
        "by hand: sudo iptables -I INPUT -p tcp -s 10.0.0.1,10.0.0.3 -j ACCEPT"
    )
    assert result.fatal


def test_probed_reports_unreachable_nodes_in_one_finding() -> None:
    names = list(ADDRESSES)[:16]
    (result,) = findings_of(probes(16, dict.fromkeys(itertools.permutations(names, 2), "timeout")))
    assert result.node == "g-0…g-15"
    assert result.problem == (
        "they can't reach each other on the rendezvous port 20001 and port 40000: no answer within 4 s, so something "
        "drops the packets"
    )


def test_probed_merges_two_unreachable_nodes() -> None:
    bad = {(f"g-{s}", f"g-{p}"): "rejected" for s in range(4) for p in (1, 2) if s != p}
    (result,) = findings_of(probes(4, bad))
    assert result.node == "g-1 and g-2"
    assert result.problem.startswith("g-0…g-3 can't reach them (at 10.0.0.2 and 10.0.0.3) on port 40000")


def test_probed_names_a_node_whose_firewall_denies_output() -> None:
    (result,) = findings_of(probes(3, {("g-1", "g-0"): "denied", ("g-1", "g-2"): "denied"}))
    assert result.node == "g-1"
    assert result.problem == (
        "it can't reach g-0 (10.0.0.1) and g-2 (10.0.0.3) on the rendezvous port 20001 and port 40000: its own "
        "firewall does not let it out (EPERM)"
    )
    assert "OUTPUT" in result.fix


@pytest.mark.parametrize("outcome", ["rejected", "timeout"])
def test_probed_names_the_one_node_that_reaches_no_peer(outcome: str) -> None:
    (result,) = findings_of(probes(3, {("g-1", "g-0"): outcome, ("g-1", "g-2"): outcome}))
    assert result.node == "g-1"
    assert result.problem.startswith("it can't reach g-0 (10.0.0.1) and g-2 (10.0.0.3) on ")
    assert result.fix == "let TCP out on g-1: sudo iptables -S OUTPUT or sudo nft list ruleset shows the rule"


def test_probed_reports_each_kind_of_failure_separately() -> None:
    result = findings_of(probes(3, {("g-0", "g-1"): "rejected", ("g-0", "g-2"): "timeout"}))
    assert [finding.node for finding in result] == ["g-1", "g-2"]


@pytest.mark.parametrize(
    ("cloud", "rule"),
    [
        ("oci", "security list"),
        ("aws", "security group"),
        ("gcp", "in the firewall between them"),
        (None, "in the firewall between them"),
    ],
)
def test_probed_timeout_names_the_rule_of_the_cloud(cloud: str | None, rule: str) -> None:
    (result,) = findings_of(probes(2, {("g-0", "g-1"): "timeout"}), cloud)
    assert rule in result.fix


@pytest.mark.parametrize(
    ("outcome", "problem", "fix"),
    [
        ("refused", "the connection was refused", "private_ip"),
        ("stranger", "something answers there that is not that node's probe", "private_ip"),
        ("no host", "no machine answers for the address", "private_ip"),
        ("no route", "there is no route to it", "private_ip"),
        ("unresolved", "the name has no address", "private_ip"),
        ("silent", "it connects, and hears nothing within 8 s", "overloaded"),
        ("stalled", "64 kB do not get through", "mtu 1500"),
        ("Protocol not available", "Protocol not available", "private_ip"),
    ],
)
def test_probed_describes_each_outcome_with_a_fix(outcome: str, problem: str, fix: str) -> None:
    (result,) = findings_of(probes(2, {("g-0", "g-1"): outcome}))
    assert problem in result.problem
    assert fix in result.fix


def of_two(**changed: object) -> list[Finding]:
    """Findings about two nodes that reach each other, g-1 being as described."""
    answers = probes(2, {})
    answers["g-1"] = ProbeAnswer(node="g-1", **{"health": health(), **changed})  # type: ignore[arg-type]
    return probed(dict.fromkeys(answers, facts()), answers, master=MASTER)


def test_probed_finds_nothing_on_healthy_nodes() -> None:
    assert of_two() == []


def test_probed_names_a_silent_node() -> None:
    (result,) = of_two(health=None, failure="g-1: nothing was heard for 9 s.")
    assert (result.node, result.problem, result.fatal) == (
        "g-1",
        "the network could not be tried: nothing was heard for 9 s",
        True,
    )


@pytest.mark.parametrize(
    ("port_use", "problem", "fix"),
    [
        (PortUse(port=20001, problem="in use", holder="python3 serve.py (pid 7)"),
         "the port 20001 was taken by python3 serve.py (pid 7)", "run the command again: it picks another port"),
        (PortUse(port=20001, problem="in use", holder=None),
         "the port 20001 was taken", "run the command again: it picks another port"),
        (PortUse(port=0, problem="not ours", holder=None), "its private_ip in the inventory is no address of the "
         "machine itself", "set it to one that is, and that the other nodes can reach (`ip addr` shows them)"),
        (PortUse(port=0, problem="Too many open files", holder=None), "it can't listen for its peers: Too many open "
         "files", "see what forbids it there (ulimit -n, SELinux, the container's own limits)"),
    ],
)  # fmt: skip
def test_probed_reports_a_port_it_cannot_use(port_use: PortUse, problem: str, fix: str) -> None:
    result = of_two(taken=(port_use,))
    assert result == [Finding(node="g-1", problem=problem, fix=fix)]


@pytest.mark.parametrize(
    ("changed", "problem", "fatal"),
    [
        ({"free_inodes": 5}, "the disk takes no more files: 5 inodes are free", True),
        ({"mtu": 1500}, "the MTU is 1500 here, and 9000 on g-0", False),
        ({"hostname_addresses": ("127.0.1.1",)}, f"its hostname is 127.0.1.1 there{NOBODY}", False),
        ({"hostname_addresses": ()}, f"its hostname has no address there{NOBODY}", False),
        ({"hostname_addresses": None}, f"its hostname has no answer there{NOBODY}", False),
    ],
)  # fmt: skip
def test_probed_reports_inodes_mtu_and_hostname_problems(
    changed: dict[str, object], problem: str, fatal: bool
) -> None:
    (result,) = of_two(health=health(**changed))
    assert (result.node, result.problem, result.fatal) == ("g-1", problem, fatal)


@pytest.mark.parametrize("unknown", [{"free_inodes": None}, {"mtu": None}, {"nccl": "2.27.3"}])
def test_probed_ignores_unknown_values(unknown: dict[str, object]) -> None:
    assert of_two(health=health(**unknown)) == []


def test_probed_ignores_hostnames_on_one_machine() -> None:
    assert of_two(health=health(interface="lo", hostname_addresses=("127.0.0.1",), mtu=9000)) == []


def test_probed_refuses_different_nccl_versions() -> None:
    answers = probes(2, {})
    answers["g-0"] = ProbeAnswer(node="g-0", health=health(nccl="2.27.3"))
    answers["g-1"] = ProbeAnswer(node="g-1", health=health(nccl="2.26.2"))
    (result,) = probed(dict.fromkeys(answers, facts()), answers, master=MASTER)
    assert result.problem == "NCCL is 2.26.2 here, and 2.27.3 on g-0"
    assert result.fatal


def test_probed_takes_nccl_from_the_ranks_environment() -> None:
    answers = probes(2, {})
    answers["g-0"] = ProbeAnswer(node="g-0", health=health(nccl="2.27.3"))
    answers["g-1"] = ProbeAnswer(node="g-1", health=health(nccl="2.26.2"))

    def problems_of(first: tuple[str, ...] | None, second: tuple[str, ...] | None) -> list[str]:
        both = {"g-0": facts(packages=first), "g-1": facts(packages=second)}
        return [finding.problem for finding in probed(both, answers, master=MASTER)]

    new, old = ("numpy==2.3.1", "nvidia_nccl_cu12==2.27.3"), ("nvidia-nccl-cu13==2.26.2", "torch==2.13.0")
    assert problems_of(new, new) == []
    assert problems_of(("torch==2.13.0+cpu",), ("torch==2.13.0+cpu",)) == [], "no NCCL is used"
    assert problems_of(new, old) == ["NCCL is 2.26.2 here, and 2.27.3 on g-0"]
    assert problems_of(None, new) == [], "one node's own Python has the same as the other's environment"


@pytest.mark.parametrize(
    ("gpu", "ports", "problem", "fatal"),
    [
        (False, (), "a process of the run R1, which is over, is left: python3 t.py (pid 9)", False),
        (False, (8080,), "a process of the run R1, which is over, is left: python3 t.py (pid 9)", False),
        (True, (), "a process of the run R1, which is over, is left and holds a GPU: python3 t.py (pid 9)", True),
        (True, (RENDEZVOUS,), "a process of the run R1, which is over, is left and holds a GPU: python3 t.py (pid 9)",
         True),
    ],
)  # fmt: skip
def test_probed_reports_a_leftover_process_fatal_if_it_holds_a_gpu(
    gpu: bool, ports: tuple[int, ...], problem: str, fatal: bool
) -> None:
    stale = StaleProcess(pid=9, command="python3 t.py", run="R1", gpu=gpu, ports=ports)
    (result,) = of_two(health=health(stale=(stale,)))
    assert (result.problem, result.fatal) == (problem, fatal)
    assert result.fix.startswith("gpuctl stop R1; if it is still there: gpuctl exec -- kill 9")
