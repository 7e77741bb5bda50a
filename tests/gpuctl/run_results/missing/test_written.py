"""Test the advice on a file missing on a rank that this run wrote on another node."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import a_result, a_run

from gpuctl.run_results.advice import advice_on
from gpuctl.run_results.missing.written import WAYS
from inventories.disk.store import Store
from inventories.runs.end_reasons import Reason
from inventories.runs.outputs import OutputFile, RunFile
from inventories.runs.result import FirstError
from inventories.runs.run import Run, RunNode, RunOptions

NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: "
CODE = "/home/me/.gpuctl-node/code/my-01"
OTHER = "A rank of 0 to 1 on gpu-0 wrote {} in this run, and gpu-1 has no such file. " + WAYS


def advised(
    tmp_path: Path,
    words: str,
    wrote: list[str],
    *,
    reason: Reason,
    log: str = "",
    args: tuple[str, ...] = (),
    before: Sequence[Sequence[str]] = (),
) -> str:
    """Return the advice where rank 2, on gpu-1, failed so. `wrote`, `before`: NODE:PATH of this and earlier runs."""
    for number, earlier in enumerate(before):
        past = Store(tmp_path).new_run(datetime(2026, 1, 1, number, tzinfo=UTC))
        past.save_run(
            a_run(
                run=past.id,
                cluster="n",
                options=RunOptions(project=str(tmp_path / "job"), root=str(tmp_path)),
            )
        )
        past.save_result(a_result(run=past.id, dir=str(past.path), outputs=outputs_of(earlier)))
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    nodes = [
        RunNode(name=f"gpu-{rank}", rank=rank, nproc=2 - rank, first_rank=2 * rank, run_dir="/x")
        for rank in range(2)
    ]
    (tmp_path / "job").mkdir()
    options = RunOptions(project=str(tmp_path / "job"), root=str(tmp_path))
    run = Run(
        run=folder.id, cluster="n", mode="torchrun", script="my.py", args=args, nodes=tuple(nodes), master_addr="h",
        master_port=1, started_at="2026-01-01T00:00:00+00:00", options=options, uneven_files="they differ",
    )  # fmt: skip
    (folder.path / "logs" / "rank-2.log").write_text(log)
    error = FirstError(rank=2, node="gpu-1", message="so", reason=reason, detail=words)
    saved = (RunFile(kind="checkpoint", path="checkpoints/best.pt", bytes=1),)
    result = a_result(
        dir=str(folder.path), first_error=error, outputs=outputs_of(wrote), files=saved, status="failed"
    )
    return advice_on(result, run)


def outputs_of(names: Sequence[str]) -> tuple[OutputFile, ...]:
    files = [name.split(":") for name in names]
    return tuple(OutputFile(node=node, path=path, bytes=1, kind=None, brought=True) for node, path in files)


BEST, FIRST, SHARE = "gpu-0:job/best.pt", "20260101-00", "gpuctl train --cluster n --share-outputs my.py"


@pytest.mark.parametrize("wrote", [[], [BEST]])
@pytest.mark.parametrize(
    ("args", "before", "begins", "ends"),
    [
        (("--resume", "best.pt"), [[BEST], ["gpu-0:x"]], "job/best.pt was on gpu-0 alone", "--resume best.pt"),
        (("--dir=.", "x"), [[BEST]], "job/best.pt was on gpu-0 alone", WAYS),
    ],
)  # fmt: skip
def test_file_of_an_earlier_run_that_a_node_lacked_comes_with_the_line_that_shares_it(
    tmp_path: Path, wrote: list[str], args: tuple[str, ...], before: list[list[str]], begins: str, ends: str
) -> None:
    result = advised(
        tmp_path, f"{NO_FILE}'best.pt'", wrote, reason=Reason.FILE_NOT_FOUND, args=args, before=before
    )
    assert result.startswith(f"{begins} when this run began (run {FIRST}"), result
    assert "so rank 2 on gpu-1 did not find it" in result
    assert f"{SHARE} {' '.join(args)}" in result
    assert result.endswith(ends)


@pytest.mark.parametrize("before", [["gpu-0:job/first.pt"], [BEST, "gpu-1:job/best.pt"]])
def test_file_that_no_earlier_run_left_on_one_node_alone_is_of_this_run(
    tmp_path: Path, before: list[str]
) -> None:
    result = advised(tmp_path, f"{NO_FILE}'best.pt'", [BEST], reason=Reason.FILE_NOT_FOUND, before=[before])
    assert result == OTHER.format("job/best.pt")


@pytest.mark.parametrize(
    ("words", "wrote", "message"),
    [
        (f"{NO_FILE}'ckpt/best.pt'", ["gpu-0:job/ckpt/best.pt"], OTHER.format("job/ckpt/best.pt")),
        (f"{NO_FILE}'../best.pt'", ["gpu-0:best.pt"], OTHER.format("best.pt")),
        (f"{NO_FILE}'{CODE}/job/best.pt'", ["gpu-0:job/best.pt"], OTHER.format("job/best.pt")),
        (f"{NO_FILE}'best'", ["gpu-0:job/best/model.bin"], OTHER.format("job/best")),
        (f"{NO_FILE}'best.pt'", ["gpu-0:job/best.pt", "gpu-1:job/best.pt"], "after the rank had looked for it"),
        (f"{NO_FILE}'best.pt'", ["gpu-1:job/Best.pt"], "upper and lower case count"),
        (f"{NO_FILE}'/data/best.pt'", ["gpu-0:job/best.pt"], ""),
        (f"{NO_FILE}'worst.pt'", ["gpu-0:job/best.pt"], "worst.pt is not on this computer either"),
    ],
)  # fmt: skip
def test_who_wrote_a_file_that_another_node_lacks_is_told(
    tmp_path: Path, words: str, wrote: list[str], message: str
) -> None:
    result = advised(tmp_path, words, wrote, reason=Reason.FILE_NOT_FOUND)
    assert message in result if message else not result


@pytest.mark.parametrize(
    ("words", "log", "path"),
    [
        ("ValueError: Can't find a valid checkpoint at out/checkpoint-5", "", "job/out/checkpoint-5"),
        ("OSError: out is not a local folder and is not a valid model identifier", "", "job/out"),
        ("CheckpointException ranks:dict_keys([1])", f"x\n[rank2]: Error: {NO_FILE}'out/a.pt'\n", "job/out/a.pt"),
        ("ValueError: a loss of nan in out", "", ""),
    ],
)  # fmt: skip
def test_file_is_found_in_words_of_libraries(tmp_path: Path, words: str, log: str, path: str) -> None:
    wrote = ["gpu-0:job/out/checkpoint-5/model.safetensors", "gpu-0:job/out/a.pt"]
    result = advised(tmp_path, words, wrote, reason=Reason.EXIT_CODE, log=log)
    assert result == (OTHER.format(path) if path else "")


def test_file_in_the_runs_folder_is_said_to_be_in_another_on_each_node(tmp_path: Path) -> None:
    path = "/home/me/.gpuctl-node/runs/20261127-142604-0947/gpu-1/checkpoints/best.pt"
    result = advised(tmp_path, f"{NO_FILE}'{path}'", [], reason=Reason.FILE_NOT_FOUND)
    assert result == (
        "A rank of 0 to 1 on gpu-0 wrote checkpoints/best.pt in this run. GPUCTL_RUN_DIR is another folder on each "
        f"node, and that of gpu-1 has no checkpoints/best.pt. {WAYS}"
    )
