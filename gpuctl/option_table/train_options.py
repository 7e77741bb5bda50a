"""The options of `gpuctl train`. `gpuctl bench` and `gpuctl tune` share a part of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from gpuctl.option_table.values import (
    gpu_below_s,
    gpu_fraction,
    hang_after_s,
    max_nodes,
    names,
    notify_targets,
    patterns,
    processes,
    variables,
)
from inventories.option import option
from inventories.runs.hang import OnHang
from inventories.runs.labels import check_note, check_run_name, check_tags
from inventories.specs.checks import check_stop_grace_s
from remote.launchers import LAUNCHERS

_train = partial(option, commands=("train",))
_shared = partial(option, commands=("train", "bench", "tune"))
"""Declare an option of every command that starts ranks."""


# fmt: off
@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The options of `gpuctl train`, as its request has them. None: not set."""

    launcher: str | None = _train(
        "--mode", keyword="mode", key="run.mode", kind=tuple(LAUNCHERS),
        help="Launcher (default: torchrun; with --resume the earlier run's).",
    )
    nnodes: int | None = _train(
        "--nnodes", key="run.nnodes", resumed="always", metavar="N|MIN:MAX", kind=str, read=max_nodes,
        annotation="int | str | None",
        distinctive=True,
        help="Number of nodes (default: all). MIN:MAX is elastic: as many as there are, now and later.",
    )
    nproc_per_node: int | Literal["auto"] | None = _train(
        "--nproc-per-node", key="run.nproc_per_node", resumed="always", metavar="auto|N", kind=str, read=processes,
        distinctive=True,
        help="Processes on each node (default: one for each GPU; without GPUs, one).",
    )
    nodes: tuple[str, ...] = _train(
        "--nodes", default=(), key="run.nodes", metavar="LIST", kind=str, read=names, distinctive=True,
        help="Nodes that the run can take, by rank or name, such as 0,2 (default: any that are idle).",
    )
    gpus: int | None = _train(
        "--gpus", key="run.gpus", resumed="always", metavar="N", min=1, max=64, distinctive=True,
        help="Take N free GPUs of each node, so that other runs can have the rest (default: all GPUs; nodes: one).",
    )
    name: str | None = _train(
        "--name", key="run.name", resumed="always", metavar="NAME", read=check_run_name,
        help="Name of the run, which commands take in the place of its id. Of several, the newest counts.",
    )
    note: str | None = _train(
        "--note", key="run.note", resumed="always", metavar="TEXT", read=check_note,
        help="A line on the run, which results show.",
    )
    tags: Mapping[str, str] = _train(
        "--tag", keyword="tags", default={}, key="run.tags", resumed="always", metavar="K=V", kind=str, multiple=True,
        read=check_tags,
        help="Tag the run, such as sweep=lr: results --tag selects runs by it. Repeatable.",
    )
    detach: bool = _train(
        "--detach", default=False, key="run.detach", distinctive=True,
        help="Return when the ranks have started; gpuctl logs -f follows the run.",
    )
    device: Literal["auto", "cpu"] | None = _shared(
        "--device", key="run.device", resumed="always",
        help="cpu: do not use GPUs. auto: refuse a machine whose GPUs can't be used (default: auto).",
    )
    env: Mapping[str, str] = _shared(
        "--env", default={}, key="environment.variables", metavar="K=V", kind=str, multiple=True, read=variables,
        help="Set a variable for every rank. K alone takes its value from here. Repeatable.",
    )
    python: str | None = _shared(
        "--python", key="environment.python", resumed="environment", metavar="PATH",
        help="Use this Python on the nodes, and install nothing.",
    )
    pip: tuple[str, ...] = _shared(
        "--pip", default=(), key="environment.pip", resumed="environment", metavar="REQ",
        help="Install this, and torch, for the ranks: a package, or the project's '.[EXTRA]' or '--group NAME'. "
        "Repeatable.",
    )
    requirements: Path | None = _shared(
        "--requirements", key="environment.requirements", resumed="environment", exists="file",
        help="Install what this requirements.txt, pyproject.toml, uv.lock, pylock.toml or environment.yml lists "
        "(default: the project's).",
    )
    wheels: Path | None = _shared(
        "--wheels", key="environment.wheels", resumed="environment", exists="folder",
        help="Install from this folder of wheels, for nodes without internet access.",
    )
    install_project: bool = _shared(
        "--no-install-project", default=True, key="environment.install_project", resumed="always", distinctive=True,
        help="Do not install the script's project. Default: a project with a build system is installed, editable.",
    )
    root: Path | None = _shared(
        "--root", key="root", resumed="project", metavar="DIR", exists="folder", absolute=True,
        help="Send this folder, which holds the current one (default: its git repository, else itself).",
    )
    include: tuple[Path, ...] = _shared(
        "--include", default=(), key="include", resumed="project", metavar="PATH",
        help="Send this file or folder too, although git ignores it. Repeatable.",
    )
    bring: tuple[str, ...] = _train(
        "--bring", default=(), key="outputs", resumed="script", metavar="PATTERN", read=patterns, distinctive=True,
        help="Bring back what the run writes under these names, in any size; none: nothing (default: up to 64 MB). "
        "Repeatable.",
    )
    fresh: bool = _train(
        "--fresh", default=False,
        help="Begin with what is sent alone: put aside what earlier runs wrote into the project's folder on the "
        "nodes.",
    )
    share_outputs: bool = _train(
        "--share-outputs", default=False, distinctive=True,
        help="Copy the latest version of each file that earlier runs wrote into the project's folder to all nodes.",
    )
    skip_preflight: bool = _train(
        "--skip-preflight", default=False, distinctive=True, help="Start even if the preflight finds problems.",
    )
    resume: bool = _train(
        "--resume", default=False,
        help="Resume from the latest checkpoint of SCRIPT (default: the one run last).",
    )
    resume_from: str | None = _train(
        "--resume-from", metavar="RUN", completes="runs", distinctive=True,
        help="Resume from this run's checkpoints (the end of its id is enough).",
    )
    max_restarts: int = _train(
        "--max-restarts", default=0, key="run.max_restarts", metavar="N", min=0, max=1000, distinctive=True,
        help="If a run fails, restart from its checkpoints on the nodes that answer, at most N times (default: 0).",
    )
    hang_after: float | Literal["off"] | None = _train(
        "--hang-after", key="run.hang_after", metavar="TIME|off", kind=str, read=hang_after_s,
        annotation="str | None", distinctive=True,
        help="Count the run as hung after this time without progress, such as 10m (default: 20 times its usual step, "
        "at least 120s).",
    )
    on_hang: OnHang | None = _train(
        "--on-hang", key="run.on_hang", distinctive=True,
        help="What to do if the run hangs, once the cause is told (default: report).",
    )
    gpu_below: float | None = _train(
        "--end-if-gpu-below", keyword="end_if_gpu_below", key="run.end_if_gpu_below", metavar="PERCENT", kind=str,
        read=gpu_fraction, annotation="str | None", distinctive=True,
        help="End the run once all its GPUs were below this use, such as 10%, for the time of --for.",
    )
    gpu_below_s: float | None = _train(
        "--for", keyword="gpu_below_for", key="run.gpu_below_for", metavar="TIME", kind=str, read=gpu_below_s,
        annotation="str | None",
        help="The time of --end-if-gpu-below, such as 30m (default: 1h).",
    )
    stop_grace_s: float | None = _shared(
        "--stop-grace", keyword="stop_grace", key="run.stop_grace", resumed="always", metavar="TIME", kind=str,
        read=check_stop_grace_s,
        annotation="str | None", distinctive=True,
        help="If ranks are stopped, give them this long to save before they are killed, such as 5m (default: 30s).",
    )
    notify: tuple[str, ...] = _shared(
        "--notify", default=(), key="notify", metavar="TARGET", read=notify_targets, distinctive=True,
        help="Send a message when the run ends, fails, hangs or loses a node: to ntfy:TOPIC, slack:WEBHOOK, "
        "mail:ADDRESS, command:LINE, a URL, or each line of @FILE. Repeatable.",
    )
    module: str | None = option(
        "-m", "--module", key="run.module", metavar="MODULE", commands=("train", "bench"),
        help="Run a module; the arguments after it are passed to it.",
        help_in={"bench": "Measure a module; the arguments after it are passed to it."},
    )
    project: Path | None = option(commands=("train", "bench"), exists="folder", absolute=True)
    """The folder in whose copy the script runs. None: the current one."""
    allow_large: bool = option(commands=("train", "bench"), default=False)
    """True: the project is sent however large it is."""
