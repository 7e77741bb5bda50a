"""The comparison of ranks: a table of their reports, and the sentence on each."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuctl.run_results.hangs.culprit import Kind, blocks, compare, culprits_idle
from gpuctl.run_results.hangs.rank import Rank
from gpuctl.run_results.hangs.sentences import hang_of
from inventories.runs.activity import ChildActivity, Collective, RankActivity
from inventories.runs.hang import Hang

CODE = "/home/me/.gpuctl-node/code"
C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOADER = "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
NOW = 10_000.0
NODES = ("alpha", "alpha", "beta", "beta")


def entered(sequence: int, *, ago_s: float, over: bool = True, **more: Any) -> Collective:
    known = {"group": "0", "title": "default_pg", "name": "all_reduce", "sizes": "[[4]]", **more}
    return Collective(sequence=sequence, over=over, entered_at=NOW - ago_s, **known)


def stack(*frames: tuple[str, int, str]) -> str:
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join(["Thread 0x1 (most recent call first):", *lines])


def script(line: int, function: str = "<module>", file: str = "train.py") -> tuple[str, int, str]:
    return (f"{CODE}/job-1/{file}", line, function)


def rank(number: int, *collectives: Collective, stacks: str = "", **more: Any) -> Rank:
    facts = {"state": "S", "stacks_by": "server", "server": True, "began_at": NOW - 300, **more}
    activity = RankActivity(rank=number, now=NOW, collectives=collectives, stacks=stacks, code=CODE, **facts)
    return Rank(rank=number, node=NODES[number], activity=activity)


def waits(number: int, sequence: int = 2, *, ago_s: float = 240, **more: Any) -> Rank:
    """A rank in a collective at train.py:88."""
    past = [entered(n, ago_s=ago_s + sequence - n) for n in range(1, sequence)]
    inside = entered(sequence, ago_s=ago_s, over=False, **more)
    return rank(number, *past, inside, stacks=stack((C10D, 3252, "all_reduce"), script(88)))


def loads(number: int, last: int = 1, **more: Any) -> Rank:
    """A rank that loads a batch, and has not entered the next collective."""
    past = [entered(n, ago_s=240 + last - n) for n in range(1, last + 1)]
    return rank(number, *past, stacks=stack(script(41, "load_batch", "data.py"), script(80)), **more)


def said(*ranks: Rank) -> Hang:
    return hang_of("r", compare(ranks), at=datetime(2026, 1, 1, tzinfo=UTC))


IN_C = loads(1, server=False, stacks_by="signal")
STOPPED = replace(waits(1), activity=RankActivity(rank=1, now=NOW, began_at=1.0, state="T", code=CODE))
ENDED = replace(waits(1), activity=RankActivity(rank=1, now=NOW, began_at=1.0, code=CODE))
NOT_ASKED = Rank(rank=1, node="alpha")
FETCH = "/env/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py"
IN_LOADER = stack((LOADER, 1255, "_try_get_data"), script(9))
FETCHES = stack(script(12, "__getitem__", "data.py"), (FETCH, 52, "fetch"))
OWN_WORKER = ChildActivity(pid=77, state="S", stacks=FETCHES)


@pytest.mark.parametrize(
    ("ranks", "verdict", "sentence"),
    [
        (
            (waits(0), loads(1), waits(2), waits(3)),
            "hung",
            "The run hangs: rank 1 on alpha never entered all_reduce #2 (train.py:88), which the other 3 wait in; "
            "it is in load_batch, data.py:41, for 4 min 0 s.",
        ),
        (
            (waits(0), loads(1)),
            "hung",
            "The run hangs: rank 1 on alpha never entered all_reduce #2 (train.py:88), which rank 0 waits in; "
            "it is in load_batch, data.py:41, for 4 min 0 s.",
        ),
        (
            (waits(0), loads(1), loads(2)),
            "hung",
            "The run hangs: ranks 1 on alpha and 2 on beta never entered all_reduce #2 (train.py:88), which rank 0 "
            "waits in; ranks 1,2: they are in load_batch, data.py:41, for 4 min "
            "0 s.",
        ),
        (
            (waits(0), IN_C),
            "hung",
            "The run hangs: rank 1 on alpha never entered all_reduce #2 (train.py:88), which rank 0 waits in; it is "
            "in C code that was called from load_batch, data.py:41, and holds Python's lock, for 4 min 0 s.",
        ),
        (
            (waits(0), waits(1, name="broadcast")),
            "hung",
            "The run hangs: ranks are in different collectives at number 2: rank 0 on alpha is in all_reduce "
            "(train.py:88), rank 1 on alpha is in broadcast (train.py:88), for 4 min 0 s.",
        ),
        (
            (waits(0), waits(1, sizes="[[5]]")),
            "hung",
            "The run hangs: ranks are in different sizes at number 2: rank 0 on alpha is in all_reduce of [[4]] "
            "(train.py:88), rank 1 on alpha is in all_reduce of [[5]] (train.py:88), for 4 min 0 s.",
        ),
        (
            (waits(0), waits(1), waits(2), waits(3)),
            "hung",
            "The run hangs: all 4 ranks are in all_reduce #2 (train.py:88), for 4 min 0 s; none is missing, so what "
            "they send does not arrive (a link that was dropped, a firewall), or the data is large.",
        ),
        (
            (waits(0), STOPPED, waits(2)),
            "hung",
            "The run hangs: rank 1 on alpha is stopped (state T: SIGSTOP or a debugger; kill -CONT lets the process "
            "go on); the other 2 wait in all_reduce #2 (train.py:88), for 4 min 0 s.",
        ),
        (
            (waits(0), ENDED),
            "hung",
            "The run hangs: the process of rank 1 on alpha has ended; rank 0 waits in all_reduce #2 (train.py:88), "
            "for 4 min 0 s.",
        ),
        (
            (waits(0), loads(1, children=(ChildActivity(pid=77, state="Z"),), stacks_by="server")),
            "hung",
            "The run hangs: rank 1 on alpha never entered all_reduce #2 (train.py:88), which rank 0 waits in; it is "
            "in load_batch, data.py:41, for 4 min 0 s.",
        ),
        (
            (waits(0), rank(1, stacks=IN_LOADER, children=(ChildActivity(pid=77, state="Z"),))),
            "hung",
            "The run hangs: a DataLoader worker of rank 1 on alpha has died (process 77); the rank waits for it in "
            "train.py:9; rank 0 waits in all_reduce #2 (train.py:88), for 4 min 0 s.",
        ),
        (
            (waits(0), rank(1, stacks=IN_LOADER, children=(OWN_WORKER,))),
            "hung",
            "The run hangs: rank 1 on alpha never entered all_reduce #2 (train.py:88), which rank 0 waits in; it "
            "waits for its DataLoader's workers in train.py:9; a worker is in __getitem__, data.py:12, for 4 min "
            "0 s.",
        ),
        (
            (waits(0, ago_s=0.02), loads(1)),
            "fine",
            "The run goes on. At this moment rank 1 on alpha has not yet entered all_reduce #2 (train.py:88), which "
            "rank 0 waits in; it is in load_batch, data.py:41.",
        ),
        (
            (waits(0, 4, ago_s=5), loads(1, 3)),
            "slow",
            "The run is slow: rank 1 on alpha never entered all_reduce #4 (train.py:88), which rank 0 waits in; it "
            "is in load_batch, data.py:41, for 5.0 s.",
        ),
        (
            (waits(0), NOT_ASKED),
            "hung",
            "The run hangs: rank 1 on alpha could not be asked; rank 0 waits in all_reduce #2 (train.py:88), for 4 "
            "min 0 s.",
        ),
        (
            (
                rank(0, stacks=stack((C10D, 9, "barrier"), script(5))),
                rank(1, stacks=stack(script(6, "save"))),
            ),
            "unknown",
            "Whether the run hangs is not known: rank 1 on alpha is not in barrier (train.py:5), in which rank 0 "
            "waits; it is in save, train.py:6.",
        ),
        (
            (
                rank(0, entered(1, ago_s=0.1), stacks=stack(script(3))),
                rank(1, stacks=stack(script(4, "step"))),
            ),
            "fine",
            "The run goes on. At this moment no rank waits in a collective; rank 0: it is in train.py:3; rank 1: "
            "it is in step, train.py:4.",
        ),
        (
            (rank(0, state=None, began_at=None), rank(1, state=None, began_at=None)),
            "unknown",
            "The run starts: none of its ranks has begun yet.",
        ),
        (
            (rank(0, stacks=stack(script(3))), rank(1, state=None, began_at=None)),
            "unknown",
            "Whether the run hangs is not known: no rank waits in a collective; rank 0: it is in train.py:3; rank 1: "
            "it has not started yet.",
        ),
    ],
)
def test_sentence_says_who_waits_for_whom(ranks: tuple[Rank, ...], verdict: str, sentence: str) -> None:
    hang = said(*ranks)
    assert hang.sentence == sentence
    assert hang.verdict == verdict


def many(*divergent: int, number: int = 64) -> tuple[Rank, ...]:
    """Ranks in all_reduce #4, of which a few are in a broadcast at another line."""
    ranks = []
    for at in range(number):
        name, line = ("broadcast", 30) if at in divergent else ("all_reduce", 31)
        inside = entered(4, ago_s=240, over=False, name=name)
        activity = RankActivity(
            rank=at,
            now=NOW,
            began_at=NOW - 300,
            state="S",
            collectives=(entered(3, ago_s=241), inside),
            stacks=stack((C10D, 3252, name), script(line)),
            code=CODE,
        )
        ranks.append(Rank(rank=at, node=f"node-{at // 8}", activity=activity))
    return tuple(ranks)


def test_few_ranks_in_another_collective_than_most_are_named_first() -> None:
    hang = said(*many(9, 62))
    assert hang.sentence == (
        "The run hangs: ranks are in different collectives at number 4: ranks 9 on node-1 and 62 on node-7 are in "
        "broadcast (train.py:30), ranks 0-8,10-61,63 on 8 nodes are in all_reduce (train.py:31), for 4 min 0 s."
    )
    assert [culprit.rank for culprit in hang.culprits] == [9, 62]


def test_few_ranks_in_another_collective_are_named_by_their_stacks_alone() -> None:
    ranks = [replace(rank, activity=replace(rank.activity, collectives=())) for rank in many(9, 62)]
    hang = said(*ranks)
    assert hang.sentence.endswith(
        "ranks are in different collectives: ranks 9 on node-1 and 62 on node-7 are in broadcast (train.py:30), "
        "ranks 0-8,10-61,63 on 8 nodes are in all_reduce (train.py:31)."
    )
    assert [culprit.rank for culprit in hang.culprits] == [9, 62]


def test_many_ranks_that_are_missing_are_told_in_one_clause() -> None:
    loaded = loads(0).activity
    ranks = [rank if rank.rank in (9, 62) else replace(rank, activity=loaded) for rank in many(9, 62)]
    assert said(*ranks).sentence == (
        "The run hangs: ranks 9 on node-1 and 62 on node-7 wait in broadcast #4 (train.py:30), which the others "
        "never entered; ranks 0-8,10-61,63: they are in load_batch, data.py:41, for 4 min 0 s."
    )


RAISED = (
    f'[rank1]: Traceback (most recent call last):\n[rank1]:   File "{CODE}/job-1/train.py", line 10, in <module>\n'
    "[rank1]:     check(label)\n[rank1]: ValueError: label 12 is not below 10\n"
)
DOES = "it raised ValueError: label 12 is not below 10 (train.py:10), and its process has not ended"
AT_END = ("/usr/lib/python3.11/threading.py", 1590, "_shutdown")


@pytest.mark.parametrize(
    ("stacks", "log", "does"),
    [
        (stack(AT_END), RAISED, DOES),
        (stack(script(7, "fill")) + "\n\n" + stack(AT_END), f"{RAISED}filling\n",
         f"{DOES}; a thread is in fill, train.py:7"),
        (stack(), RAISED, DOES),
        (stack(script(12)), RAISED, "it is in train.py:12"),
        (stack(AT_END), "all is well\n", "it is in a place that is not known"),
    ],
)  # fmt: skip
def test_rank_that_raised_and_does_not_end_is_told_with_its_exception(
    stacks: str, log: str, does: str
) -> None:
    raised = rank(1, entered(1, ago_s=241), stacks=stacks, log_tail=log)
    hang = said(waits(0), raised)
    assert f"which rank 0 waits in; {does}, for 4 min 0 s." in hang.sentence
    assert (hang.culprits[0].raised is not None) is ("raised" in does)


def test_document_names_culprits_and_those_who_wait() -> None:
    hang = said(waits(0), loads(1))
    (culprit,), (waiting,) = hang.culprits, hang.waiting
    assert (culprit.rank, culprit.node, culprit.file, culprit.line, culprit.function, culprit.since_s) == (
        1, "alpha", "data.py", 41, "load_batch", 240.0,
    )  # fmt: skip
    assert (waiting.rank, waiting.collective, waiting.sequence, waiting.line) == (0, "all_reduce", 2, 88)


def test_group_that_a_rank_is_not_in_does_not_miss_it() -> None:
    other = {"group": "1", "title": "tensor_parallel"}
    pair = [waits(number, **other) for number in (0, 1)]
    past = [entered(1, ago_s=241, **other)]
    pair = [
        replace(each, activity=replace(each.activity, collectives=(*past, each.collectives[-1])))
        for each in pair
    ]
    assert said(*pair, loads(2)).sentence.startswith(
        "The run hangs: all 2 ranks are in all_reduce #2 of tensor"
    )


def test_rank_that_waits_elsewhere_is_said_to() -> None:
    other = entered(7, ago_s=100, over=False, group="1", title="pipe", name="barrier")
    stuck = rank(1, entered(1, ago_s=300), other, stacks=stack((C10D, 1, "barrier"), script(50)))
    assert "it waits in barrier #7 (train.py:50)" in said(waits(0), stuck).sentence


def p2p(number: int, name: str, *, ago_s: float = 240, over: bool = False, **more: Any) -> Rank:
    """A rank whose last entry is a send or a receive, after one that is never said to have ended."""
    part = entered(8, ago_s=ago_s + 1, over=False, point_to_point=True, name="send 0->1")
    last = entered(9, ago_s=ago_s, over=over, point_to_point=True, name=name)
    return rank(number, part, last, stacks=stack(script(7, "stage", "pipe.py")), **more)


def test_rank_that_sends_and_receives_nothing_is_named_by_those_who_wait_for_it() -> None:
    hang = said(p2p(0, "recv 0<-1"), rank(1, stacks=stack(script(41, "load_batch", "data.py"))))
    assert hang.verdict == "hung"
    assert hang.sentence == (
        "The run hangs: rank 0 on alpha waits in recv 0<-1 (pipe.py:7), for 4 min 0 s; rank 1 on alpha does not: it "
        "is in load_batch, data.py:41."
    )
    assert [culprit.rank for culprit in hang.culprits] == [1]
    assert [(culprit.rank, culprit.collective) for culprit in hang.waiting] == [(0, "recv 0<-1")]


def test_ranks_that_wait_for_each_others_sends_are_all_named() -> None:
    hang = said(p2p(0, "recv 0<-1"), p2p(1, "recv 1<-0"))
    assert hang.sentence.startswith(
        "The run hangs: rank 0 on alpha waits in recv 0<-1 (pipe.py:7), rank 1 on alpha waits in recv 1<-0 (pipe.py:"
    )
    assert hang.culprits == ()


def test_sends_that_have_ended_or_just_begun_are_no_hang() -> None:
    assert said(p2p(0, "recv 0<-1", ago_s=0.5), p2p(1, "recv 1<-0", ago_s=0.5)).verdict == "fine"
    over = compare((p2p(0, "recv 0<-1", over=True), p2p(1, "send 1->0", over=True)))
    assert over.kind is Kind.WORKS
    assert not blocks(over, 1000, 100)


def test_rank_that_never_came_to_the_process_group_is_named() -> None:
    store = ("/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py", 190, "_create_c10d_store")
    joins = rank(0, stacks=stack(store, (C10D, 1700, "init_process_group"), script(5)))
    finding = compare((joins, rank(1, stacks=stack(script(4, "download")))))
    hang = hang_of("r", finding, at=datetime(2026, 1, 1, tzinfo=UTC), hung=blocks(finding, 300, 300))
    assert hang.sentence == (
        "The run hangs: rank 1 on alpha is not in init_process_group (train.py:5), in which rank 0 waits; it is in "
        "download, train.py:4."
    )


PIPELINING = "/env/lib/python3.11/site-packages/torch/distributed/pipelining/schedules.py"


@pytest.mark.parametrize(("ago_s", "verdict"), [(240, "hung"), (0.3, "fine")])
def test_stage_that_works_is_told_from_those_that_wait_for_it_over_gloo(ago_s: float, verdict: str) -> None:
    """gloo's sends and receives are in no record: since when a stage waits is known by its last collective."""
    past = [entered(number, ago_s=ago_s + (3 - number) * 0.1) for number in range(1, 4)]
    at = stack((PIPELINING, 681, "_wait_batch_p2p"), (PIPELINING, 855, "_step_microbatches"), script(88))
    waiting = [rank(number, *past, stacks=at, place=f"stage {number + 1} of 3") for number in (0, 2)]
    works = rank(1, *past, stacks=stack(script(41, "load_batch", "data.py")), place="stage 2 of 3")
    hang = said(waiting[0], works, waiting[1])
    assert hang.verdict == verdict
    assert hang.sentence.endswith(
        "rank 1 on alpha (stage 2 of 3) is not in batch_isend_irecv (train.py:88), in which the other 2 wait; it is "
        "in load_batch, data.py:41."
    )
    assert [(culprit.rank, culprit.place) for culprit in hang.culprits] == [(1, "stage 2 of 3")]


def test_ranks_that_all_do_nothing_for_long_hang() -> None:
    def at(number: int, **more: Any) -> Rank:
        return rank(
            number, stacks=stack(script(9 + number)), **{"busy": 0.01, "io_bytes_per_s": 50.0, **more}
        )

    idle = compare((at(0), at(1)))
    assert idle.kind is Kind.IDLE
    assert (blocks(idle, 479, 120), blocks(idle, 480, 120)) == (False, True)
    assert hang_of("r", idle, at=datetime(2026, 1, 1, tzinfo=UTC), hung=True).sentence == (
        "The run hangs: no rank works, nor waits in an operation that torch records; rank 0: it is in train.py:9; "
        "rank 1: it is in train.py:10."
    )
    for other in ({"busy": 0.4}, {"io_bytes_per_s": 2e5}, {"busy": None}, {"state": None}):
        assert not blocks(compare((at(0), at(1, **other))), 10_000, 120)
    assert not blocks(compare((at(0),)), 10_000, 120), "one rank alone may wait for anything"


def test_rank_that_comes_last_as_a_rule_makes_the_run_slow() -> None:
    def steps(number: int, late_s: float) -> Rank:
        past = [entered(n, ago_s=20.1 - n - late_s) for n in range(1, 21)]
        return rank(number, *past, stacks=stack(script(41, "load_batch", "data.py")))

    hang = said(steps(0, 0.0), steps(1, 0.4), steps(2, 0.01))
    assert hang.verdict == "slow"
    assert hang.sentence == (
        "The run is slow: rank 1 on alpha comes last to 20 of 20 collectives (all_reduce), 0.4 s after the first "
        "rank; between two of them are 1.0 s. At this moment it is in load_batch, data.py:41."
    )
    assert [(culprit.rank, culprit.since_s) for culprit in hang.culprits] == [(1, 0.4)]
    assert said(steps(0, 0.0), steps(1, 0.01)).verdict == "fine"
    offset = replace(steps(1, 0.4), clock_offset_s=0.4)
    assert said(steps(0, 0.0), offset).verdict == "fine"


def test_script_that_drives_ray_is_said_to_have_workers_of_which_nothing_is_known() -> None:
    driver = rank(
        0, stacks=stack(("/env/lib/python3.11/site-packages/ray/train/trainer.py", 9, "fit"), script(7))
    )
    finding = replace(compare((driver,)), kind=Kind.DRIVER)
    hang = hang_of("r", finding, at=datetime(2026, 1, 1, tzinfo=UTC))
    assert hang.verdict == "unknown"
    assert "of the script itself, on alpha, it is in train.py:7" in hang.sentence
    assert not blocks(finding, 1000, 100)


def test_thread_that_runs_the_script_counts() -> None:
    idle = stack(("/env/lib/python3.11/site-packages/ray/worker.py", 5, "main_loop"))
    trains = rank(1, entered(1, ago_s=300), stacks=stack(script(41, "load_batch", "data.py")) + "\n" + idle)
    assert "it is in load_batch, data.py:41" in said(waits(0), trains).sentence


def test_rank_that_has_ended_makes_no_hang_while_nobody_waits() -> None:
    ended = RankActivity(rank=1, now=NOW, began_at=1.0, code=CODE)
    saves = rank(0, entered(3, ago_s=300), stacks=stack(script(6, "save")))
    hang = said(saves, Rank(rank=1, node="alpha", activity=ended))
    assert hang.verdict == "unknown"
    assert "its process is gone" in hang.sentence


@pytest.mark.parametrize(
    ("load", "times"),
    [
        ({"busy": 0.9, "cpu": 0.4}, 4),
        ({"io_bytes_per_s": 12e6, "busy": 0.1}, 4),
        ({"busy": 0.1, "cpu": 0.1}, 1),
    ],
)
def test_rank_that_works_alone_is_given_more_time(load: dict[str, float], times: int) -> None:
    finding = compare((waits(0), loads(1, **load)))
    assert blocks(finding, 120 * times, 120)
    assert not blocks(finding, 120 * times - 1, 120)


def test_start_is_in_vain_only_when_all_that_are_waited_for_are_known_to_do_nothing() -> None:
    nothing = {"busy": 0.01, "io_bytes_per_s": 50.0}
    assert culprits_idle(compare((waits(0), loads(1, **nothing))))
    assert culprits_idle(compare((waits(0), waits(1)))), "nobody is waited for"
    assert culprits_idle(compare((waits(0), STOPPED)))
    assert culprits_idle(compare((waits(0), ENDED)))
    for more in ({"busy": 0.4}, {"io_bytes_per_s": 3e5}, {"busy": None}):
        finding = compare((waits(0), loads(1, **nothing), loads(2, **{**nothing, **more})))
        assert not culprits_idle(finding)
    assert not culprits_idle(compare((waits(0), NOT_ASKED)))


def test_moment_of_waiting_is_no_hang_however_long_another_node_is_silent() -> None:
    assert not blocks(compare((waits(0, ago_s=0.1), loads(1))), 500, 120)
    assert blocks(compare((waits(0, ago_s=0.1), STOPPED)), 500, 120)


def test_run_of_which_any_rank_writes_does_not_hang() -> None:
    assert not blocks(compare((waits(0), loads(1, wrote_s=3))), 500, 120)
    assert blocks(compare((waits(0), loads(1, wrote_s=130))), 500, 120)


def test_work_of_a_rank_that_is_waited_for_is_told() -> None:
    sentence = said(waits(0), loads(1, cpu=0.98, busy=1.0, io_bytes_per_s=12e6)).sentence
    assert "it is in load_batch, data.py:41, at work (98 % of a CPU, 12 MB/s), for" in sentence


def test_ranks_that_are_one_collective_apart_have_lost_their_link() -> None:
    ahead = rank(1, entered(2, ago_s=240), entered(3, ago_s=239, over=False), stacks=stack(script(88)))
    assert said(waits(0), ahead).sentence == (
        "The run hangs: rank 0 on alpha is in all_reduce #2 (train.py:88), which the others have left, for 4 min "
        "0 s; none is missing, so what they send does not arrive (a link that was dropped, a firewall), or the data "
        "is large."
    )


def test_escape_codes_of_a_node_are_not_printed() -> None:
    evil = rank(1, entered(1, ago_s=300), stacks=stack(script(4, "\x1b[31mload", "a.py")))
    assert "\x1b" not in said(waits(0), evil).sentence
