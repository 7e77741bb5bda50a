"""A cluster as an object: the commands about one cluster are its methods."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

from gpuctl.app import App
from gpuctl.errors import Attention, Interrupted, Usage
from gpuctl.workflow.machines import access
from gpuctl.workflow.machines.connect import load_inventory

if TYPE_CHECKING:
    from gpuctl.command_results.clusters import ClusterStatus, DownResult
    from gpuctl.command_results.nodes import CommandResult, Pulled, Pushed
    from gpuctl.command_results.runs import AdviceRow, LogLine, RunInfo
    from gpuctl.library.keywords import AdviseOptions, BenchOptions, File, TrainOptions
    from gpuctl.workflow.jobs.bench import BenchResult
    from inventories.disk.store import ClusterFolder
    from inventories.machine import MachineInfo
    from inventories.runs.hang import Hang
    from inventories.runs.result import Result
    from remote.transport.fabric_connection import PinnedConnection, PinnedGroup


class Cluster:
    """A cluster of this computer, made by `gpuctl.up` or found by `gpuctl.cluster`.

    As a context manager it is brought down at the end of the block, also by an exception, unless `keep` is True.
    While a run is active that this object did not start, the end of the block removes nothing, and Attention names
    the run and the machines; `down` stops such a run.
    """

    def __init__(self, app: App, *, keep: bool = False) -> None:
        self._app = app
        self._opened: list[PinnedConnection | PinnedGroup] = []
        self._is_down = False
        self.keep = keep

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self._app.options.cluster

    @property
    def machines(self) -> "tuple[MachineInfo, ...]":
        """The machines by rank, as `up` left them. Raises NotFound for an unknown cluster."""
        return tuple(machine.public() for machine in load_inventory(self._folder, empty=True).machines)

    @property
    def _folder(self) -> "ClusterFolder":
        return self._app.store.cluster(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close()
            if not self.keep and not self._is_down:
                self._down(only_own_runs=True)
        except BaseException as failed:
            if not (self.keep or self._is_down or isinstance(failed, Attention)):
                failed.add_note(
                    f"gpuctl: machines may be there: gpuctl.cluster({self.name!r}).down() continues"
                )
            if error is None or not isinstance(failed, Exception):
                raise
            self._app.output.error(str(failed))
            error.add_note(f"gpuctl: {failed}")

    def __repr__(self) -> str:
        return f"<Cluster {self.name}>"

    def status(self) -> "ClusterStatus":
        """Return the machines with their real state, price, age and runs, asked of the provider."""
        from gpuctl.workflow.clusters.status import status_of

        return status_of(self._app, self._folder)

    def train(
        self, script: "File | None" = None, args: Sequence[object] = (), **options: Unpack["TrainOptions"]
    ) -> "Result":
        """Run a script, a module (`module=`) or the built-in job to its end, and return its result.

        `args`: the script's, module's or built-in job's, made text. A run that fails is returned with `status`
        `failed` and its `first_error`; with `detach=True` one that has started is returned as `running`. Raises Usage
        for what can't be run, PreflightFailed for what would fail later, Interrupted with the stopped run as its
        `result` after Ctrl-C.
        """
        from gpuctl.library.options import train_request
        from gpuctl.option_table.values import several
        from gpuctl.workflow.jobs.train import train

        words = [str(arg) for arg in several("args", args)]
        if script is not None:
            if options.get("module") is not None:
                raise Usage("A script and a module were named: leave out one of them.")
            # As a project is a folder of its own, its script is one in it.
            words.insert(0, str(Path(options.get("project") or ".") / script))
        elif options.get("module") is None and words and not words[0].startswith("-"):
            raise Usage(
                f"{words[0]!r} is no option of the built-in job. A script is the first argument of train."
            )
        job = train(self._app, train_request(words, options))
        if job.interrupted:
            sentence = f"Run {job.result.run} was interrupted: it is {job.result.status}."
            raise Interrupted(sentence, result=job.result)
        return job.result

    def bench(self, args: Sequence[object] = (), **options: Unpack["BenchOptions"]) -> "BenchResult":
        """Measure a script or the built-in job on one layout after the other; return its scaling and cost.

        `args`: the script and its arguments, or the built-in job's options. Raises Interrupted after Ctrl-C, with the
        measurements so far; a failed run ends it with `status` `failed`.
        """
        from gpuctl.library.options import bench_request
        from gpuctl.option_table.values import several
        from gpuctl.workflow.jobs.bench import bench

        words = [str(arg) for arg in several("args", args)]
        result = bench(self._app, bench_request(words, options)).document()
        if result.status == "stopped":
            raise Interrupted("The benchmark was interrupted.", result=result)
        return result

    def advise(self, args: Sequence[str], **options: Unpack["AdviseOptions"]) -> "tuple[AdviceRow, ...]":
        """Return with which strategy a model fits on these machines, how fast and for how much.

        As `gpuctl.advise`, by the GPUs that the nodes report: `cluster.advise(["--model", "gpt-1b"])`. Raises Usage
        for `shapes`, `provider` and `region`, and if the nodes report no GPUs or different ones.
        """
        from gpuctl.library.options import advise_request
        from gpuctl.option_table.values import several
        from gpuctl.workflow.jobs.advise import advise_cluster

        return advise_cluster(self._app, advise_request(several("args", args), options)).rows

    def exec(
        self, command: str | Sequence[str], *, rank: int | str | None = None
    ) -> "tuple[CommandResult, ...]":
        """Run a command on every node at once, or on one (by number or name), and return its output on each node.

        `command`: a shell command line, or the words of an argv. A node that can't be reached has an `error`. Raises
        Usage for an empty command.
        """
        line = command if isinstance(command, str) else shlex.join(command)
        if not line.strip():
            raise Usage("There is no command to run: give a shell command line, or the words of one.")
        return tuple(access.execute(self._app, (line,), _name(rank)))

    def push(
        self,
        source: "File",
        destination: str | None = None,
        *,
        rank: int | str | None = None,
        into_project: bool = False,
        allow_large: bool = False,
    ) -> "tuple[Pushed, ...]":
        """Copy a file or folder into a folder of every node, or of one; return what each node got.

        `destination`: default: the node's home. `into_project`: its own place in the copy that `train` makes of the
        current folder's project. `allow_large`: a folder of any size is sent; else one that is too large is refused.
        """
        if into_project and destination is not None:
            raise Usage("--into-project says where it goes: leave out the destination.")
        where = None if into_project else destination or "~"
        return tuple(access.push(self._app, Path(source), where, _name(rank), allow_large=allow_large))

    def pull(
        self,
        source: str,
        destination: "File" = ".",
        *,
        rank: int | str | None = None,
        replace: bool = False,
    ) -> "tuple[Pulled, ...]":
        """Copy a file or folder of every node into `destination`/<node>, or of one node into `destination`.

        `replace`: replace files there that have other content. Otherwise Usage names them, and nothing is copied.
        """
        return tuple(access.pull(self._app, source, Path(destination), _name(rank), replace=replace))

    def logs(
        self, run: str | None = None, *, follow: bool = False, rank: int | None = None
    ) -> "Iterator[LogLine]":
        """Return an iterator over the lines of a run's log, of all ranks or one; the latest run unless named.

        `follow`: to the run's end. Leaving the iterator early leaves the run alone. Raises Usage for a run of another
        cluster.
        """
        from gpuctl.library.log_following import log_lines

        return log_lines(self._app, self._own(run), follow=follow, rank=rank)

    def runs(self) -> "tuple[RunInfo, ...]":
        """Return the cluster's runs, the latest last."""
        from gpuctl.workflow.runs.unfinished_runs import overview

        return tuple(overview(self._app, self.name))

    def why(self, run: str | None = None) -> "Hang":
        """Return why a run makes no progress: who waits for whom, and the stacks of all ranks.

        The latest run unless named, which continues. Raises Usage for a run of another cluster.
        """
        from gpuctl.workflow.runs.why import why

        return why(self._app, self._own(run))

    def stop(
        self,
        run: str | None = None,
        *,
        stop_grace: str | None = None,
        signal: Literal["term", "int"] = "term",
    ) -> "Result":
        """Stop a run on every node and return its result; the only active run unless named.

        `stop_grace`: time for ranks to save before they are killed, such as `5m`. Default: as its launch set.
        `signal`: `int` sends the ranks SIGINT, which Python raises as KeyboardInterrupt.

        Machines that were started for runs end, as with the command. Raises Attention, with that result, if a node
        did not get the order, and Usage for a run of another cluster, another signal, or several active runs.
        """
        if signal not in ("term", "int"):
            raise Usage(f"signal is 'term' or 'int', not {signal!r}.")
        from gpuctl.workflow.jobs.scale_for_run import end_idle_machines
        from gpuctl.workflow.runs.stop import stop
        from inventories.specs.checks import check_stop_grace_s

        grace_s = None if stop_grace is None else check_stop_grace_s(stop_grace)
        result, errors = stop(self._app, self._own(run), grace_s, interrupted=signal == "int")
        if errors or result.status == "running":
            why = (
                "\n".join(errors)
                or f"Run {result.run} may still be active: `gpuctl stop {result.run}` tries again."
            )
            raise Attention(why, result=result)
        end_idle_machines(self._app, "stop", self._folder)
        return result

    def down(self, *, forget: bool = False) -> "DownResult":
        """Stop all runs, remove the machines, forget the cluster; return the removed resources. Results stay.

        Runs are stopped without a question, whoever started them. Succeeds without anything to remove. `forget`: also
        forget machines of provider hosts whose firewall can't be restored, and pods whose Kubernetes cluster is gone.
        Raises Attention, which names resources that could not be removed.
        """
        return self._down(forget=forget)

    def _down(self, *, forget: bool = False, only_own_runs: bool = False) -> "DownResult":
        from gpuctl.workflow.clusters.down import down

        self._close()
        started_here = self._app.started_runs if only_own_runs else None
        done = down(self._app, forget=forget, may_stop=started_here)
        if done.leftovers:
            named = "; ".join(f"{left.kind} {left.id}: {left.reason}" for left in done.leftovers)
            raise Attention(
                f"Not all of the cluster {done.cluster} could be removed, and it may be billed: {named}. "
                f"`gpuctl down --cluster {done.cluster}` tries again.",
                result=done,
            )
        self._is_down = True
        return done

    def connection(self, node: int | str = 0) -> "PinnedConnection":
        """Return a `fabric.Connection` to a node (by number or name), its host key pinned; opened when it is used.

        Closed at the end of the cluster's `with` block, by `down`, or by its own `close`.
        """
        from remote.transport.fabric_connection import PinnedConnection

        (machine,) = access.with_ssh(access.chosen(self._app, str(node)))
        box = PinnedConnection(machine, self._folder)
        self._opened.append(box)
        return box

    def group(self) -> "PinnedGroup":
        """Return a `fabric.Group` of all nodes, by rank. Closed as a `connection` is."""
        from remote.transport.fabric_connection import PinnedGroup

        group = PinnedGroup(access.with_ssh(access.chosen(self._app, None)), self._folder)
        self._opened.append(group)
        return group

    def _own(self, run: str | None) -> str | None:
        """The whole id of a run that was named. Raises NotFound, and Usage for one of another cluster."""
        if run is None:
            return None
        folder = self._app.store.run(run, self.name)
        cluster = folder.load_run().cluster
        if cluster != self.name:
            raise Usage(
                f"Run {folder.id} is one of the cluster {cluster}, not of {self.name}: use "
                f"gpuctl.cluster({cluster!r})."
            )
        return folder.id

    def _close(self) -> None:
        """Close the connections that were given out. One that can't be closed keeps nothing else from its end."""
        while self._opened:
            try:
                self._opened.pop().close()
            except Exception as error:  # noqa: BLE001 - a connection's end is not worth the machines
                self._app.output.detail(f"a connection could not be closed: {error!r}")


def _name(rank: int | str | None) -> str | None:
    return None if rank is None else str(rank)
