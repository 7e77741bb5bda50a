"""The settings that a resuming run takes over, its line, and when no run follows."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import a_machine, a_result, a_run, an_inventory

from gpuctl.command_line import cli
from gpuctl.errors import Usage
from gpuctl.workflow.runs.outputs.checkpoints import CheckpointSurvey, Location, ResumePoint, resume_line
from gpuctl.workflow.runs.placement import receivers
from gpuctl.workflow.runs.request.request import TrainRequest, candidates_of
from gpuctl.workflow.runs.resume import last_of_each, older, same_script, taken_over
from inventories import codec
from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Inventory, Machine
from inventories.runs.outputs import OutputFile
from inventories.runs.run import (
    Checkpoints,
    Run,
    RunNode,
    RunOptions,
)
from remote.files.checkpoints import keep_times

RUN = a_run(
    script="sub/my.py",
    args=("--lr", "0.1"),
    nodes=(RunNode(name="gpu-0", rank=0, nproc=1, first_rank=0, run_dir="/home/me/run"),),
    options=RunOptions(project="/srv", nnodes=2, nproc_per_node=4, pip=("numpy",)),
)
LABELLED = replace(RUN, options=RunOptions(name="base", note="first try", tags={"sweep": "lr"}))
HANGS = replace(RUN, options=RunOptions(project="/srv", hang_after="600", on_hang="restart"))
BUILT_IN = replace(RUN, script="built-in", args=("--epochs", "3"), options=RunOptions())
MODULE = replace(RUN, script="-m pkg.mod")
NEXT = replace(RUN, run="20261121-060000-0000")


@pytest.mark.parametrize(
    ("typed", "run", "expected"),
    [
        ({}, RUN, {"words": ("/srv/sub/my.py", "--lr", "0.1"), "project": Path("/srv")}),
        ({"words": ("--lr", "1")}, RUN, {"words": ("/srv/sub/my.py", "--lr", "0.1", "--lr", "1")}),
        (
            {"words": ("--lr", "2")},
            replace(RUN, args=("--lr", "0.1", "--lr", "1"), options=RunOptions(project="/srv", added_args=2)),
            {"words": ("/srv/sub/my.py", "--lr", "0.1", "--lr", "2"), "added_args": 2},
        ),
        (
            {},
            replace(RUN, args=("--lr", "0.1", "--lr", "1"), options=RunOptions(project="/srv", added_args=2)),
            {"words": ("/srv/sub/my.py", "--lr", "0.1", "--lr", "1"), "added_args": 2},
        ),
        ({"words": ("other.py",)}, RUN, {"added_args": 0}),
        ({"words": ("other.py",)}, RUN, {"words": ("other.py",), "project": None, "module": None}),
        ({"module": "a.b", "words": ("x",)}, RUN, {"words": ("x",), "project": None, "module": "a.b"}),
        ({}, MODULE, {"words": ("--lr", "0.1"), "module": "pkg.mod", "project": Path("/srv")}),
        ({}, BUILT_IN, {"words": ("--epochs", "3"), "module": None, "project": None, "built_in": True}),
        ({"words": ("--epochs", "9")}, BUILT_IN, {"words": ("--epochs", "9")}),
        ({}, RUN, {"nnodes": 2, "nproc_per_node": 4, "pip": ("numpy",)}),
        ({"nnodes": 1, "nproc_per_node": "auto"}, RUN, {"nnodes": 1, "nproc_per_node": "auto"}),
        ({}, replace(RUN, options=RunOptions(nnodes=4, min_nodes=2)), {"nnodes": 4, "min_nodes": 2}),
        ({}, LABELLED, {"name": "base", "note": "first try", "tags": {"sweep": "lr"}}),
        (
            {"name": "new", "tags": {"a": "b"}},
            LABELLED,
            {"name": "new", "note": "first try", "tags": {"a": "b"}},
        ),
        ({}, HANGS, {"hang_after": 600.0, "on_hang": "stop"}),
        ({"max_restarts": 2}, HANGS, {"on_hang": "restart"}),
        ({"detach": True}, HANGS, {"hang_after": 600.0, "on_hang": None}),
        ({"hang_after": "off"}, HANGS, {"hang_after": "off", "on_hang": None}),
        ({"hang_after": 30.0, "on_hang": "report"}, HANGS, {"hang_after": 30.0, "on_hang": "report"}),
        ({}, replace(RUN, options=RunOptions(hang_after="off")), {"hang_after": "off", "on_hang": None}),
        ({"nnodes": 3}, replace(RUN, options=RunOptions(nnodes=4, min_nodes=2)), {"min_nodes": None}),
        ({"nnodes": 4, "min_nodes": 1}, RUN, {"nnodes": 4, "min_nodes": 1}),
        (
            {"device": "cpu"},
            BUILT_IN,
            {"words": ("--epochs", "3", "--device", "cpu"), "device": None, "on_cpu": True},
        ),
        ({"device": "auto"}, replace(BUILT_IN, args=("--device", "cpu")), {"words": ("--device", "auto")}),
        (
            {},
            replace(RUN, options=RunOptions(project="/srv", device="cpu")),
            {"device": "cpu", "on_cpu": True},
        ),
        (
            {"device": "auto"},
            replace(RUN, options=RunOptions(project="/srv", device="cpu")),
            {"device": "auto", "on_cpu": False},
        ),
        ({}, RUN, {"mode": "torchrun"}),
        ({}, replace(RUN, mode="ray"), {"mode": "ray"}),
        ({"launcher": "torchrun"}, replace(RUN, mode="ray"), {"mode": "torchrun"}),
        ({"python": "/usr/bin/python3"}, RUN, {"python": "/usr/bin/python3", "pip": ()}),
        (
            {},
            replace(RUN, options=None),
            {"words": ("sub/my.py", "--lr", "0.1"), "project": None, "nnodes": None},
        ),
    ],
)
def test_taken_over_prefers_typed_options_to_earlier_run(
    typed: dict[str, object], run: Run, expected: dict[str, object]
) -> None:
    request = taken_over(TrainRequest(resume=True, **typed), run)  # type: ignore[arg-type]
    assert {name: getattr(request, name) for name in expected} == expected


def test_taken_over_requires_env_values_again() -> None:
    run = replace(RUN, options=RunOptions(project="/srv", env=("LR", "TOKEN")))
    with pytest.raises(Usage, match=r"was given --env TOKEN, .* Give them again: --env TOKEN=VALUE"):
        taken_over(TrainRequest(env={"LR": "1"}), run)
    assert taken_over(TrainRequest(env={"LR": "1", "TOKEN": ""}), run).env == {"LR": "1", "TOKEN": ""}


def test_options_of_request_omit_env_values() -> None:
    request = TrainRequest(
        words=("my.py",),
        project=Path("/srv"),
        nnodes=2,
        nproc_per_node="auto",
        env={"B": "secret", "A": "1"},
        wheels=Path("/wheels"),
    )
    assert request.options() == RunOptions(project="/srv", nnodes=2, env=("A", "B"), wheels="/wheels")
    assert TrainRequest(words=("--epochs", "1")).options() == RunOptions()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ""),
        ("--epochs 3 --lr 1 --epochs 6 --epochs 2", "--epochs 2 --lr 1"),
        ("--epochs=3 --lr 1 --epochs 6", "--epochs 6 --lr 1"),
        ("--epochs 3 --epochs=6", "--epochs=6"),
        ("--mirror --epochs 3 --no-mirror", "--no-mirror --epochs 3"),
        ("--no-mirror --mirror", "--mirror"),
        ("--lr -1 --metrics a b --lr -2 --metrics c", "--lr -2 --metrics c"),
        ("--batch-size 8 --epochs 3 --global-batch-size 16", "--global-batch-size 16 --epochs 3"),
        ("-x 1 --epochs 3", "-x 1 --epochs 3"),
    ],
)
def test_last_of_each_keeps_last_value_of_each_option(words: str, expected: str) -> None:
    assert last_of_each(words.split()) == tuple(expected.split())


@pytest.mark.parametrize(
    ("typed", "run", "newest", "same"),
    [
        ({}, RUN, RUN, True),
        ({"words": ("--lr", "1")}, RUN, RUN, True),
        ({}, RUN, BUILT_IN, False),
        ({}, BUILT_IN, BUILT_IN, True),
        ({}, BUILT_IN, RUN, False),
        ({}, replace(RUN, script="sub/my2.py"), RUN, False),
        ({}, replace(RUN, options=RunOptions(project="/other")), RUN, False),
        ({}, replace(RUN, script="my.py", options=RunOptions(project="/srv/sub")), RUN, True),
        ({}, replace(RUN, options=None), RUN, True),
        ({}, MODULE, MODULE, True),
        ({}, MODULE, RUN, False),
        ({}, replace(MODULE, script="-m pkg.other"), MODULE, False),
        ({}, replace(MODULE, options=RunOptions(project="/other")), MODULE, False),
        ({"words": ("/srv/sub/my.py",)}, RUN, BUILT_IN, True),
        ({"words": ("/srv/sub/../sub/my.py",)}, RUN, RUN, True),
        ({"words": ("/other/sub/my.py",)}, RUN, RUN, False),
        ({"words": ("sub/my.py",), "project": Path("/srv")}, RUN, RUN, True),
        ({"words": ("sub/my.py",)}, RUN, RUN, False),
        ({"words": ("built-in",)}, BUILT_IN, RUN, False),
        ({"words": ("elsewhere/my.py",)}, replace(RUN, options=None), RUN, True),
        ({"module": "pkg.mod"}, MODULE, RUN, True),
        ({"module": "pkg.other"}, MODULE, MODULE, False),
    ],
)
def test_same_script_accepts_named_or_latest_script_only(
    typed: dict[str, object], run: Run, newest: Run, same: bool
) -> None:
    assert same_script(TrainRequest(**typed), run, newest) is same  # type: ignore[arg-type]


def test_built_in_is_false_for_script_file_of_that_name() -> None:
    assert not replace(RUN, script="built-in").built_in
    assert BUILT_IN.built_in
    assert replace(BUILT_IN, options=None).built_in


def test_run_record_without_new_fields_is_read() -> None:
    document = codec.to_json(RUN)
    del document["options"], document["resumed_from"], document["began_with"]
    assert codec.from_json(Run, document, "run.json") == replace(RUN, options=None)


def machine(name: str, rank: int = 0) -> Machine:
    return a_machine(name=name, rank=rank)


CLUSTER = ClusterFolder(Path("/home/me/.gpuctl/clusters/default"))
OTHER = ClusterFolder(Path("/home/me/.gpuctl/clusters/other"))
FIRST, SECOND, AWAY = (
    Location(cluster=CLUSTER, machine=machine("gpu-0")),
    Location(cluster=CLUSTER, machine=machine("gpu-1")),
    Location(cluster=OTHER, machine=machine("gpu-0")),
)
SOME = Checkpoints(files=2, bytes=10, newest="step-000040.pt", written_ns=1)
THEIRS = replace(SOME, newest="a.pt")


def test_survey_picks_first_run_with_checkpoints_anywhere() -> None:
    runs = (NEXT, RUN, BUILT_IN)
    survey = CheckpointSurvey(
        runs=runs,
        locations={place.key: place for place in (FIRST, SECOND, AWAY)},
        by_machine={FIRST.key: [None, None, SOME], AWAY.key: [None, SOME, SOME]},
        local=[None, None, SOME],
        errors={SECOND.key: "gpu-1 does not answer"},
    )
    assert survey.pick() == (RUN, SOME, (AWAY,))
    assert survey.answering(CLUSTER) == {"gpu-0"}
    assert replace(survey, by_machine={FIRST.key: [None] * 3}).pick() == (BUILT_IN, SOME, ())
    assert replace(survey, by_machine={}, local=[None] * 3).pick() is None


def test_survey_ignores_checkpoints_copied_from_earlier_run() -> None:
    after = replace(RUN, run="20261121-060000-0001", resumed_from=RUN.run)
    last = replace(RUN, run="20261121-060000-0002", resumed_from=after.run)
    newer, arrived = replace(THEIRS, written_ns=2), replace(THEIRS, written_ns=9)

    def wrote(*on_first: Checkpoints | None, local: tuple[Checkpoints | None, ...] = (None,) * 3) -> set[str]:
        survey = CheckpointSurvey(
            runs=(last, after, RUN),
            locations={FIRST.key: FIRST},
            by_machine={FIRST.key: on_first},
            local=local,
            errors={},
        )
        return {run.run for run in survey.only(survey.wrote()).runs}

    assert wrote(THEIRS, THEIRS, THEIRS) == {RUN.run}
    assert wrote(THEIRS, THEIRS, THEIRS, local=(arrived, arrived, arrived)) == {RUN.run}
    assert wrote(newer, THEIRS, THEIRS) == {last.run, RUN.run}
    assert wrote(newer, newer, THEIRS) == {after.run, RUN.run}
    assert wrote(replace(THEIRS, newest="b.pt"), None, THEIRS) == {last.run, after.run, RUN.run}
    assert wrote(THEIRS, THEIRS, None) == {after.run, RUN.run}, "what it went on from is not known"
    assert wrote(None, THEIRS, None, local=(None, None, THEIRS)) == {last.run, RUN.run}, "placed from here"


def test_survey_recognises_built_in_checkpoint_by_step_name() -> None:
    after = replace(BUILT_IN, run=NEXT.run, resumed_from=BUILT_IN.run)
    arrived = replace(SOME, written_ns=9)
    survey = CheckpointSurvey(
        runs=(after, BUILT_IN),
        locations={},
        by_machine={},
        local=[arrived, SOME],
        errors={FIRST.key: "timed out."},
    )
    assert survey.wrote() == {BUILT_IN.run}
    assert replace(survey, mirrored=frozenset({after.run})).wrote() == {after.run, BUILT_IN.run}
    assert replace(survey, local=[replace(SOME, newest="step-000080.pt"), SOME]).wrote() == {
        after.run,
        BUILT_IN.run,
    }


def test_survey_only_selects_given_runs() -> None:
    built_in = replace(BUILT_IN, run="20261121-040000-0000")
    survey = CheckpointSurvey(
        runs=(NEXT, RUN, built_in),
        locations={FIRST.key: FIRST},
        by_machine={FIRST.key: [SOME, None, THEIRS]},
        local=[None, THEIRS, SOME],
        errors={SECOND.key: "timed out."},
    )
    assert survey.only({built_in.run, RUN.run, NEXT.run}) == replace(survey, runs=[NEXT, RUN, built_in])
    assert survey.only({built_in.run, "other"}) == replace(
        survey, runs=[built_in], by_machine={FIRST.key: [THEIRS]}, local=[SOME]
    )


def test_receivers_are_all_nodes_but_for_a_file_of_the_built_in_job() -> None:
    both = (RUN.nodes[0], replace(RUN.nodes[0], name="gpu-1", rank=1))
    assert receivers(replace(RUN, nodes=both), THEIRS) == both
    assert receivers(replace(BUILT_IN, nodes=both), SOME) == both[:1]
    assert receivers(replace(BUILT_IN, nodes=both), PARTS) == both


PARTS = replace(SOME, newest="step-000050", lacks=("step-000050/__1_0.distcp",))
HERS = [frozenset({"step-000050/__0_0.distcp"})]
HIS = [frozenset(PARTS.lacks)]


def test_survey_picks_parts_that_machines_have_together() -> None:
    both = (RUN.nodes[0], replace(RUN.nodes[0], name="gpu-1", rank=1))
    run = replace(BUILT_IN, nodes=both)
    survey = CheckpointSurvey(
        runs=(run,),
        locations={place.key: place for place in (FIRST, SECOND)},
        by_machine={FIRST.key: [PARTS], SECOND.key: [None]},
        local=[None],
        errors={},
        parts={FIRST.key: HERS, SECOND.key: HIS},
    )
    assert survey.pick() == (run, PARTS, (FIRST, SECOND))
    assert survey.torn() == []
    shared_home = replace(survey, parts={FIRST.key: [HERS[0] | HIS[0]], SECOND.key: HIS})
    assert shared_home.pick() == (run, replace(PARTS, lacks=()), (FIRST,))
    arrived = replace(PARTS, lacks=())
    lost = replace(survey, parts={FIRST.key: HERS}, errors={SECOND.key: "gpu-1: timed out."})
    assert lost.pick() is None, "a part is never used"
    assert lost.torn() == [(run, list(PARTS.lacks))]
    assert lost.unknown() == (run, "gpu-1", "gpu-1: timed out.")
    assert replace(lost, local=[PARTS]).pick() is None
    assert replace(lost, local=[arrived]).pick() == (run, arrived, ())
    assert replace(lost, local=[arrived]).unknown() is None
    assert replace(lost, local=[SOME]).unknown() == (run, "gpu-1", "gpu-1: timed out."), (
        "an older one is here"
    )
    point = ResumePoint(run=run, source=run, checkpoints=PARTS, locations=(FIRST, SECOND))
    assert resume_line(point, run).endswith("on 2 nodes, brought from gpu-0, gpu-1")


def test_keep_times_restores_modification_times(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, at in (("sub/a.pt", 9_000), ("b.pt", 10_000), ("c.json", 10_500)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(at, at))
    keep_times(tmp_path, Checkpoints(files=3, bytes=0, newest="b.pt", written_ns=4_000))
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    assert times == {"a.pt": 3_000, "b.pt": 4_000, "c.json": 4_500}


def test_survey_unknown_names_later_run_on_unreachable_node() -> None:
    later = replace(NEXT, nodes=(replace(RUN.nodes[0], name="gpu-1"), replace(RUN.nodes[0], rank=1)))
    survey = CheckpointSurvey(
        runs=(later, RUN),
        locations={place.key: place for place in (FIRST, SECOND)},
        by_machine={FIRST.key: [None, SOME]},
        local=[None, None],
        errors={SECOND.key: "gpu-1: timed out."},
    )
    assert survey.unknown() == (later, "gpu-1", "gpu-1: timed out.")
    assert replace(survey, runs=(RUN, later), by_machine={FIRST.key: [SOME, None]}).unknown() is None
    assert replace(survey, by_machine={FIRST.key: [SOME, SOME]}).unknown() is None, (
        "its home is the other's, too"
    )
    assert replace(survey, local=[SOME, None]).unknown() is None, "they were brought here at its end"
    mirrored = frozenset({later.run})
    assert replace(survey, local=[SOME, None], mirrored=mirrored).unknown() == (
        later,
        "gpu-1",
        "gpu-1: timed out.",
    )
    assert replace(survey, local=[SOME, None], mirrored=mirrored, errors={}).unknown() is None
    assert replace(survey, by_machine={FIRST.key: [SOME, None]}, mirrored=mirrored).unknown() is None
    assert replace(survey, local=[None, SOME], mirrored=mirrored).unknown() == (
        later,
        "gpu-1",
        "gpu-1: timed out.",
    )
    assert replace(survey, by_machine={}).unknown() == (later, "gpu-1", "gpu-1: timed out.")
    assert replace(survey, errors={AWAY.key: "timed out."}).unknown() is None
    assert older(RUN, later, "gpu-1", "gpu-1: timed out.") == (
        f"Run {later.run} may have left newer checkpoints on gpu-1, which does not answer: gpu-1: timed out. Try "
        f"again when it does, or resume from the older run {RUN.run} all the same: "
        f"gpuctl train --resume-from {RUN.run}"
    )
    assert older(later, later, "gpu-1", "gpu-1: timed out.") == (
        f"Run {later.run} may have left newer checkpoints on gpu-1, which does not answer: gpu-1: timed out. Try "
        "again when it does, or resume from what was brought here of it all the same: "
        f"gpuctl train --resume-from {later.run}"
    )


@pytest.mark.parametrize(
    ("point", "line"),
    [
        (
            ResumePoint(run=RUN, source=RUN, checkpoints=THEIRS, locations=(SECOND, FIRST)),
            f"resumes from a.pt of run {RUN.run} on 1 node",
        ),
        (
            ResumePoint(run=RUN, source=RUN, checkpoints=THEIRS, locations=(SECOND,)),
            f"resumes from a.pt of run {RUN.run} on 1 node, brought from gpu-1",
        ),
        (
            ResumePoint(run=RUN, source=RUN, checkpoints=THEIRS, locations=(AWAY,)),
            f"resumes from a.pt of run {RUN.run} on 1 node, brought from gpu-0",
        ),
        (
            ResumePoint(run=RUN, source=RUN, checkpoints=THEIRS),
            f"resumes from a.pt of run {RUN.run} on 1 node, with what was brought here",
        ),
        (
            ResumePoint(run=RUN, source=RUN, checkpoints=THEIRS, unknown=RUN),
            f"resumes from a.pt of run {RUN.run} on 1 node, with what was brought here; gpu-0, which "
            "does not answer, may have newer ones",
        ),
        (
            ResumePoint(run=RUN, source=None),
            f"starts from the beginning on 1 node: no checkpoint of run {RUN.run} is in reach",
        ),
        (
            ResumePoint(run=RUN, source=RUN, checkpoints=THEIRS, locations=(FIRST,), unknown=BUILT_IN),
            f"resumes from a.pt of run {RUN.run} on 1 node; run {BUILT_IN.run} may have left newer "
            "ones on gpu-0, which does not answer",
        ),
        (
            ResumePoint(run=RUN, source=None, unknown=RUN),
            f"starts from the beginning on 1 node: no checkpoint of run {RUN.run} is in reach; run "
            f"{RUN.run} may have left some on gpu-0, which does not answer",
        ),
    ],
)
def test_resume_line_names_checkpoint_and_its_source(point: ResumePoint, line: str) -> None:
    assert resume_line(point, NEXT) == f"run {NEXT.run} (sub/my.py) {line}"


@pytest.mark.parametrize(
    ("run", "args", "where"),
    [
        (RUN, (), "1 node, 1 rank instead of 4"),
        (
            BUILT_IN,
            ("--epochs", "3"),
            "1 node, 1 rank instead of 4 (the global batch changes with them unless --global-batch-size is given)",
        ),
        (BUILT_IN, ("--global-batch-size", "256"), "1 node, 1 rank instead of 4"),
        (BUILT_IN, ("--global-batch-size=256",), "1 node, 1 rank instead of 4"),
    ],
)
def test_resume_line_reports_fewer_ranks(run: Run, args: tuple[str, ...], where: str) -> None:
    before = replace(run, nodes=(replace(run.nodes[0], nproc=4),))
    now = replace(run, run=NEXT.run, args=args)
    point = ResumePoint(run=now, source=before, checkpoints=THEIRS, locations=(FIRST,))
    assert (
        resume_line(point, now)
        == f"run {now.run} ({run.script}) resumes from a.pt of run {before.run} on {where}"
    )
    assert f"from the beginning on {where}: no" in resume_line(ResumePoint(run=before, source=None), now)


def test_candidates_of_omits_unreachable_machines() -> None:
    inventory = an_inventory(provider="local", machines=tuple(machine(f"gpu-{n}", n) for n in range(3)))

    def names(
        usable: frozenset[str] | None = None, preferred: tuple[str, ...] = (), **request: object
    ) -> list[str]:
        train_request = TrainRequest(**request)  # type: ignore[arg-type]
        candidates, count = candidates_of(inventory, train_request, usable, preferred)
        return sorted(machine.name for machine in candidates[:count])

    answering = frozenset({"gpu-1", "gpu-2"})
    assert names() == ["gpu-0", "gpu-1", "gpu-2"]
    assert names(answering) == ["gpu-1", "gpu-2"]
    assert names(answering, nnodes=1) == ["gpu-1"], "a machine to spare takes the place of a lost one"
    assert names(answering, nnodes=1, preferred=("gpu-0", "gpu-2")) == ["gpu-2"], "it has the checkpoints"
    assert names(nnodes=2, preferred=("gpu-2",)) == ["gpu-0", "gpu-2"]
    assert names(answering, nnodes=3) == ["gpu-1", "gpu-2"]
    assert names(answering, min_nodes=1, nnodes=1) == ["gpu-1"]
    assert names(answering, min_nodes=1, nnodes=9) == ["gpu-1", "gpu-2"]
    assert names(min_nodes=3, nnodes=9) == ["gpu-0", "gpu-1", "gpu-2"]
    assert names(nodes=("2", "gpu-2", "0")) == ["gpu-0", "gpu-2"], "two names of one machine"
    with pytest.raises(Usage, match=r"--nnodes 3:9 is not possible: the cluster default has 2 nodes\."):
        names(answering, min_nodes=3, nnodes=9)


def test_resume_of_a_misspelt_script_names_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path)
    store.cluster("default").save(
        Inventory(cluster="default", provider="hosts", created_at=RUN.started_at, machines=())
    )
    folder = store.new_run(datetime(2026, 11, 21, 5, 46, 25, tzinfo=UTC))
    folder.save_run(replace(RUN, run=folder.id))
    (tmp_path / "simple.py").touch()
    assert cli.main(["train", "--resume", "smple.py"]) == 2
    assert "no script smple.py, and no run of it; did you mean 'simple.py'?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--resume"], ["--resume-from", RUN.run], ["--resume", "sub/my.py"]])
def test_resume_without_any_checkpoint_is_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path)
    store.cluster("default").save(
        Inventory(cluster="default", provider="hosts", created_at=RUN.started_at, machines=())
    )
    folder = store.new_run(datetime(2026, 11, 21, 5, 46, 25, tzinfo=UTC))
    options = replace(RUN.options or RunOptions(), project=str(tmp_path))
    folder.save_run(replace(RUN, run=folder.id, options=options))
    saved = OutputFile(node="gpu-0", path="ckpt/last.pt", bytes=1, kind=None, brought=True)
    folder.save_result(a_result(run=folder.id, dir=str(folder.path), outputs=(saved,)))
    assert cli.main(["train", *(folder.id if word == RUN.run else word for word in words)]) == 2
    output = capsys.readouterr().err
    assert "in $GPUCTL_RUN_DIR/checkpoints on a node or on this computer" in output
    assert "To start from the beginning, leave out --resume." in output
    assert f"Run {folder.id} wrote ckpt/last.pt in the project." in output
    assert output.endswith("start it with the script's own option: gpuctl train sub/my.py --lr 0.1\n")


@pytest.mark.parametrize(
    ("run", "target", "says"),
    [
        (BUILT_IN, "model.pt", f"No checkpoint of run {RUN.run} is in reach: none came back with it"),
        (RUN, "model.pt", "only the built-in job's checkpoints are known"),
        (BUILT_IN, "model.onnx", "model.onnx ends in neither .safetensors nor .pt"),
    ],
)
def test_export_refuses_what_it_can_not_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Run,
    target: str,
    says: str,
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    store = Store(tmp_path)
    store.cluster("default").save(
        Inventory(cluster="default", provider="hosts", created_at=RUN.started_at, machines=())
    )
    (store.home / "runs" / run.run).mkdir(parents=True)
    folder = store.run(run.run)
    folder.save_run(run)
    folder.save_result(a_result(run=run.run))
    if run is RUN:
        folder.checkpoints_path.mkdir()
        (folder.checkpoints_path / "a.pt").write_text("x")
    assert cli.main(["export", run.run, "-o", str(tmp_path / target)]) == 2
    assert says in capsys.readouterr().err
