"""The request of `gpuctl train`: its options, and the machines that can take part."""

import itertools
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gpuctl.errors import Usage
from gpuctl.option_table.train_options import TrainSettings
from gpuctl.workflow.runs.request.ask_built_in import ask_built_in
from inventories.errors import NotFound
from inventories.machine import Inventory, Machine
from inventories.runs.run import Misplaced, RunOptions
from inventories.text import plural
from remote.launchers import DEFAULT, launcher_of
from remote.shared.constants import HANG_AFTER_VARIABLE, HANG_OFF, VISIBLE

NONE_VISIBLE = ("", "-1")
"""Its values that hide all GPUs."""
STRATEGY, AUTO = "--strategy", "auto"
"""The built-in job's option, and the value for which gpuctl puts another one before the ranks get it."""
PLAIN = "ddp"
"""The strategy without advice."""
ENGINE = "--engine"
DATA_OPTIONS = ("--data-dir", "--data")
"""Names of the built-in job's option for where its data is on the nodes."""


@dataclass(frozen=True, kw_only=True)
class TrainRequest(TrainSettings):
    """The settings of `gpuctl train` that a user typed, or that a file has."""

    min_nodes: int | None = None
    """The fewest machines of an elastic job, `nnodes` being the most. `None`: exactly `nnodes` take part."""
    words: tuple[str, ...] = ()
    """The script and its arguments, or the built-in job's options."""
    search: Mapping[str, Any] | None = None
    """The search of Ray Tune, for `gpuctl tune`. `None`: no search, but a single run."""
    added_args: int = 0
    """Number of the last words, added to the words of the resumed run."""
    misplaced: Misplaced | None = None
    """Options of gpuctl after the script on the command line. `None`: no such options."""

    @property
    def built_in(self) -> bool:
        """Return whether no script was named."""
        return self.module is None and (not self.words or self.words[0].startswith("-"))

    @property
    def mode(self) -> str:
        """Return the launcher's name."""
        return self.launcher or DEFAULT

    @property
    def drives(self) -> bool:
        """Return whether the run is a single process that makes the launcher start others."""
        return launcher_of(self.mode).drives(built_in=self.built_in, search=self.search is not None)

    @property
    def on_cpu(self) -> bool:
        """Return whether the run uses no GPUs."""
        of_job = value_of(self.words, "--device") if self.built_in else None
        return "cpu" in (self.device, of_job) or self.env.get(VISIBLE) in NONE_VISIBLE

    @property
    def engine(self) -> str | None:
        """Return the engine of the built-in job's steps. `None`: not set."""
        return value_of(self.words, ENGINE) if self.built_in else None

    @property
    def job_words(self) -> tuple[str, ...]:
        """Return the built-in job's options, with the chosen device."""
        if value_of(self.words, "--device") is not None:
            return self.words
        device = "cpu" if self.on_cpu else self.device
        return self.words if device is None else ("--device", device, *self.words)

    @property
    def names_packages(self) -> bool:
        """Return whether options name the packages to install."""
        return bool(self.pip or self.requirements or self.wheels)

    @property
    def rank_env(self) -> Mapping[str, str]:
        """Return the variables of the ranks."""
        hidden = {VISIBLE: ""} if self.on_cpu and not self.built_in else {}
        return {**self.env, **hidden, **self._hang_env}

    @property
    def _hang_env(self) -> Mapping[str, str]:
        """Return the variable with the time after which the run counts as hung. Empty: its own steps decide."""
        if self.hang_after is None:
            return {}
        return {HANG_AFTER_VARIABLE: HANG_OFF if self.hang_after == "off" else f"{self.hang_after:g}"}

    @property
    def ends_hung(self) -> bool:
        """Return whether the run is stopped if it hangs."""
        return self.on_hang in ("stop", "restart")

    @property
    def elastic(self) -> bool:
        """Return whether the number of machines may vary, within limits."""
        return self.min_nodes is not None

    @property
    def continues(self) -> bool:
        """Return whether other runs may follow the first one, so that gpuctl has to stay."""
        return self.max_restarts > 0 or self.elastic

    @property
    def max_nodes(self) -> int:
        """Return the maximum number of machines during the job. 0: the number at its start."""
        return (self.nnodes or 0) if self.elastic else 0

    @property
    def nnodes_text(self) -> str:
        """Return the value of --nnodes as typed: `4`, `1:4`. Empty: not typed."""
        lowest = "" if self.min_nodes is None else f"{self.min_nodes}:"
        return f"{lowest}{self.nnodes}" if self.nnodes is not None else ""

    @property
    def folder(self) -> Path:
        """Return the folder whose copy is the script's working folder."""
        return (self.project or Path.cwd()).resolve()

    def options(self, root: Path | None = None) -> RunOptions:
        """Return the options for the run's record. `root`: the folder to send. `None`: the built-in job's."""
        recorded = {field.name: getattr(self, field.name) for field in fields(RunOptions)}
        return RunOptions(**recorded | {
            "project": None if self.built_in else str(self.folder),
            "root": None if self.built_in or root is None else str(root),
            "include": tuple(str(self.folder / path) for path in self.include),
            "nproc_per_node": self.nproc_per_node if isinstance(self.nproc_per_node, int) else None,
            "device": "cpu" if self.device == "cpu" and not self.built_in else None,
            "env": tuple(sorted(self.env)),
            "tags": dict(self.tags),
            "requirements": str(self.requirements.absolute()) if self.requirements else None,
            "wheels": str(self.wheels.absolute()) if self.wheels else None,
            "hang_after": self._hang_env.get(HANG_AFTER_VARIABLE),
        })  # fmt: skip


def candidates_of(
    inventory: Inventory,
    request: TrainRequest,
    usable: Collection[str] | None = None,
    preferred: Collection[str] = (),
) -> tuple[Sequence[Machine], int]:
    """Return the machines that can take part, the preferred first, and how many of them the run takes.

    Each machine has the interpreter of the request. `usable`: names of the machines that can take part, of which
    fewer than `nnodes` suffice. `None`: all must. Raises Usage for too few.
    """
    try:
        named = {inventory.machine(name).name for name in request.nodes}  # two names may mean one machine
    except NotFound as error:
        [name, *more] = request.nodes
        if name.isdigit() and not more:
            error.args = (f"{error} --nodes names nodes; their number is --nnodes {name}.",)
        raise
    chosen = [m for m in inventory.machines if not request.nodes or m.name in named]
    machines = [machine for machine in chosen if usable is None or machine.name in usable]
    machines.sort(key=lambda machine: (machine.name not in preferred, machine.rank))
    min_count = request.min_nodes or 1
    # A part of a node is enough unless more nodes are named.
    count = request.nnodes or (1 if request.gpus and not request.nodes else len(machines))
    if request.elastic or usable is not None:
        count = min(count, len(machines))
    if request.nodes and count > len(machines):
        raise Usage(
            f"--nnodes {count} is not possible: --nodes names {plural(len(machines), 'node')}. Name more, or leave "
            "--nnodes out."
        )
    if not min_count <= count <= len(machines):
        raise Usage(
            f"--nnodes {request.nnodes_text or count} is not possible: the cluster {inventory.cluster} has "
            f"{plural(len(machines), 'node')}. Add some with: gpuctl up --count {max(count, min_count)}"
        )
    if request.python:
        machines = [replace(machine, python=request.python) for machine in machines]
    return machines, count


def is_auto(request: TrainRequest) -> bool:
    """Return whether gpuctl is to choose the strategy of the built-in job."""
    return request.built_in and value_of(request.words, STRATEGY) == AUTO


def with_plain_strategy(request: TrainRequest) -> TrainRequest:
    """Return the request with a strategy that any machines can have in place of `auto`."""
    if not is_auto(request):
        return request
    words = [f"{STRATEGY}={PLAIN}" if word == f"{STRATEGY}={AUTO}" else word for word in request.words]
    plain_words = (
        PLAIN if word == AUTO and before == STRATEGY else word
        for before, word in zip(["", *words[:-1]], words, strict=True)
    )
    return replace(request, words=tuple(plain_words))


def check_built_in(words: Sequence[str]) -> None:
    """Raise Usage for options that the built-in job would refuse, before anything is launched."""
    if value_of(words, STRATEGY) == AUTO:
        raise Usage("--strategy auto is for gpuctl train: name a strategy that gpuctl advise shows.")
    try:
        ask_built_in("check", words)
    except Usage as error:
        if "--json" not in words:
            raise
        raise Usage(f"{error} gpuctl's own --json goes before --: gpuctl train --json -- …") from error


def check_together(request: TrainRequest) -> None:
    """Raise Usage for options that contradict each other."""
    of_job = value_of(request.words, "--device") if request.built_in else None
    if request.device is not None and of_job not in (None, request.device):
        raise Usage(
            f"--device {request.device} and --device {of_job} after -- contradict each other: leave one out."
        )
    if request.python and request.names_packages:
        raise Usage(
            "--python uses an interpreter as it is, and installs nothing: leave it out, or leave out --pip, "
            "--requirements and --wheels."
        )


def check_request(request: TrainRequest) -> None:
    """Raise Usage for options of `gpuctl train` that exclude each other."""
    check_together(request)
    if request.fresh and request.share_outputs:
        raise Usage(
            "--fresh puts aside what earlier runs wrote, and --share-outputs puts it on all nodes: leave one out."
        )
    if request.built_in and (request.fresh or request.share_outputs):
        raise Usage(
            "--fresh and --share-outputs are for a script of yours; the built-in job writes no such files."
        )
    if request.ends_hung and request.hang_after == "off":
        raise Usage(f"--on-hang {request.on_hang} needs the watch: leave out --hang-after off.")
    if request.ends_hung and request.detach:
        raise Usage(f"--on-hang {request.on_hang} needs gpuctl to stay: leave out --detach.")
    if request.gpu_below_s is not None and request.gpu_below is None:
        raise Usage(
            "--for is the time of --end-if-gpu-below: give --end-if-gpu-below, too, or leave --for out."
        )
    if request.gpu_below is not None and request.on_cpu:
        raise Usage("--end-if-gpu-below needs GPUs, and the run uses none: leave it out.")
    if request.gpu_below is not None and request.drives:
        raise Usage(
            "--end-if-gpu-below measures the nodes of the ranks, and a script that drives Ray computes on others, "
            "too: leave it out."
        )
    if request.elastic and (request.nodes or request.gpus):
        option = "--nodes" if request.nodes else "--gpus"
        raise Usage(
            f"--nnodes {request.nnodes_text} takes every machine that comes, and {option} does not: leave one out."
        )
    if request.gpus:
        if request.mode != "torchrun":
            raise Usage("--gpus is for --mode torchrun: the Ray of a cluster has all GPUs of its nodes.")
        if request.on_cpu:
            raise Usage("--gpus takes GPUs, and the run uses none: leave it out.")
        if VISIBLE in request.env:
            raise Usage(f"--gpus sets {VISIBLE}: leave out --env {VISIBLE}.")
    if request.on_hang == "restart" and request.max_restarts == 0:
        raise Usage("--on-hang restart counts as one of --max-restarts: give --max-restarts N.")
    if request.continues and request.detach:
        option = "--max-restarts" if request.max_restarts else f"--nnodes {request.nnodes_text}"
        raise Usage(
            f"{option} needs gpuctl to stay: it is what starts the next run. Leave out --detach; a terminal "
            "multiplexer (tmux) keeps gpuctl going."
        )


def home_note(words: Sequence[str], provider: str) -> str | None:
    """Return a note on a --data-dir in this computer's home: the shell may have replaced its `~`. `None`: no note."""
    option = next((name for name in DATA_OPTIONS if value_of(words, name) is not None), DATA_OPTIONS[0])
    folder = value_of(words, option)
    if folder is None or not Path(folder).is_relative_to(Path.home()):
        return None
    if provider == "local" and Path(folder).exists():
        return None
    in_home = Path(folder).relative_to(Path.home())
    return (
        f"note: {option} {folder} is in the home of this computer. For a folder in the nodes' homes, put it in "
        f"quotes, which keep the shell from replacing it: {option} '~/{in_home}'"
    )


def value_of(words: Sequence[str], option: str) -> str | None:
    """Return the last value of the built-in job's option, `--option VALUE` or `--option=VALUE`. `None`: not typed."""
    last = None
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name == option:
            last = value if equals else following
    return last


def built_in_help() -> int:
    """Print the built-in job's own options, on this computer: its parser needs no torch."""
    from remote.launchers.rank_command import built_in_tree

    return subprocess.run(
        [sys.executable, "-m", "train", "--help"], cwd=built_in_tree().root, check=False
    ).returncode
