"""Test the rows of a run's table on the files that the run wrote on its nodes."""

from dataclasses import replace
from pathlib import Path

import pytest
from support import a_result, a_run, drawn

from gpuctl.run_results.outputs import kind_of, with_local_paths_once
from gpuctl.tables.outputs import output_lines
from gpuctl.tables.run import draw_run
from gpuctl.workflow.jobs.scale_for_run import outputs_only_there
from inventories.runs.outputs import OutputFile, OutputTotal, OutsidePath

FOLDER = ".gpuctl-node/code/my-01"
PULLED = "/pulled/20261121-054625-3fa9"
TOTAL = OutputTotal(node="node-0", folder=FOLDER, files=3, bytes=91_200_100, whole=True)


def output(path: str, size: int, *, brought: bool = True, node: str = "node-0") -> OutputFile:
    return OutputFile(node=node, path=path, bytes=size, kind=kind_of(path)[0], brought=brought)


RESULT = a_result(
    script="train.py",
    dir="/runs/1",
    outputs=(
        output("big.pt", 90_000_000, brought=False),
        output("notes.txt", 100),
        output("runs/exp1/events.out.tfevents.1", 1_200_000),
    ),
    output_totals=(TOTAL,),
)


def test_outputs_are_told_with_what_brings_those_that_are_not_here() -> None:
    assert list(output_lines(RESULT)) == [
        "node-0: 3 files, 91.2 MB; 2 brought to /runs/1/outputs/node-0",
        "  big.pt 90.0 MB",
        f"    on the node: gpuctl pull --rank node-0 {FOLDER}/big.pt {PULLED}/node-0",
        "  runs/exp1/events.out.tfevents.1 1.2 MB (TensorBoard)",
        "  notes.txt 100 B",
    ]


def test_outputs_of_another_cluster_are_pulled_from_it() -> None:
    lines = list(output_lines(replace(RESULT, cluster="four")))
    assert (
        f"    on the node: gpuctl pull --cluster four --rank node-0 {FOLDER}/big.pt {PULLED}/node-0" in lines
    )


def test_paths_outside_the_project_come_with_the_command_that_brings_them() -> None:
    long = "deep/" * 10
    places = [("/tmp/x.pt", 1200, 1), ("out/", 30, 3), (f"{long}a b.txt", 5, 1)]
    outside = tuple(OutsidePath(node="node-1", path=path, bytes=size, files=n) for path, size, n in places)
    lines = [
        "outside the project, not brought:",
        f"  node-1: /tmp/x.pt 1.2 kB: gpuctl pull --rank node-1 /tmp/x.pt {PULLED}/node-1/tmp",
        f"  node-1: out/ 3 files, 30 B: gpuctl pull --rank node-1 out {PULLED}/node-1/out",
        f"  node-1: …/a b.txt 5 B: gpuctl pull --rank node-1 '{long}a b.txt' {PULLED}/node-1/{long[:-1]}",
    ]
    alone = replace(RESULT, outputs=(), output_totals=(), outside=outside)
    assert list(output_lines(alone)) == lines
    assert "gpuctl pull --rank node-1 /tmp/x.pt" in drawn(draw_run(alone))
    many = replace(alone, outside=tuple(replace(outside[0], path=f"/tmp/{number}") for number in range(6)))
    assert list(output_lines(many))[-1] == f"  and 2 more: gpuctl results {RESULT.run} --json"


def test_path_of_all_nodes_comes_with_the_command_that_copies_all_into_folders_of_their_own() -> None:
    outside = tuple(OutsidePath(node=f"node-{rank}", path="out/", bytes=6, files=1) for rank in range(2))
    local = OutsidePath(node="node-0", path="/tmp/x", bytes=6, files=1, on_this_computer=True)
    assert list(output_lines(a_result(nnodes=2, dir="/runs/1", outside=(*outside, local)))) == [
        "outside the project, not brought:",
        f"  out/ 2 files, 12 B on 2 nodes: gpuctl pull out {PULLED}/out",
        "  /tmp/x 6 B: on this computer, whose disk local hosts use",
    ]
    only_one = list(output_lines(a_result(nnodes=3, dir="/runs/1", outside=outside)))
    assert only_one[1:] == [
        f"  node-{rank}: out/ 6 B: gpuctl pull --rank node-{rank} out {PULLED}/node-{rank}/out"
        for rank in range(2)
    ]
    files = tuple(output("ckpt/a.pt", 9, node=f"node-{rank}", brought=False) for rank in range(2))
    totals = tuple(replace(TOTAL, node=f"node-{rank}", files=1) for rank in range(2))
    inside = list(output_lines(a_result(nnodes=2, dir="/runs/1", outputs=files, output_totals=totals)))
    assert inside[2] == inside[5] == f"    on the nodes: gpuctl pull {FOLDER}/ckpt/a.pt {PULLED}/ckpt"


def test_path_of_this_computer_is_listed_once_for_all_local_hosts() -> None:
    run = a_run(nodes=(replace(a_run().nodes[0], run_dir="/g/clusters/c/hosts/c-0/run"),))
    paths = [
        OutsidePath(node=f"c-{rank}", path=path, bytes=1, files=1)
        for rank in range(2)
        for path in ("/tmp/x", "out/")
    ]
    listed = with_local_paths_once(run, Path("/g"), paths)
    assert [(path.node, path.path, path.on_this_computer) for path in listed] == [
        ("c-0", "/tmp/x", True), ("c-0", "out/", False), ("c-1", "out/", False)
    ]  # fmt: skip
    assert with_local_paths_once(a_run(), Path("/g"), paths) == tuple(paths)


def test_outputs_outside_the_project_are_pulled_from_where_they_are() -> None:
    checkpoint, mine = "HOME/ray_results/exp/checkpoint_0/model.pt", "GPUCTL_RUN_DIR/mine/a.pt"
    files = (output(checkpoint, 900_000_000, brought=False), output("HOME/ray_results/exp/progress.csv", 10))
    result = replace(RESULT, outputs=(*files, output(mine, 10, brought=False)))
    assert list(output_lines(result)) == [
        "node-0: 3 files, 91.2 MB; 1 brought to /runs/1/outputs/node-0",
        "  HOME/ray_results/exp 900.0 MB (Ray, 2 files)",
        f"    on the node: gpuctl pull --rank node-0 ray_results/exp {PULLED}/node-0/HOME/ray_results/exp",
        f"  {mine} 10 B",
        f"    on the node: gpuctl pull --rank node-0 .gpuctl-node/runs/{RESULT.run}/node-0/mine/a.pt "
        f"{PULLED}/node-0/GPUCTL_RUN_DIR/mine",
    ]


@pytest.mark.parametrize("name", ["x; reboot #", "a b", "$(reboot)"])
def test_machines_that_stay_for_outputs_come_with_a_command_that_is_safe_to_type(name: str) -> None:
    result = replace(RESULT, outputs=(output(f"GPUCTL_RUN_DIR/{name}/a.pt", 10, brought=False),))
    folder = f".gpuctl-node/runs/{RESULT.run}/node-0/{name}"
    text = outputs_only_there(a_run(run=RESULT.run, cluster="four"), replace(result, cluster="four"))
    command = f"gpuctl pull --cluster four --rank node-0 '{folder}' '{PULLED}/node-0/GPUCTL_RUN_DIR/{name}'"
    assert f"`{command}` copies that folder" in text


def test_many_outputs_that_are_not_here_are_brought_by_one_command() -> None:
    files = tuple(output(f"{number}.pt", 10**9, brought=False) for number in range(9))
    many = replace(RESULT, outputs=files, output_totals=(replace(TOTAL, files=1200, bytes=10**12),))
    assert list(output_lines(many)) == [
        "node-0: 1200 files, 1.0 TB",
        *(f"  {number}.pt 1.0 GB" for number in range(5)),
        "  and 1195 more files",
        f"  on the node, the whole folder: gpuctl pull --rank node-0 {FOLDER} {PULLED}/node-0",
    ]


def test_checkpoint_in_parts_is_one_thing_of_all_nodes() -> None:
    totals = tuple(replace(TOTAL, node=f"node-{rank}", files=1, bytes=10**9) for rank in range(2))
    files = [
        output(f"ckpt/__{rank}_0.distcp", 10**9, node=f"node-{rank}", brought=False) for rank in range(2)
    ]
    in_parts = replace(RESULT, output_totals=totals, outputs=tuple(files))
    assert list(output_lines(in_parts)) == [
        line
        for rank in range(2)
        for line in (
            f"node-{rank}: 1 file, 1.0 GB",
            "  ckpt 1.0 GB (checkpoint in parts)",
            f"    on the nodes, all parts: gpuctl pull {FOLDER}/ckpt {PULLED}/ckpt",
        )
    ]
    brought = replace(in_parts, outputs=tuple(replace(file, brought=True) for file in files))
    assert (
        list(output_lines(brought))[-1]
        == "the parts of ckpt of 2 nodes together: /runs/1/outputs/node-0/ckpt"
    )


def test_look_that_was_cut_short_is_told() -> None:
    cut = replace(RESULT, output_totals=(replace(TOTAL, whole=False),))
    assert next(output_lines(cut)) == (
        "node-0: at least 3 files; there was too much to look at all of it; 2 brought to /runs/1/outputs/node-0"
    )


def test_outputs_of_many_nodes_are_told_of_a_few() -> None:
    totals = tuple(replace(TOTAL, node=f"node-{number}") for number in range(9))
    lines = list(output_lines(replace(RESULT, output_totals=totals)))
    assert lines[-1] == f"and on 5 more nodes: gpuctl results {RESULT.run} --json"


def test_command_stays_on_one_line_and_names_cannot_steer_the_terminal() -> None:
    long = "/".join(["deep" * 10] * 3) + "/big.pt"
    files = (output(long, 10**9, brought=False), output("red\x1b[31m\nname", 1))
    result = replace(RESULT, outputs=files, output_totals=(replace(TOTAL, files=2),))
    lines = drawn(draw_run(result)).splitlines()
    assert (
        f"                on the node: gpuctl pull --rank node-0 {FOLDER}/{long} {PULLED}/node-0/{long[:-7]}"
        in lines
    )
    assert "              rname 1 B" not in lines
    assert "              redname 1 B" in lines
