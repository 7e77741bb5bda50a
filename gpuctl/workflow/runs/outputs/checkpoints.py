"""Where the checkpoints of earlier runs lie, and which of them a run resumes from."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from gpuctl.workflow.machines.connect import load_inventory
from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Machine
from inventories.runs.end_reasons import Reason
from inventories.runs.run import Checkpoints, Run, RunNode
from inventories.text import plural

if TYPE_CHECKING:
    from remote.files.checkpoints import Held


@dataclass(frozen=True, kw_only=True)
class Location:
    """A machine that may have checkpoints."""

    cluster: ClusterFolder
    machine: Machine

    @property
    def key(self) -> str:
        """Of no other location: clusters may name machines alike."""
        return f"{self.cluster.name}/{self.machine.name}"


Picked: TypeAlias = tuple[Run, Checkpoints, tuple[Location, ...]]
"""A run, what there is of its checkpoints, and the machines that have them; none: only this computer has.

Where the checkpoints lack something, each of the machines has a part of them, and the first tells what is lacking.
"""


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The run that another resumes, and where its checkpoints lie."""

    run: Run
    source: Run | None
    """Whose checkpoints are taken: the run's, or those that it resumed itself. `None`: there are none."""
    found: Checkpoints | None = None
    """What there is of them."""
    locations: tuple[Location, ...] = ()
    """Machines that have them; where `found` lacks something, a part each. `None`: they were brought here."""
    answering: frozenset[str] = frozenset()
    """Names of the cluster's machines that were reached."""
    unknown: Run | None = None
    """A later run, or the same, that may have left newer ones on a node that did not answer."""
    unknown_node: str = ""
    """The name of that node."""

    @property
    def nodes(self) -> frozenset[str]:
        """Return the names of the earlier run's machines that were reached. These need no copy of a checkpoint."""
        return self.answering & {part.name for part in self.run.nodes}


@dataclass(frozen=True, kw_only=True)
class CheckpointSurvey:
    """What the machines say of some runs' checkpoints."""

    runs: Sequence[Run]
    locations: Mapping[str, Location]
    """Key → machine that was asked."""
    found: Mapping[str, Sequence[Checkpoints | None]]
    """Key → what the machine has of each run; those that could not be asked are missing."""
    here: Sequence[Checkpoints | None]
    """What this computer has of each run."""
    errors: Mapping[str, str]
    """Key → why the machine could not be asked."""
    parts: Mapping[str, Sequence[frozenset[str]]] = field(default_factory=dict)
    """Key → the files of each run's checkpoints that ranks wrote each for itself, as far as the machine has them."""
    mirrored: frozenset[str] = frozenset()
    """Ids of runs of which what is here was brought while they went on: their first nodes may have newer ones."""

    def answering(self, cluster: ClusterFolder) -> frozenset[str]:
        """Names of the cluster's machines that were asked and told."""
        asked = (self.locations[key] for key in self.found)
        return frozenset(there.machine.name for there in asked if there.cluster == cluster)

    def only(self, wanted: Collection[str]) -> "CheckpointSurvey":
        """What they say of those of the runs whose ids are wanted."""
        kept = [at for at, run in enumerate(self.runs) if run.run in wanted]
        return replace(
            self,
            runs=[self.runs[at] for at in kept],
            found={key: [said[at] for at in kept] for key, said in self.found.items()},
            here=[self.here[at] for at in kept],
            parts={key: [said[at] for at in kept] for key, said in self.parts.items()},
        )

    def wrote(self) -> frozenset[str]:
        """Ids of the runs but for those that wrote none themselves: what is there of one is what was placed for it.

        Where the run that one resumed is not among these, or a node that does not answer may have more of it,
        it counts as one that wrote.
        """
        runs = {run.run: at for at, run in enumerate(self.runs)}
        idle = set()
        for at, run in enumerate(self.runs):
            before = runs.get(run.resumed_from or "")
            left = self._known(at)[:1] if self._on_nodes(at) or run.run not in self.mirrored else []
            if before is not None and any(
                _is_copy(run, one, other) for one in left for other in self._known(before)
            ):
                idle.add(run.run)
        return frozenset(runs).difference(idle)

    def _on_nodes(self, at: int) -> dict[str, Checkpoints]:
        """Key → what the machine has of a run, alone or together with others; what is whole on one comes first.

        What no machines have together is left out.
        """
        keys = _first_node_first(self.found, self.runs[at])
        told = {key: said for key in keys if (said := self.found[key][at]) is not None}
        alone = {
            key: replace(said, lacks=())
            for key, said in told.items()
            if self._parts(key, at).issuperset(said.lacks)
        }
        return alone | {
            key: said
            for key, said in told.items()
            if key not in alone and self._together(at).issuperset(said.lacks)
        }

    def _parts(self, key: str, at: int) -> frozenset[str]:
        return self.parts[key][at] if key in self.parts else frozenset()

    def _together(self, at: int) -> frozenset[str]:
        return frozenset().union(*(runs[at] for runs in self.parts.values()))

    def _known(self, at: int) -> list[Checkpoints]:
        """What there is of a run, what counts first."""
        here = self.here[at]
        return [*self._on_nodes(at).values(), *([] if here is None or here.lacks else [here])]

    def pick(self) -> Picked | None:
        """The first run of which there are any."""
        for at, run in enumerate(self.runs):
            if known := self._known(at):
                return run, known[0], tuple(self.locations[key] for key in self._holders(at, known[0]))
        return None

    def _holders(self, at: int, found: Checkpoints) -> list[str]:
        """Keys of the machines that have all of it; where none has, of those that have it together."""
        told = self._on_nodes(at)
        if not found.lacks:
            return [key for key, one in told.items() if not one.lacks]
        parts = [key for key in self.parts if self._parts(key, at).intersection(found.lacks)]
        return [*told, *(key for key in parts if key not in told)]

    def torn(self) -> list[tuple[Run, Sequence[str]]]:
        """Runs of whose newest checkpoint files are lacking on all machines that answer, and these files."""
        found: list[tuple[Run, Sequence[str]]] = []
        for at, run in enumerate(self.runs):
            told = [said for runs in self.found.values() if (said := runs[at]) is not None]
            if told and not self._on_nodes(at):
                found.append((run, sorted(set(told[0].lacks) - self._together(at))))
        return found

    def unknown(self) -> tuple[Run, str, str] | None:
        """The first run that may have newer ones than those to pick on a node that did not answer, that, and why."""
        asked, torn = list(self.runs), {run.run: missing for run, missing in self.torn()}
        if (picked := self.pick()) is not None:
            source, found, locations = picked
            del asked[asked.index(source) :]
            newer = any(not name.startswith(f"{found.newest}/") for name in torn.get(source.run, ()))
            if not locations and (newer or source.run in self.mirrored):
                asked.append(source)
        for run in asked:
            for part in run.nodes if run.run in torn else run.nodes[:1]:
                if error := self.errors.get(f"{run.cluster}/{part.name}"):
                    return run, part.name, error
        return None


def _is_copy(run: Run, one: Checkpoints, before: Checkpoints) -> bool:
    """Whether the newest of a run is that of the one it resumed.

    Copies keep their times, but for those that were brought here. The built-in job names each by its step, and never
    writes one anew. Where other nodes wrote parts, it is no copy.
    """
    same_time = one.written_ns == before.written_ns and not one.lacks
    return one.newest == before.newest and (run.built_in or same_time)


def survey_checkpoints(
    store: Store,
    own: ClusterFolder,
    runs: Sequence[Run],
    *,
    unfinished: Mapping[str, Sequence[RunNode]] | None = None,
) -> CheckpointSurvey:
    """Ask every machine of the cluster at once, and the nodes of runs of other clusters that may have any.

    `unfinished`: name of a machine of the cluster `own` → its parts of runs of which it did not tell how they ended;
    it ends them first.
    """
    from remote.fanout import fan_out
    from remote.files import checkpoints
    from remote.runs.node_state import stop_on_node
    from remote.runs.run_files import mirrored_path, written_parts
    from remote.sessions.connect import connect

    locations = [
        Location(cluster=own, machine=machine) for machine in load_inventory(own, empty=True).machines
    ]
    locations += _of_other_clusters(store, own, runs)

    def one(there: Location) -> "list[Held]":
        with connect(there.machine, there.cluster) as node:
            for part in (unfinished or {}).get(node.name, ()) if there.cluster == own else ():
                stop_on_node(node, part, reason=Reason.PEER_FAILED)  # nobody ordered it
            return checkpoints.on_node(node, runs)

    outcomes = fan_out(one, {there.key: there for there in locations})
    told = {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}
    held = [
        checkpoints.as_one_set(
            run,
            {key: told[key][at] for key in _first_node_first(told, run)},
            [
                name
                for node, names in written_parts(store.run(run.run)).items()
                if f"{run.cluster}/{node}" not in told
                for name in names
            ],
        )
        for at, run in enumerate(runs)
    ]
    return CheckpointSurvey(
        runs=runs,
        locations={there.key: there for there in locations},
        found={key: [of_run[key].found for of_run in held] for key in told},
        parts={key: [frozenset(of_run[key].parts) for of_run in held] for key in told},
        here=[checkpoints.in_folder(store.run(run.run).checkpoints_path, run) for run in runs],
        errors={outcome.node: str(outcome.error) for outcome in outcomes if outcome.error is not None},
        mirrored=frozenset(run.run for run in runs if mirrored_path(store.run(run.run)).exists()),
    )


def _first_node_first(keys: Iterable[str], run: Run) -> list[str]:
    """Return the keys of machines by their ranks in the run; machines that had no part in it come last."""
    ranks = {f"{run.cluster}/{part.name}": part.rank for part in run.nodes}
    return sorted(keys, key=lambda key: ranks.get(key, len(ranks)))


def _of_other_clusters(store: Store, own: ClusterFolder, runs: Sequence[Run]) -> list[Location]:
    """The nodes that may have checkpoints of runs that took place elsewhere, in clusters that are still there."""
    locations: dict[str, Location] = {}
    for run in runs:
        cluster = store.cluster(run.cluster)
        if cluster.name == own.name or not cluster.exists():
            continue
        for machine in cluster.load().machines:
            if machine.name in {part.name for part in run.nodes}:
                there = Location(cluster=cluster, machine=machine)
                locations[there.key] = there
    return list(locations.values())


def has_them(point: ResumePoint, run: Run, node: str) -> bool:
    """Return whether a node of the run has all of the checkpoints itself."""
    if point.found is not None and point.found.lacks:
        return False
    return f"{run.cluster}/{node}" in {there.key for there in point.locations}


def resume_line(point: ResumePoint, run: Run) -> str:
    """Return `run B (my.py) resumes from step-000040.pt of run A on 1 node`, and what may surprise about it."""
    what = f"run {run.run} ({run.script})"
    where = plural(len(run.nodes), "node") + _other_ranks(point.source or point.run, run)
    if point.source is None or point.found is None:
        nothing = f"no checkpoint of run {point.run.run} is in reach"
        return f"{what} starts from the beginning on {where}: {nothing}{_unknown(point, 'some')}"
    newest = "checkpoints" if point.found.newest == "." else point.found.newest
    line = f"{what} resumes from {newest} of run {point.source.run} on {where}"
    if not point.locations:
        line += ", with what was brought here"
    elif point.found.lacks:
        line += f", brought from {', '.join(there.machine.name for there in point.locations)}"
    elif not has_them(point, run, run.nodes[0].name):
        line += f", brought from {point.locations[0].machine.name}"
    if torn := point.found.torn:
        names = ", ".join(torn[:3])
        line += f"; {names} {'is' if len(torn) == 1 else 'are'} only half written, and left out"
    return line + _unknown(point, "newer ones")


def _other_ranks(before: Run, run: Run) -> str:
    """`, 1 rank instead of 2`, and what that does to the built-in job; empty where there are as many."""
    if run.world_size == before.world_size:
        return ""
    ranks = f", {plural(run.world_size, 'rank')} instead of {before.world_size}"
    if not run.built_in or any(word.split("=")[0] == "--global-batch-size" for word in run.args):
        return ranks
    return f"{ranks} (the global batch changes with them unless --global-batch-size is given)"


def _unknown(point: ResumePoint, what: str) -> str:
    run = point.unknown
    if run is None:
        return ""
    lost = point.unknown_node or run.nodes[0].name
    if run == point.source:
        return f"; {lost}, which does not answer, may have {what}"
    return f"; run {run.run} may have left {what} on {lost}, which does not answer"
