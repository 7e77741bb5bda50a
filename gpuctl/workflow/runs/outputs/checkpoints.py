"""Locate the checkpoints of earlier runs, and pick the checkpoints that a run resumes from."""

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
        """Return a unique key: machines of two clusters may have the same name."""
        return f"{self.cluster.name}/{self.machine.name}"


Picked: TypeAlias = tuple[Run, Checkpoints, tuple[Location, ...]]
"""A run, its checkpoints, and the machines that have them. Empty: only this computer has them.

If the checkpoints lack files, each of the machines has a part of them, and the first one lists the lacking files."""


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The run that another resumes, and where its checkpoints lie."""

    run: Run
    source: Run | None
    """The run whose checkpoints are used: `run`, or one that it resumed. `None`: no checkpoints."""
    checkpoints: Checkpoints | None = None
    """The checkpoints of `source`."""
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
    """The machines' answers on the checkpoints of some runs."""

    runs: Sequence[Run]
    locations: Mapping[str, Location]
    """Key → machine."""
    by_machine: Mapping[str, Sequence[Checkpoints | None]]
    """Key → the machine's checkpoints of each run, without machines that did not answer."""
    local: Sequence[Checkpoints | None]
    """This computer's checkpoints of each run."""
    errors: Mapping[str, str]
    """Key → why the machine could not be asked."""
    parts: Mapping[str, Sequence[frozenset[str]]] = field(default_factory=dict)
    """Key → the files of each run's checkpoints that ranks wrote each for itself, as far as the machine has them."""
    mirrored: frozenset[str] = frozenset()
    """Ids of runs whose local files were copied during the run: their first nodes may have newer ones."""

    def answering(self, cluster: ClusterFolder) -> frozenset[str]:
        """Return the names of the cluster's machines that answered."""
        locations = (self.locations[key] for key in self.by_machine)
        return frozenset(location.machine.name for location in locations if location.cluster == cluster)

    def only(self, ids: Collection[str]) -> "CheckpointSurvey":
        """Return the survey of the runs with these ids."""
        indexes = [at for at, run in enumerate(self.runs) if run.run in ids]
        return replace(
            self,
            runs=[self.runs[at] for at in indexes],
            by_machine={key: [of_runs[at] for at in indexes] for key, of_runs in self.by_machine.items()},
            local=[self.local[at] for at in indexes],
            parts={key: [of_runs[at] for at in indexes] for key, of_runs in self.parts.items()},
        )

    def wrote(self) -> frozenset[str]:
        """Return the ids of the runs that wrote checkpoints themselves.

        Others only have copies of the run that they resumed. A run counts as writing if its earlier run is not in
        the survey, or a silent node may have more files.
        """
        runs = {run.run: at for at, run in enumerate(self.runs)}
        idle = set()
        for at, run in enumerate(self.runs):
            before = runs.get(run.resumed_from or "")
            left = self._known(at)[:1] if self._on_nodes(at) or run.run not in self.mirrored else []
            if before is not None and any(
                _is_copy(run, checkpoints, earlier) for checkpoints in left for earlier in self._known(before)
            ):
                idle.add(run.run)
        return frozenset(runs).difference(idle)

    def _on_nodes(self, at: int) -> dict[str, Checkpoints]:
        """Return key → a run's checkpoints on the machine, if whole or completed by other machines.

        Whole ones come first. Checkpoints that all machines together can't complete are left out.
        """
        keys = _first_node_first(self.by_machine, self.runs[at])
        answers = {key: checkpoints for key in keys if (checkpoints := self.by_machine[key][at]) is not None}
        alone = {
            key: replace(checkpoints, lacks=())
            for key, checkpoints in answers.items()
            if self._parts(key, at).issuperset(checkpoints.lacks)
        }
        return alone | {
            key: checkpoints
            for key, checkpoints in answers.items()
            if key not in alone and self._together(at).issuperset(checkpoints.lacks)
        }

    def _parts(self, key: str, at: int) -> frozenset[str]:
        return self.parts[key][at] if key in self.parts else frozenset()

    def _together(self, at: int) -> frozenset[str]:
        return frozenset().union(*(runs[at] for runs in self.parts.values()))

    def _known(self, at: int) -> list[Checkpoints]:
        """Return the usable checkpoints of a run, the preferred ones first."""
        local = self.local[at]
        return [*self._on_nodes(at).values(), *([] if local is None or local.lacks else [local])]

    def pick(self) -> Picked | None:
        """Return the first run with checkpoints."""
        for at, run in enumerate(self.runs):
            if known := self._known(at):
                return run, known[0], tuple(self.locations[key] for key in self._holders(at, known[0]))
        return None

    def _holders(self, at: int, picked: Checkpoints) -> list[str]:
        """Return the keys of machines with all of the checkpoints, or else of machines that have them together."""
        answers = self._on_nodes(at)
        if not picked.lacks:
            return [key for key, checkpoints in answers.items() if not checkpoints.lacks]
        parts = [key for key in self.parts if self._parts(key, at).intersection(picked.lacks)]
        return [*answers, *(key for key in parts if key not in answers)]

    def torn(self) -> list[tuple[Run, Sequence[str]]]:
        """Return the runs whose newest checkpoint lacks files on all machines that answer, and these files."""
        torn: list[tuple[Run, Sequence[str]]] = []
        for at, run in enumerate(self.runs):
            answers = [held for runs in self.by_machine.values() if (held := runs[at]) is not None]
            if answers and not self._on_nodes(at):
                torn.append((run, sorted(set(answers[0].lacks) - self._together(at))))
        return torn

    def unknown(self) -> tuple[Run, str, str] | None:
        """Return the first run that may have newer checkpoints on a silent node, this node, and its error."""
        runs, torn = list(self.runs), {run.run: missing for run, missing in self.torn()}
        if (picked := self.pick()) is not None:
            source, checkpoints, locations = picked
            del runs[runs.index(source) :]
            newer = any(not name.startswith(f"{checkpoints.newest}/") for name in torn.get(source.run, ()))
            if not locations and (newer or source.run in self.mirrored):
                runs.append(source)
        for run in runs:
            for part in run.nodes if run.run in torn else run.nodes[:1]:
                if error := self.errors.get(f"{run.cluster}/{part.name}"):
                    return run, part.name, error
        return None


def _is_copy(run: Run, checkpoints: Checkpoints, before: Checkpoints) -> bool:
    """Return whether a run's newest checkpoint is a copy from the run that it resumed.

    Copies keep their times, unless they were brought to this computer. The built-in job names each by its step, and
    never rewrites one. A checkpoint with parts on other nodes is no copy.
    """
    same_time = checkpoints.written_ns == before.written_ns and not checkpoints.lacks
    return checkpoints.newest == before.newest and (run.built_in or same_time)


def survey_checkpoints(
    store: Store,
    cluster: ClusterFolder,
    runs: Sequence[Run],
    *,
    unfinished: Mapping[str, Sequence[RunNode]] | None = None,
) -> CheckpointSurvey:
    """Ask every machine of the cluster at once, and the nodes of runs of other clusters that may have any.

    `unfinished`: name of a machine of `cluster` → its parts of runs without a reported
    end, which it ends first.
    """
    from remote.fanout import fan_out
    from remote.files import checkpoints
    from remote.runs.node_state import stop_on_node
    from remote.runs.run_files import mirrored_path, written_parts
    from remote.sessions.connect import connect

    locations = [
        Location(cluster=cluster, machine=machine) for machine in load_inventory(cluster, empty=True).machines
    ]
    locations += _of_other_clusters(store, cluster, runs)

    def ask(location: Location) -> "list[Held]":
        with connect(location.machine, location.cluster) as node:
            for part in (unfinished or {}).get(node.name, ()) if location.cluster == cluster else ():
                stop_on_node(node, part, reason=Reason.PEER_FAILED)  # nobody ordered it
            return checkpoints.on_node(node, runs)

    outcomes = fan_out(ask, {location.key: location for location in locations})
    answers = {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}
    held = [
        checkpoints.as_one_set(
            run,
            {key: answers[key][at] for key in _first_node_first(answers, run)},
            [
                name
                for node, names in written_parts(store.run(run.run)).items()
                if f"{run.cluster}/{node}" not in answers
                for name in names
            ],
        )
        for at, run in enumerate(runs)
    ]
    return CheckpointSurvey(
        runs=runs,
        locations={location.key: location for location in locations},
        by_machine={key: [of_run[key].found for of_run in held] for key in answers},
        parts={key: [frozenset(of_run[key].parts) for of_run in held] for key in answers},
        local=[checkpoints.in_folder(store.run(run.run).checkpoints_path, run) for run in runs],
        errors={outcome.node: str(outcome.error) for outcome in outcomes if outcome.error is not None},
        mirrored=frozenset(run.run for run in runs if mirrored_path(store.run(run.run)).exists()),
    )


def _first_node_first(keys: Iterable[str], run: Run) -> list[str]:
    """Return the keys of machines by their ranks in the run; machines that had no part in it come last."""
    ranks = {f"{run.cluster}/{part.name}": part.rank for part in run.nodes}
    return sorted(keys, key=lambda key: ranks.get(key, len(ranks)))


def _of_other_clusters(store: Store, own_cluster: ClusterFolder, runs: Sequence[Run]) -> list[Location]:
    """Return the nodes of existing other clusters that may have checkpoints of these runs."""
    locations: dict[str, Location] = {}
    for run in runs:
        cluster = store.cluster(run.cluster)
        if cluster.name == own_cluster.name or not cluster.exists():
            continue
        for machine in cluster.load().machines:
            if machine.name in {part.name for part in run.nodes}:
                location = Location(cluster=cluster, machine=machine)
                locations[location.key] = location
    return list(locations.values())


def has_them(point: ResumePoint, run: Run, node: str) -> bool:
    """Return whether a node of the run has all of the checkpoints itself."""
    if point.checkpoints is not None and point.checkpoints.lacks:
        return False
    return f"{run.cluster}/{node}" in {location.key for location in point.locations}


def resume_line(point: ResumePoint, run: Run) -> str:
    """Return `run B (my.py) resumes from step-000040.pt of run A on 1 node`, and what may surprise about it."""
    subject = f"run {run.run} ({run.script})"
    where = plural(len(run.nodes), "node") + _other_ranks(point.source or point.run, run)
    if point.source is None or point.checkpoints is None:
        nothing = f"no checkpoint of run {point.run.run} is in reach"
        return f"{subject} starts from the beginning on {where}: {nothing}{_unknown(point, 'some')}"
    newest = "checkpoints" if point.checkpoints.newest == "." else point.checkpoints.newest
    line = f"{subject} resumes from {newest} of run {point.source.run} on {where}"
    if not point.locations:
        line += ", with what was brought here"
    elif point.checkpoints.lacks:
        line += f", brought from {', '.join(location.machine.name for location in point.locations)}"
    elif not has_them(point, run, run.nodes[0].name):
        line += f", brought from {point.locations[0].machine.name}"
    if torn := point.checkpoints.torn:
        names = ", ".join(torn[:3])
        line += f"; {names} {'is' if len(torn) == 1 else 'are'} only half written, and left out"
    return line + _unknown(point, "newer ones")


def _other_ranks(before: Run, run: Run) -> str:
    """Return `, 1 rank instead of 2`, and its effect on the built-in job. Empty: the number is the same."""
    if run.world_size == before.world_size:
        return ""
    ranks = f", {plural(run.world_size, 'rank')} instead of {before.world_size}"
    if not run.built_in or any(word.split("=")[0] == "--global-batch-size" for word in run.args):
        return ranks
    return f"{ranks} (the global batch changes with them unless --global-batch-size is given)"


def _unknown(point: ResumePoint, checkpoints: str) -> str:
    run = point.unknown
    if run is None:
        return ""
    lost = point.unknown_node or run.nodes[0].name
    if run == point.source:
        return f"; {lost}, which does not answer, may have {checkpoints}"
    return f"; run {run.run} may have left {checkpoints} on {lost}, which does not answer"
