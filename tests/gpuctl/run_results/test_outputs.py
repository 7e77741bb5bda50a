"""Test merging the lists of files that a run wrote on its nodes."""

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuctl.run_results import outputs
from gpuctl.run_results.outputs import groups_of, kind_of, outputs_of, pull_command
from gpuctl.run_results.read_run import files_of
from inventories.disk.store import Store
from inventories.runs.outputs import NodeOutputs, OutputFile, WrittenFile


def told(node: str, *files: WrittenFile, shared_with: tuple[str, ...] = (), more: int = 0) -> NodeOutputs:
    return NodeOutputs(
        node=node,
        folder=".gpuctl-node/code/my-01",
        files=len(files) + more,
        bytes=sum(file.bytes for file in files),
        whole=True,
        shared_with=shared_with,
        listed=files,
    )


def written(path: str, size: int = 3, *, at: int = 1, brought: bool = True) -> WrittenFile:
    return WrittenFile(path=path, bytes=size, changed_ns=at, brought=brought)


def output(path: str, size: int = 3, *, brought: bool = True) -> OutputFile:
    return OutputFile(node="n-0", path=path, bytes=size, kind=kind_of(path)[0], brought=brought)


@pytest.mark.parametrize(
    ("path", "kind", "folder"),
    [
        ("runs/exp1/events.out.tfevents.17.host", "TensorBoard", "runs/exp1"),
        ("events.out.tfevents.17.host", "TensorBoard", "events.out.tfevents.17.host"),
        ("sub/wandb/offline-run-1/run-1.wandb", "W&B", "sub/wandb"),
        ("mlruns/0/meta.yaml", "MLflow", "mlruns"),
        ("mlflow.db", "MLflow", "mlflow.db"),
        ("outputs/2026-11-23/10-00-00/.hydra/config.yaml", "Hydra", "outputs/2026-11-23/10-00-00"),
        ("multirun/2026-11-23/10-00-00/0/main.log", "Hydra", "multirun/2026-11-23/10-00-00"),
        ("lightning_logs/version_0/events.out.tfevents.1", "Lightning", "lightning_logs/version_0"),
        ("outputs/model.pt", None, "outputs/model.pt"),
        ("my_wandb/x", None, "my_wandb/x"),
        ("wandb", None, "wandb"),
    ],
)
def test_files_of_known_tools_are_named(path: str, kind: str | None, folder: str) -> None:
    assert kind_of(path) == (kind, folder)


def test_home_that_nodes_share_is_told_once() -> None:
    both = [written("a"), written("grew", at=1)]
    nodes = [
        told("n-0", *both, shared_with=("n-1",)),
        told("n-1", written("a"), written("grew", 5, at=2), shared_with=("n-0",)),
        told("n-2", *both),
    ]
    files, totals = outputs_of(nodes)
    assert [(file.node, file.path) for file in files] == [
        ("n-0", "a"), ("n-0", "grew"), ("n-1", "grew"), ("n-2", "a"), ("n-2", "grew"),
    ]  # fmt: skip
    assert [(total.node, total.files, total.bytes) for total in totals] == [
        ("n-0", 2, 6), ("n-1", 1, 5), ("n-2", 2, 6),
    ]  # fmt: skip


def test_long_list_keeps_what_is_on_the_node_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MAX_LISTED", 2)
    files, (total,) = outputs_of(
        [told("n-0", written("a"), written("b"), written("z", brought=False), more=7)]
    )
    assert [file.path for file in files] == ["a", "z"]
    assert total.files == 10


def test_what_a_tool_wrote_is_one_group_and_what_is_away_comes_first() -> None:
    groups = groups_of(
        [
            output("a.txt", 50),
            output("big.pt", 10**9, brought=False),
            output("wandb/offline-run-1/a", 10),
            output("wandb/offline-run-1/b", 90),
        ]
    )
    assert [(group.path, group.kind, group.files, group.bytes, group.brought) for group in groups] == [
        ("big.pt", None, 1, 10**9, 0),
        ("wandb", "W&B", 2, 100, 2),
        ("a.txt", None, 1, 50, 1),
    ]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ckpt/big model.pt", ".gpuctl-node/code/my-01/ckpt/big model.pt"),
        ("ckpt/$(reboot)", ".gpuctl-node/code/my-01/ckpt/$(reboot)"),
        ("ckpt/red\x1b[31m", ".gpuctl-node/code/my-01/ckpt"),
        ("caf\\udce9/x.pt", ".gpuctl-node/code/my-01"),
        (".", ".gpuctl-node/code/my-01"),
    ],
)
def test_command_that_brings_a_file_can_be_typed(path: str, source: str) -> None:
    path = f".gpuctl-node/code/my-01/{path}"
    words = ["gpuctl", "pull", "--rank", "n-0", source, "/to here"]
    assert shlex.split(pull_command("default", "n-0", path, Path("/to here"))) == words
    below_home = pull_command("four", "n-0", path, Path.home() / "a b")
    assert " --cluster four " in below_home
    assert below_home.endswith(" ~/'a b'"), "a quoted ~ would be a folder of that name"


def test_files_of_a_run_are_listed_by_kind_with_sizes(tmp_path: Path) -> None:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    for name in (
        "logs/rank-0.log",
        "artifacts/a/b.json",
        "outputs/n-0/x.pt",
        "checkpoints/c.pt",
        "metrics/m",
    ):
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_text(name)
    (folder.path / "outputs" / "n-0" / os.fsdecode(b"caf\xe9")).touch()
    (folder.path / "outputs" / "link").symlink_to("/etc/passwd")
    assert [(file.kind, file.path, file.bytes) for file in files_of(folder)] == [
        ("log", "logs/rank-0.log", 15),
        ("metrics", "metrics/m", 9),
        ("artifact", "artifacts/a/b.json", 18),
        ("output", "outputs/n-0/caf\\udce9", 0),
        ("output", "outputs/n-0/x.pt", 16),
        ("checkpoint", "checkpoints/c.pt", 16),
    ]
