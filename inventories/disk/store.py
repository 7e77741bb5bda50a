"""The files of gpuctl on this computer, under `$GPUCTL_HOME`: clusters and runs.

    clusters/<name>/   inventory.yaml  journal.jsonl  lock  keys/  known_hosts  ssh_config
    runs/<run id>/     run.json  result.json  logs/  metrics/  ranks/  nodes/  artifacts/  checkpoints/  mirrored
                       outputs/  written/  hang.json  stacks/  lock

Folders are 0700 and files 0600. A file is replaced whole or not at all; a torn file or one of a newer
gpuctl is refused with the way to rebuild it.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from inventories import codec
from inventories.ansible.inventory import read_inventory, write_inventory
from inventories.disk import files, lock
from inventories.disk.cluster_files import ClusterFiles
from inventories.disk.journal import Journal
from inventories.errors import CorruptFile, InventoryError, NewerFormat, NoAccess, NotFound
from inventories.machine import Inventory
from inventories.runs.labels import is_like_id
from inventories.specs.checks import check_cluster_name
from inventories.text import nearest

if TYPE_CHECKING:
    from inventories.runs.result import Result
    from inventories.runs.run import Run

__all__ = ["ClusterFolder", "Journal", "RunFolder", "Store"]

T = TypeVar("T")
LEAST_OF_AN_END = 3
"""Characters of the end of a run's id that name it: fewer may be a slip."""


@dataclass(frozen=True)
class ClusterFolder(ClusterFiles):
    """The folder of a cluster, which may not exist yet. `remove` is the last action under its lock."""

    @property
    def journal(self) -> Journal:
        """Return the journal of planned and completed changes of the cluster."""
        return Journal(self.path / "journal.jsonl")

    inventory_path = files.Inside("inventory.yaml")
    """The Ansible inventory."""
    queue_path = files.Inside("queue.json")
    """The cluster's queue as its first node last reported it."""
    queued_path = files.Inside("queued")
    """The folder of records of runs that this computer put into the queue, until they start."""

    def exists(self) -> bool:
        """Return whether an inventory exists, readable or not."""
        return files.exists(self.inventory_path)

    def load(self) -> Inventory:
        """The inventory. Raises NotFound, CorruptFile or NewerFormat."""
        if not self.exists():
            raise NotFound(
                f"There is no cluster '{self.name}'. Make one with `gpuctl up --cluster {self.name}`, "
                "or see those that exist with `gpuctl clusters`."
            )
        try:
            return read_inventory(self.inventory_path)
        except CorruptFile as error:
            raise CorruptFile(
                f"{error} Remove the file and run `gpuctl up --cluster {self.name}` as before to rebuild it, "
                f"or end the cluster with `gpuctl down --cluster {self.name}`."
            ) from error

    def save(self, inventory: Inventory) -> None:
        """Replace the inventory, atomically. Makes the folder."""
        assert inventory.cluster == self.name, f"{inventory.cluster} is not {self.name}"
        self.make()
        text = write_inventory(inventory, known_hosts=self.known_hosts_path)
        files.write_atomic(self.inventory_path, text.encode())

    def lock(
        self, command: str, *, wait_s: float = 10.0, on_wait: Callable[[str], None] | None = None
    ) -> AbstractContextManager[None]:
        """Keep other processes off the cluster while the body runs. Makes the folder.

        `command`: the holder's command. Where another process holds the lock, `on_wait` is called once
        with a sentence; after `wait_s` Locked is raised with that process's pid and command. A dead
        holder's lock is free. Not reentrant.
        """
        subject = f"cluster '{self.name}'"
        return lock.hold(self.path / "lock", subject=subject, command=command, wait_s=wait_s, on_wait=on_wait)

    def claim_machines(self, command: str) -> AbstractContextManager[None]:
        """Keep other processes from starting or ending machines for runs while the body runs, which may be hours.

        Raises Locked at once where another one does. As `lock` otherwise, which is taken and left in between.
        """
        path, subject = self.path / "machines.lock", f"cluster '{self.name}'"
        return lock.hold(path, subject=subject, command=command, wait_s=0.0)

    def remove(self) -> None:
        """Remove the whole folder, keys and all; no error where it is absent.

        The folder is renamed first: a command that waits for the lock makes a folder of its own, from
        which we take nothing. Remains of an earlier removal are removed, too.
        """
        doomed = self.path.parent / f".removed-{self.name}-{os.urandom(4).hex()}"
        with files.sentence("remove", self.path):
            try:
                self.path.rename(doomed)
                files.sync_folder(self.path.parent)
            except FileNotFoundError:
                pass
        for folder in self.path.parent.glob(".removed-*"):
            shutil.rmtree(folder, ignore_errors=True)
        if doomed.exists():
            raise NoAccess(f"Parts of '{doomed}' could not be removed. Remove that folder yourself.")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run."""

    path: Path

    @property
    def id(self) -> str:
        """The run's id; ids sort by time."""
        return self.path.name

    run_path = files.Inside("run.json")
    """The run's record."""
    result_path = files.Inside("result.json")
    """The run's result."""
    hang_path = files.Inside("hang.json")
    """The analysis of why the run made no progress."""
    stopped_path = files.Inside("stopped")
    """It exists after a stop from this computer by another command than the run's own."""
    logs_path = files.Inside("logs")
    """Folder of the logs."""
    metrics_path = files.Inside("metrics")
    """Folder of the metrics, a file of JSON lines a rank."""
    ranks_path = files.Inside("ranks")
    """The folder of the records of ranks."""
    nodes_path = files.Inside("nodes")
    """The folder of the records of launchers, one a node."""
    artifacts_path = files.Inside("artifacts")
    """The folder of files that the ranks left in their `artifacts/`."""
    checkpoints_path = files.Inside("checkpoints")
    """Folder of the checkpoints that came back; there only where they were small enough, or mirrored."""
    outputs_path = files.Inside("outputs")
    """Folder of what came back of the files that the run wrote into the project's folder, a folder a node."""
    written_path = files.Inside("written")
    """The folder of the nodes' lists of these files."""

    def save_run(self, run: "Run") -> None:
        """Replace the record of the run, atomically."""
        assert run.run == self.id, f"{run.run} is not {self.id}"
        files.write_atomic(self.run_path, codec.dump(run))

    def load_run(self) -> "Run":
        """Return the record of the run. Raises NotFound, CorruptFile or NewerFormat."""
        from inventories.runs.run import Run

        rebuild = f"The run can't be followed; remove the folder '{self.path}' once you have what you need."
        run = self._load(Run, self.run_path, rebuild)
        if run is None:
            raise NotFound(
                f"Run '{self.id}' was never launched: '{self.run_path}' is missing. Remove '{self.path}'."
            )
        return run

    def save_result(self, result: "Result") -> None:
        """Replace the result, atomically."""
        assert result.run == self.id, f"{result.run} is not {self.id}"
        files.write_atomic(self.result_path, codec.dump(result))

    def load_result(self) -> "Result | None":
        """Return the result, or `None` if it does not exist yet. Raises CorruptFile or NewerFormat."""
        from inventories.runs.result import Result

        rebuild = f"Remove the file and run `gpuctl results {self.id}`, which collects the run again."
        return self._load(Result, self.result_path, rebuild)

    def _load(self, cls: type[T], path: Path, rebuild: str) -> T | None:
        text = files.read_bytes(path)
        return None if text is None else codec.load(cls, text, str(path), rebuild=rebuild)


@dataclass(frozen=True)
class Store:
    """The clusters and runs of one `$GPUCTL_HOME`, which is made when something is first written."""

    home: Path

    @classmethod
    def default(cls) -> "Store":
        """The store at `$GPUCTL_HOME`, or `~/.gpuctl`."""
        home = os.environ.get("GPUCTL_HOME")
        # Absolute: the inventory and the SSH configuration name files of the store, and are used anywhere.
        return cls(Path(home or "~/.gpuctl").expanduser().absolute())

    def cluster(self, name: str) -> ClusterFolder:
        """The folder of a cluster, there or not. Raises InvalidInput for a name that can't be one."""
        return ClusterFolder(self.home / "clusters" / check_cluster_name(name))

    def clusters(self) -> list[ClusterFolder]:
        """The clusters that have an inventory, or a journal of one that was begun, by name."""
        folders = (ClusterFolder(path) for path in _folders(self.home / "clusters"))
        return [cluster for cluster in folders if cluster.exists() or files.exists(cluster.journal.path)]

    def new_run(self, now: datetime) -> RunFolder:
        """Make the folder of a new run, with an id that no other run has. `now` has a time zone."""
        return self.make_run(self.free_run_id(now))

    def free_run_id(self, now: datetime, reserved: Iterable[str] = ()) -> str:
        """Return an id that no run has, and that is not reserved."""
        stamps = {
            run[: len("20261121-054625")]
            for run in (*reserved, *(path.name for path in _folders(self.home / "runs")))
        }
        moment = now.astimezone(UTC)
        # Ids sort by time: the second run of a second gets the next one.
        while (stamp := moment.strftime("%Y%m%d-%H%M%S")) in stamps:
            moment += timedelta(seconds=1)
        return f"{stamp}-{os.urandom(2).hex()}"

    def run_folder(self, run_id: str) -> RunFolder:
        """Return the folder of a run with this id, which may not exist."""
        return RunFolder(self.home / "runs" / run_id)

    def make_run(self, run_id: str) -> RunFolder:
        """Make the folder of a run. Idempotent."""
        run = self.run_folder(run_id)
        files.private_dir(self.home / "runs")
        parts = (run.logs_path, run.metrics_path, run.ranks_path, run.nodes_path, run.artifacts_path)
        for folder in (run.path, *parts):
            files.private_dir(folder)
        return run

    def run(self, run_id: str, cluster: str | None = None) -> RunFolder:
        """The run of that id or name, or the only one whose id begins or ends so. Raises NotFound.

        Of several with one name the newest, of `cluster` if it has one.
        """
        ids = [path.name for path in _folders(self.home / "runs")]
        if run_id in ids:
            return RunFolder(self.home / "runs" / run_id)
        if not is_like_id(run_id):
            of_name = (run for run in self._named() if run.name == run_id)
            newest = next(of_name, None)
            if newest is not None:
                runs = itertools.chain([newest], of_name) if cluster is not None else ()
                run = next((run for run in runs if run.cluster == cluster), newest)
                return RunFolder(self.home / "runs" / run.run)
        ends = len(run_id) >= LEAST_OF_AN_END
        named = [
            known
            for known in ids
            if run_id and (known.startswith(run_id) or (ends and known.endswith(run_id)))
        ]
        if len(named) == 1:
            return RunFolder(self.home / "runs" / named[0])
        if named:
            raise NotFound(f"Run '{run_id}' could be any of {_listed(named)}. Write more of its id.")
        if not ids:
            raise NotFound(f"There is no run '{run_id}', nor any other. Start one with `gpuctl train`.")
        if run_id in (cluster.name for cluster in self.clusters()):
            raise NotFound(f"There is no run '{run_id}', but a cluster of that name: --cluster {run_id}")
        close = _nearest_runs(run_id, ids, {run.name for run in self._named() if run.name})
        hint = f"; did you mean {' or '.join(close)}?" if close else f". The newest are {_listed(ids[-3:])};"
        raise NotFound(f"There is no run '{run_id}'{hint} `gpuctl runs --all` lists all.")

    def _named(self) -> Iterator["Run"]:
        """Yield the records of all runs that can be read, the newest first."""
        for folder in reversed(self.runs()):
            with suppress(InventoryError):
                yield folder.load_run()

    def runs(self, cluster: str | None = None) -> list[RunFolder]:
        """The runs that were launched, of one cluster or of all, oldest first.

        A run whose record can't be read counts as any cluster's, so that it is seen.
        """
        folders = (RunFolder(path) for path in _folders(self.home / "runs"))
        launched = (run for run in folders if run.run_path.exists())
        return [run for run in launched if cluster is None or _may_be_of(run, cluster)]


def _may_be_of(run: RunFolder, cluster: str) -> bool:
    try:
        return run.load_run().cluster == cluster
    except (CorruptFile, NewerFormat):
        return True


def _nearest_runs(word: str, ids: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the quoted names, or ids, most like the word: it may stand for an id's time or for its end."""
    by_part = {part: run_id for run_id in ids for part in (run_id, *run_id.split("-")[1:])}
    by_part |= {name: name for name in names}
    return [f"'{run_id}'" for run_id in dict.fromkeys(by_part[part] for part in nearest(word, by_part))]


def _folders(parent: Path) -> list[Path]:
    with files.sentence("read", parent):
        try:
            entries = sorted(parent.iterdir())
        except FileNotFoundError:
            return []
    return [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _listed(words: list[str], limit: int = 5) -> str:
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(f"'{word}'" for word in words[:limit]) + more
