"""The choices of `clean` from facts: tables of cases, without a disk or a node."""

import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuctl.command_results.upkeep import CleanItem, NotAsked
from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.workflow.clusters.clean.choices import (
    ClusterFacts,
    LocalRun,
    Policy,
    choose_here,
    choose_on_node,
    is_all_here,
    latest_checkpoints,
    loss_clause,
)
from gpuctl.workflow.clusters.clean.clean import Survey, by_kind, once_per_home, sentence, silent_nodes
from gpuctl.workflow.clusters.clean.table import clean_table
from remote.files.leftovers import Item, Leftovers, RunFile

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
OLD, OLDER, NEW = "20261001-120000-aaaa", "20260901-120000-bbbb", "20261122-110000-cccc"
USUAL, ALL = Policy(), Policy(everything=True)


def run(run_id: str, **facts: Any) -> LocalRun:
    return replace(
        LocalRun(id=run_id, cluster="c", script="my.py", bytes=10, nodes=("n0",), files={}), **facts
    )


def item(kind: Any, name: str = "x", **facts: Any) -> Item:
    return replace(Item(kind=kind, name=name, bytes=10), **facts)


def left(*items: Item, home: str | None = None) -> Leftovers:
    return Leftovers(items=items, home=home)


def known(*runs: LocalRun, ours: bool = True, **facts: Any) -> ClusterFacts:
    about = ClusterFacts(cluster="c", runs={run.id: run for run in runs}, latest={}, ours=ours)
    return replace(about, **facts)


def here(
    *runs: LocalRun,
    policy: Policy = USUAL,
    silent: dict[str, set[str]] | None = None,
    staying: dict[str, str] | None = None,
    on_nodes: tuple[str, ...] = (),
) -> dict[str, str]:
    """Id → `goes`, or why it stays."""
    latest = latest_checkpoints(runs, on_nodes)
    choices = choose_here(runs, latest, policy, NOW, silent=silent or {}, on_nodes=staying or {})
    return {choice.name: "goes" if choice.removes else choice.why for choice in choices}


def on_node(*items: Item, about: ClusterFacts, policy: Policy = USUAL) -> list[str]:
    """`goes`, or why it stays, an item."""
    choices = choose_on_node("n0", items, about, policy)
    return ["goes" if choice.removes else choice.why for choice in choices]


@pytest.mark.parametrize(
    ("policy", "removed"),
    [
        (USUAL, {OLDER, OLD}),
        (Policy(older_than_s=60 * 86_400), {OLDER}),
        (Policy(older_than_s=60), {OLDER, OLD, NEW}),
        (Policy(keep_runs=0), {OLDER, OLD, NEW}),
        (Policy(keep_runs=1), {OLDER, OLD}),
        (Policy(keep_runs=2), {OLDER}),
        (Policy(keep_runs=1, older_than_s=60 * 86_400), {OLDER}),
        (ALL, {OLDER, OLD}),
    ],
)
def test_choose_here_removes_runs_by_age_and_keep_runs(policy: Policy, removed: set[str]) -> None:
    fates = here(run(OLDER), run(OLD), run(NEW), policy=policy)
    assert {name for name, fate in fates.items() if fate == "goes"} == removed


def test_choose_here_counts_keep_runs_per_cluster() -> None:
    runs = (run(OLDER), run(OLD, cluster="d"), run(NEW))
    assert here(*runs, policy=Policy(keep_runs=1)) == {OLDER: "goes", OLD: "not old", NEW: "not old"}


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"over": False}, "not known to be over"),
        ({"cluster": None}, "its record can't be read"),
        ({"link": True}, "it is a link"),
        ({"checkpoints": True}, "the latest checkpoints of my.py"),
    ],
)
def test_choose_here_keeps_protected_runs_at_any_age(facts: dict[str, Any], why: str) -> None:
    for policy in (USUAL, ALL, Policy(keep_runs=0)):
        assert here(run(OLD, **facts), policy=policy) == {OLD: why}


def test_choose_here_keeps_run_while_a_node_may_hold_its_files() -> None:
    assert here(run(OLD), silent={"c": {"n0"}}) == {OLD: "n0, which may have more of it, was not looked at"}
    assert here(run(OLD), silent={"c": {"n1"}, "d": {"n0"}}) == {OLD: "goes"}
    assert here(run(OLD), staying={OLD: "in use"}) == {OLD: "in use"}


def test_latest_checkpoints_keeps_newest_run_per_script_and_cluster() -> None:
    runs = (run(OLDER, checkpoints=True), run(OLD), run(NEW))
    assert latest_checkpoints(runs, ()) == {OLDER: "the latest checkpoints of my.py"}
    assert list(latest_checkpoints(runs, {OLD})) == [OLD]
    unrelated = (
        run(OLDER, checkpoints=True, script="a/b.py"),
        run(OLD, checkpoints=True),
        run(NEW, cluster="d"),
    )
    assert set(latest_checkpoints(unrelated, {NEW})) == {OLDER, OLD, NEW}


def test_choose_on_node_keeps_last_used_environment_code_and_uv() -> None:
    for kind in ("environment", "code", "uv"):
        items = (item(kind, "a", used=1), item(kind, "b", used=3), item(kind, "c", used=2))
        assert on_node(*items, about=known()) == ["goes", "used last", "goes"]
        assert on_node(*items, about=known(), policy=ALL) == ["goes"] * 3
    assert on_node(item("environment", used=0), about=known()) == ["goes"], "it was never finished"


def test_choose_on_node_keeps_code_of_clusters_latest_run() -> None:
    items = (item("code", "a", used=1), item("code", "b", used=3))
    assert on_node(*items, about=known(code=("b", "a"))) == ["used last", "goes"]
    assert on_node(*items, about=known(code=("elsewhere",))) == ["goes", "used last"]


def test_choose_on_node_keeps_items_in_use() -> None:
    for kind in ("environment", "code", "written", "uv", "run", "program"):
        assert on_node(item(kind, NEW, keep="in use"), about=known(run(NEW)), policy=ALL) == ["in use"]


def test_choose_on_node_removes_wheels_and_programs() -> None:
    assert on_node(item("wheels"), item("program"), item("removed"), about=known()) == ["goes"] * 3


def test_choose_on_node_removes_written_files_only_with_all() -> None:
    assert on_node(item("written"), about=known()) == ["written by a run; removed with --all"]
    assert on_node(item("written"), about=known(), policy=ALL) == ["goes"]
    assert on_node(item("written", "p-1.aside-20261121-060000"), about=known()) == [
        "written by a run; removed with --all"
    ]
    of_bench = "p-0123abcd.aside-bench-20261121-060000"
    assert on_node(item("written", of_bench), about=known()) == ["goes"]
    for folder in ("p.aside-bench-20261121-060000", f"{of_bench}-4567cdef", f"{of_bench}-4567cdef.aside-1"):
        assert on_node(item("written", folder), about=known()) == ["written by a run; removed with --all"]


def test_choose_on_node_keeps_items_of_other_users_and_clusters() -> None:
    theirs = known(ours=False, code=("mine",))
    assert on_node(item("run", OLD), item("code"), item("written"), about=theirs, policy=ALL) == [
        "not of this computer",
        "not of this cluster",
        "not of this cluster",
    ]
    assert on_node(item("code", "mine"), item("written", "mine"), about=theirs, policy=ALL) == ["goes"] * 2
    assert on_node(item("run", OLD), about=known(run(OLD, cluster="d"))) == ["of the cluster d"]


ONLY_THERE = "not all here; removed with --all"
HERE_ALREADY = RunFile(node="n0", path="artifacts/a.pt", bytes=7)


@pytest.mark.parametrize(
    ("name", "facts", "policy", "fate"),
    [
        (NEW, {"files": ()}, USUAL, "goes"),
        (NEW, {"files": (HERE_ALREADY,)}, USUAL, "goes"),
        (NEW, {"files": (replace(HERE_ALREADY, bytes=8),)}, USUAL, ONLY_THERE),
        (NEW, {"files": (replace(HERE_ALREADY, path="own.bin"),)}, USUAL, ONLY_THERE),
        (NEW, {"files": None}, USUAL, ONLY_THERE),
        (NEW, {"files": None}, ALL, "goes"),
        (OLD, {"files": None}, USUAL, ONLY_THERE),
        (OLD, {"files": (HERE_ALREADY,)}, USUAL, "goes"),
        (OLD, {"files": None}, Policy(keep_runs=0), ONLY_THERE),
        (OLD, {"files": None, "keep": "not known to be over"}, ALL, "not known to be over"),
        ("20260101-000000-dddd", {}, USUAL, ONLY_THERE),
        ("20261122-000000-dddd", {}, USUAL, ONLY_THERE),
        ("not-a-run", {}, USUAL, ONLY_THERE),
    ],
)
def test_choose_on_node_keeps_runs_not_fully_copied_here(
    name: str, facts: dict[str, Any], policy: Policy, fate: str
) -> None:
    files = {"artifacts/a.pt": 7, "run.json": 3}
    about = known(run(OLD, files=files), run(NEW, files=files))
    assert on_node(item("run", name, **facts), about=about, policy=policy) == [fate]


def test_what_is_lost_names_results_that_exist_nowhere_else() -> None:
    about = known(run(OLD, files={"artifacts/a.pt": 7}))

    def lost(*items: Item) -> str:
        return loss_clause(choose_on_node("n0", items, about, ALL))

    assert lost(item("run", OLD, files=(HERE_ALREADY,)), item("wheels"), item("code")) == ""
    for only in (item("run", OLD), item("run", NEW, files=()), item("written")):
        assert lost(item("wheels"), only) == ", with results of runs that are nowhere else"


def test_clean_table_accepts_node_named_here() -> None:
    nodes = choose_on_node("here", [item("wheels")], known(), USUAL)
    out = io.StringIO()
    Output(Options(), stdout=out).table(clean_table([*nodes, choice(None, "wheels", 1, removes=True)]))
    assert [line.split()[:3] for line in out.getvalue().splitlines()[1:3]] == [["here", "wheels", "1"]] * 2
    assert [choice.where for choice in nodes] == ["here"], "of this computer it is None"


def test_nodes_without_an_answer_and_of_unreadable_clusters_are_silent() -> None:
    def host(name: str) -> Any:
        return SimpleNamespace(cluster=SimpleNamespace(name="d"), machine=SimpleNamespace(name=name))

    torn = NotAsked(cluster="c", node=None, reason="torn file")
    hosts = {"d/n1": host("n1"), "d/n2": host("n2")}
    survey = Survey(hosts=hosts, leftovers={"d/n2": left()}, not_asked=(torn,))
    assert silent_nodes(survey, [run(OLD), run(NEW, nodes=("n2",))]) == {"d": {"n1"}, "c": {"n0", "n2"}}


def test_choose_on_node_keeps_unfinished_run_and_last_checkpoints() -> None:
    about = known(run(OLD, over=False), latest={NEW: "the latest checkpoints of my.py"})
    assert on_node(item("run", OLD, files=()), item("run", NEW, files=()), about=about, policy=ALL) == [
        "not known to be over",
        "the latest checkpoints of my.py",
    ]


def test_is_all_here_separates_same_named_files_by_node() -> None:
    second = item("run", NEW, files=(RunFile(node="n1", path="artifacts/sub/a.pt", bytes=9),))
    assert is_all_here(second, {NEW: run(NEW, files={"artifacts/n1/sub/a.pt": 9})})
    assert not is_all_here(second, {NEW: run(NEW, files={"artifacts/n0/sub/a.pt": 9})})
    assert not is_all_here(second, {NEW: run(NEW)})
    assert not is_all_here(second, {})


def test_nodes_with_one_home_are_listed_once_and_keep_what_one_of_them_keeps() -> None:
    used = (item("uv", "a", keep="in use"), item("uv", "b"))
    leftovers = {
        "c/n0": left(item("uv", "a"), item("uv", "b"), home="h"),
        "c/n1": left(*used, home="h"),
        "c/n2": left(home="other"),
        "c/n3": left(),
        "c/n4": left(),
    }
    listed = once_per_home(leftovers, Path("/g"))
    assert listed == {"c/n0": list(used), "c/n2": [], "c/n3": [], "c/n4": []}


def choice(
    where: str | None, kind: str, size: int, *, removes: bool, why: str = "", **facts: Any
) -> CleanItem:
    known_facts = {"cluster": "c", "name": "x", "bytes": size}
    return CleanItem(**{"where": where, "kind": kind, "removes": removes, "why": why, **known_facts, **facts})


CHOICES = (
    choice(None, "run", 2_000_000, removes=True, why="old"),
    choice(None, "run", 1_000_000, removes=False, why="not old"),
    choice("gpu-0", "environment", 5_100_000_000, removes=False, why="used last", whole=False),
    choice("gpu-0", "environment", 2_600_000_000, removes=True, why="not used last"),
    choice("gpu-0", "written", 4_096, removes=False, why="written by a run; removed with --all"),
)


def test_clean_table_shows_counts_sizes_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    Output(Options(), stdout=out).table(clean_table(CHOICES))
    assert out.getvalue() == (
        "where  what           there      size  goes   frees  stays\n"
        "here   runs               2    3.0 MB     1  2.0 MB  1 not old\n"
        "gpu-0  environments       2  > 7.7 GB     1  2.6 GB  1 used last\n"
        "gpu-0  files of runs      1    4.1 kB     0       -  1 written by a run; removed\n"
        "                                                     with --all\n"
        "\n"
        "> 7.7 GB in all, 2.6 GB to remove\n"
    )


def test_sentence_lists_leftover_sizes_by_node_and_kind() -> None:
    on_nodes = [choice for choice in CHOICES if choice.where is not None]
    assert sentence(on_nodes) == "gpuctl leaves 7.7 GB on gpu-0: environments 7.7 GB, files of runs 4.1 kB"
    assert by_kind(on_nodes, "gpu-0") == {"environment": 7_700_000_000, "written": 4096}
    assert by_kind(on_nodes, "gpu-1") == {}


@pytest.mark.parametrize(
    ("cache", "sizes"),
    [("/g/clusters/c/local/c-0/home/.cache/uv", [7]), ("/home/me/.cache/uv", []), (None, [])],
)
def test_downloads_on_a_local_host_are_shown_and_stay(cache: str | None, sizes: list[int]) -> None:
    leftovers = replace(left(), uv_cache=cache, uv_cache_bytes=7)
    listed = once_per_home({"c/c-0": leftovers, "c/c-1": leftovers}, Path("/g"))
    rows = [row for key, items in listed.items() for row in choose_on_node(key, items, known(), ALL)]
    assert [(row.where, row.bytes, row.removes) for row in rows] == [("c/c-0", size, False) for size in sizes]
