"""A run under way: every node followed at once, the first failure stops the gang, a lost node is named.

The nodes' files are the truth; connections come and go. Whoever attaches to a run later (`logs -f`,
`results`, `stop`) does the same as the command that launched it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

from inventories.clocks import awake_s, back_for_s, passed_s
from inventories.disk.cluster_files import ClusterFiles
from inventories.disk.store import RunFolder
from inventories.machine import Machine
from inventories.runs.activity import HangReport
from inventories.runs.end_reasons import Ended, Reason
from inventories.runs.records import NodeRecord, RankRecord
from inventories.runs.run import Run
from remote.checks import notices
from remote.end_sentences import ended_lines, interrupt_text, sentence, waiting_text
from remote.errors import BadAnswer, ConnectionLost, DiskFull, MachineGone, NodeFailed, RemoteError
from remote.files import checkpoints
from remote.runs.mirror import Mirror
from remote.runs.node_state import record_of_end
from remote.runs.observer import Lines, Observer
from remote.runs.outputs import wanted_outputs
from remote.runs.rank_states import RankStates
from remote.runs.run_files import (
    MAX_ARTIFACT_BYTES,
    MAX_CHECKPOINT_BYTES,
    RunFiles,
    new_incoming,
    save_node_record,
)
from remote.runs.stopping import Stopping
from remote.sessions.connect import connect, reconnect
from remote.sessions.limits import Bounds, of_files
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.constants import ENDING

SILENCE_S = 15.0
"""The node sends something at least every 5 s."""
RECONNECT_S = 25.0
"""Silence and reconnecting together stay under a minute, also where each login works and nothing more is heard."""
AWAY_RECONNECT_S = 120.0
"""The time since this computer's return, as from being suspended: its network may take as long."""
MAX_LOGS_BYTES = 64 * 1000**3
"""The maximum of a run's logs and metrics that is brought from a node at once."""
LAST_WORDS_S = 600.0
LAST_WORDS = Bounds(total_s=LAST_WORDS_S, max_bytes=MAX_LOGS_BYTES, grows=True)
"""A stopped node has reported the run's end by then; its last files take additional time. Its ranks' grace comes on
top."""
OWN_END_S = 15.0
"""A node whose rank failed ends its other ranks, within their grace. It is stopped this much later."""


class _Lost(Exception):
    """The node was lost."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(sentence(ended))
        self.ended = ended


class RunMonitor:
    """Follows one run on all its nodes.

    With `gang` the nodes stand and fall together: a failure or a lost node stops the rest. Without it nothing is
    ever stopped: that is for commands that only look. With `mirror` the newest checkpoints are brought here now and
    then during the run.
    """

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        machines: Mapping[str, Machine],
        cluster: ClusterFiles,
        observer: Observer,
        *,
        gang: bool,
        mirror: bool = False,
        nodes: Mapping[str, Node] | None = None,
        on_hang: Callable[[str, HangReport | None], None] = lambda *_: None,
    ) -> None:
        """Watch the nodes.

        `on_hang` gets a node's name and the report of its watch when its ranks make no progress, `None` when they
        do; it may not block.
        """
        self._on_hang = on_hang
        self._run = run
        self._folder = folder
        self._machines = machines
        self._cluster = cluster
        self._observer = observer
        self._gang = gang
        self._initial = set(nodes or {})
        self._nodes = dict(nodes or {})
        self._parts = {part.name: part for part in run.nodes}
        self.incoming = new_incoming(folder)
        """The folder for files from the nodes, until they are merged into the run's folder."""
        self._files = {part.name: RunFiles(folder, part, self.incoming, run.options) for part in run.nodes}
        self._mirrors = {
            part.name: Mirror(run, folder, self.incoming, observer, partial(self._nodes_but, part.name))
            for part in run.nodes
            if mirror and part.rank == 0
        }
        """The first node's, if checkpoints are brought during the run."""
        # What followers and signal handlers want done, in the thread of `go`; a signal handler may put into it.
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open = set(self._parts)
        """Nodes that still have something to say."""
        self._failing: dict[str, float] = {}
        """Nodes with a failed rank → when that was seen, as `awake_s`."""
        self._ranks = RankStates(run)
        self._stopping = Stopping(self._parts, self._node, observer)
        self._locks = {name: Lock() for name in self._parts}
        """Held by who connects to a node."""
        self._changing = Lock()
        """Of `_nodes`, `_given` and `_closed`; never held for long, so that `close` waits for no connection."""
        self._heard_s: dict[str, float] = {}
        """Nodes that are followed → when they last said something, or else when that began, as `awake_s`."""
        self._shows_script_files = True
        self.records: dict[str, NodeRecord] = {}
        self.started_s: dict[str, float] = {}
        """Nodes whose launcher is under way → when, as `passed_s`."""
        self.ended_s: float | None = None
        """When the last node's launcher had ended, as `passed_s`."""
        self.stopped_for_resize = False
        """Whether `stop_for_resize` is what ended it."""
        self.stopped_as_hung = False
        """Whether `stop_hung` is what ended it."""
        self.interrupts = 0
        """How often a person pressed Ctrl-C, also after the run had ended."""
        self._interrupts_handled = 0
        self._closed = False

    def go(
        self,
        *,
        launches: Mapping[str, dict[str, Any]] | None = None,
        wait: bool = True,
        on_started: Callable[[], None] = lambda: None,
        on_begun: Callable[[], None] = lambda: None,
        left: Event | None = None,
    ) -> None:
        """Follow all nodes until the run is over (`wait`), or bring the present files.

        With `launches`, each node's launcher is started first. `on_started` is called when all launchers run,
        `on_begun` when all ranks do. Once `left` is set, nobody waits any more. Raises what broke in a follower's
        thread.
        """
        if left is not None and left.is_set():
            return
        for name in self._parts:
            launch = (launches or {}).get(name)
            Thread(target=self._follow, args=(name, launch, wait), daemon=True, name=f"follow {name}").start()
        try:
            self._wait(on_started, on_begun, left or Event())
        finally:
            for mirror in self._mirrors.values():
                mirror.close()
        self.ended_s = self.ended_s or passed_s()

    def _wait(self, on_started: Callable[[], None], on_begun: Callable[[], None], left: Event) -> None:
        begun = False
        while self._open or self._stopping.busy:
            if left.is_set():
                return
            try:
                event = self._events.get(timeout=0.2)
            except Empty:
                self._stop_overdue()
                for name, text in () if self._stopping.reasons else self._ranks.waiting_nodes(awake_s()):
                    self._observer.node(name, text)
                continue
            ready = len(self.started_s) == len(self._parts)
            event()
            if not ready and len(self.started_s) == len(self._parts):
                on_started()
            if not begun and self._ranks.all_begun and not self._stopping.reasons:
                begun = True
                on_begun()

    def close(self) -> None:
        """Close the connections that were opened here, and stop following.

        Waits for nobody: a thread that is connecting closes its connection, and ends.
        """
        with self._changing:
            self._closed = True
            opened = [self._nodes.pop(name) for name in self._nodes.keys() - self._initial]
        for node in opened:
            node.close()
        for files in self._files.values():
            files.intake.close()

    def interrupt(self) -> None:
        """Handle Ctrl-C in a signal handler.

        The first stops the run; a later one leaves, once all nodes have the order.
        """
        self.interrupts += 1
        self._events.put(self._interrupted)

    @property
    def lost(self) -> frozenset[str]:
        """Names of the nodes that could not be asked how they ended."""
        return frozenset(name for name, record in self.records.items() if record.lost)

    def stop_for_resize(self) -> None:
        """Stop the run on every node, unless it is about to end already. From any thread."""

        def stop() -> None:
            self.stopped_for_resize |= self._stop_unless_ending(Reason.RESIZED)

        self._events.put(stop)

    def stop_hung(self) -> None:
        """Stop the run on every node, as it hangs. From any thread."""

        def stop() -> None:
            self.stopped_as_hung |= self._stop_unless_ending(Reason.STOPPED_HUNG)

        self._events.put(stop)

    def _stop_unless_ending(self, reason: Reason) -> bool:
        ending = bool(self.records or self._stopping.reasons)
        if not ending:
            self._stop_all(reason)
        return not ending

    def _started(self, name: str) -> None:
        self.started_s[name] = passed_s()
        self._observer.node(name, "ranks are starting")

    def _add_rank(self, name: str, rank: RankRecord) -> None:
        self._ranks.add(name, rank, awake_s())
        if rank.exit_code:
            self._failing.setdefault(name, awake_s())
            self._stop_others(name)

    def _close_lost(self, name: str, record: NodeRecord) -> None:
        if name in self.records:
            self._observer.note(f"{name}: not everything was brought back: {_why(record)}")
        else:
            if not self._gang:
                self._observer.note(f"{name} could not be asked: {_why(record)}")
            self._ended(name, record)
            if not record.lost:
                save_node_record(self._folder, record)
        self._open.discard(name)

    def _close(self, name: str, *, ended: bool) -> None:
        """Follow a node no longer, which has ended, with all files here, or on which the run continues."""
        if ended:
            # The node's word is kept once everything has come with it: until then a later command asks again.
            save_node_record(self._folder, self.records[name])
        self._open.discard(name)

    def _ended(self, name: str, record: NodeRecord) -> None:
        self.records[name] = record
        self._ranks.close_node(name)
        if len(self.records) == len(self._parts):
            self.ended_s = passed_s()
            ended = {
                node: node_record.ending
                for node, node_record in self.records.items()
                if node_record.ending is not None
            }
            for line in ended_lines(ended):
                self._observer.note(line)
        self._observer.node(name, _why(record))
        if record.exit_code != 0:
            self._stop_others(name)

    def _interrupted(self) -> None:
        self._interrupts_handled += 1
        if len(self.records) == len(self._parts):
            if self._interrupts_handled == 1:
                self._observer.note(
                    f"the run has ended, and its files are being brought; Ctrl-C again: leave that to "
                    f"`gpuctl results {self._run.run}`"
                )
            else:
                self._observer.note(
                    f"not all files were brought: `gpuctl results {self._run.run}` brings them"
                )
                self._open.clear()
                self._stopping.leave()
            return
        waiting = ", ".join(sorted(set(self._parts) - set(self.records) - self._stopping.ordered))
        if self._interrupts_handled == 1:
            ranks, grace_s = self._ranks, self._run.stop_grace_s
            self._observer.note(interrupt_text(ranks.any_begun, ranks.all_ended, grace_s))
            self._stop_all(Reason.STOPPED, interrupted=True)
        elif self._interrupts_handled == 2:
            killed = "what the ranks left behind" if self._ranks.all_ended else "the ranks"
            self._observer.note(f"killing {killed}; Ctrl-C again: without waiting for their end")
            self._stopping.kill(set(self._parts) - set(self.records))
        else:
            note = (
                f"not told to stop, so the run may go on there: {waiting}"
                if waiting
                else "every node was told to stop"
            )
            self._observer.note(f"{note}; not waiting for the end")
            self._open.clear()
            self._stopping.leave()

    def _stop_all(self, reason: Reason, *, interrupted: bool = False) -> None:
        for name in self._parts:
            self._stop(name, reason, interrupted=interrupted)

    def _stop_others(self, failed: str) -> None:
        if self._gang:
            for name in self._parts:
                if name != failed:
                    self._stop(name, Reason.PEER_FAILED)

    def _stop_overdue(self) -> None:
        """Stop nodes that do not end, and retry failed orders."""
        now = awake_s()
        for name, since in self._failing.items():
            if self._gang and now - since > self._run.stop_grace_s + OWN_END_S:
                self._stop(name, Reason.PEER_FAILED)
        self._stopping.try_again(self._open)

    def _stop(self, name: str, reason: Reason, *, interrupted: bool = False) -> None:
        record = self.records.get(name)
        if record is None or record.lost:
            self._stopping.stop(name, reason, interrupted=interrupted)

    def _node(self, name: str) -> Node:
        with self._locks[name]:
            with self._changing:
                self._go_on(name)
                known = self._nodes.get(name)
            return known or self._keep(name, connect(self._machines[name], self._cluster))

    def _nodes_but(self, name: str) -> Iterator[Node]:
        """The other nodes of the run, connected when they are needed. Raises RemoteError."""
        return (self._node(other) for other in self._parts if other != name)

    def _keep(self, name: str, node: Node) -> Node:
        """Keep a new connection for who needs it next, and for `close`. Raises ConnectionLost after that."""
        with self._changing:
            if not self._closed:
                self._nodes[name] = node
                return node
        node.close()
        raise _left(name)

    def _go_on(self, name: str) -> None:
        """Raise ConnectionLost where nobody follows any more."""
        if self._closed:
            raise _left(name)

    def _follow(self, name: str, launch: dict[str, Any] | None, wait: bool) -> None:
        """A node's thread: follow it, reconnecting when the link breaks, until it is done or lost."""
        self._heard_s[name] = awake_s()
        told_s: float | None = None
        """The time of the node's last sign of life at the report of a lost connection: one report is enough until
        the next sign."""
        try:
            while not self._closed:
                try:
                    self._follow_once(name, launch if name not in self.started_s else None, wait)
                    return
                except ConnectionLost as error:
                    if self._closed:
                        return
                    # Logins work, and nothing more: a disk that hangs, no memory, lost packets.
                    silent_s = awake_s() - self._heard_s[name]
                    if silent_s > SILENCE_S + _reconnect_s():
                        raise _Lost(Ended(reason=Reason.NODE_SILENT, seconds=silent_s)) from error
                    if self._heard_s[name] != told_s:
                        told_s = self._heard_s[name]
                        self._observer.node(name, "connection lost, reconnecting")
                    self._reconnect(name, error)
        except NodeFailed as error:
            # The node's own word: it could not start the run.
            reason = Reason.DISK_FULL if isinstance(error, DiskFull) else Reason.NODE_FAILED
            self._lose(name, Ended(reason=reason, detail=str(error)), lost=False)
        except BadAnswer as error:
            self._stop_unwatched(name)
            self._lose(name, Ended(reason=Reason.BAD_ANSWER, detail=str(error)), lost=True)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            self._stop_unwatched(name)
            detail = f"the node sent something that can't be understood: {error!r}"
            self._lose(name, Ended(reason=Reason.BAD_ANSWER, detail=detail), lost=True)
        except _Lost as lost:
            self._lose(name, lost.ended, lost=True)
        except RemoteError as error:
            self._lose(name, Ended(reason=Reason.UNREACHABLE, detail=str(error)), lost=True)
        except Exception as error:  # noqa: BLE001 - raised again by `go`, in the caller's thread
            self._events.put(partial(_raise, error))

    def _lose(self, name: str, ended: Ended, *, lost: bool) -> None:
        record = NodeRecord(node=name, launcher=self._run.mode, ended=ended, lost=lost)
        self._events.put(partial(self._close_lost, name, record))

    def _stop_unwatched(self, name: str) -> None:
        """Stop the run on a node that can't be followed."""
        if self._gang and not self._closed:
            self._stopping.tell(name, Reason.PEER_FAILED)

    def _reconnect(self, name: str, why: ConnectionLost) -> None:
        tried_s, began = _reconnect_s(), awake_s()
        with self._locks[name]:
            with self._changing:
                self._go_on(name)
                broken = self._nodes.pop(name, None)
                self._initial.discard(name)
            if broken is not None:
                broken.close()
            try:
                node = reconnect(
                    self._machines[name],
                    self._cluster,
                    deadline_s=tried_s,
                    wanted=lambda: not self._closed,
                )
            except RemoteError as error:
                # Where the machine is gone, why the connection broke is a guess.
                removed = isinstance(error, MachineGone)
                broke = str(why).removeprefix(f"{name}: ").removesuffix(".")
                detail = str(error) if removed else f"{broke}; {error}"
                seconds = None if removed else tried_s
                raise _Lost(Ended(reason=Reason.NODE_LOST, seconds=seconds, detail=detail)) from error
            if awake_s() - began > tried_s:  # this computer had no network: nobody could be heard
                self._heard_s[name] = awake_s()
            self._keep(name, node)

    def _show_script_file(self, path: str, body: bytes, *, begins: bool) -> None:
        """Pass a part of a library's file on to the view. Its content is any program's, and ends no run."""
        if self._shows_script_files:
            try:
                self._observer.script_file(path, body, begins=begins)
            except Exception as error:  # noqa: BLE001 - told once
                self._shows_script_files = False
                self._observer.note(f"{path} can't be shown while the run goes on: {error!r}.")

    def _follow_once(self, name: str, launch: dict[str, Any] | None, wait: bool) -> None:
        files, mirror, node = self._files[name], self._mirrors.get(name), self._node(name)
        files.intake.begin_again()
        request = {
            "run_dir": self._parts[name].run_dir,
            "offsets": files.offsets(),
            "records": files.records(),
            "wait": wait,
            "max_artifact_bytes": MAX_ARTIFACT_BYTES,
            "checkpoints": {
                "whole": self._run.built_in,
                "ranks": self._run.world_size,
                "max_bytes": MAX_CHECKPOINT_BYTES,
                "mirror": mirror is not None,
                "parts": self._parts[name].rank != 0,
            },
            "outputs": wanted_outputs(self._run.options),
            "script_files": wait and not self._run.built_in and self._parts[name].rank == 0,
            "launch": launch,
        }
        lines = Lines(self._observer, name)
        done = ended = ending = False
        # A run has no time limit; a look at a run, and the steps after its end, have one.
        bounds = Bounds(max_bytes=None) if wait else of_files(MAX_LOGS_BYTES)
        with node.stream("follow", request, timeout_s=SILENCE_S, bounds=bounds) as talk:
            for header, body in talk.frames():
                self._heard_s[name] = awake_s()
                self._go_on(name)
                if name in self._stopping.ordered and not ending:
                    ending = True
                    talk.bound(replace(LAST_WORDS, total_s=LAST_WORDS_S + self._run.stop_grace_s))
                kind = header.get("t")
                if kind == frames.STARTED:
                    self._events.put(partial(self._started, name))
                elif kind == frames.FILE:
                    files.append(header["path"], int(header["offset"]), body)
                    lines.feed(header["path"], body)
                elif kind == frames.RECORD and header["path"] == ENDING:
                    self._events.put(partial(self._observer.node, name, waiting_text(files.ending(body))))
                elif kind == frames.RECORD:
                    self._events.put(partial(self._add_rank, name, files.record(header["path"], body)))
                elif kind == frames.HANG:
                    if not body and self._stopping.reasons:
                        continue  # what ranks write that are being ended is no progress
                    self._events.put(partial(self._on_hang, name, files.hang_report(body)))
                elif kind == frames.SCRIPT_FILE:
                    self._show_script_file(header["path"], body, begins=bool(header["begins"]))
                elif kind == frames.CHECKPOINT and mirror is not None:
                    mirror.offer(node, checkpoints.checkpoints_of(header))
                elif kind == frames.END:
                    ending = True
                    talk.bound(of_files(files.intake.max_bytes))
                    if mirror is not None:
                        mirror.close()  # the end brings its own
                    lines.flush()
                    ended = not header["state"]["running"]
                    if ended:
                        record = record_of_end(name, self._run.mode, header["state"])
                        self._events.put(partial(self._ended, name, record))
                elif kind == frames.CHUNK:
                    files.intake.chunk(header["path"], int(header["offset"]), body)
                elif kind == frames.COMPLETE:
                    size, digest = int(header["bytes"]), str(header["sha256"])
                    files.intake.complete(header["path"], size, digest, int(header["mode"]))
                elif kind == frames.PARTS:
                    files.wrote_parts(body)
                elif kind == frames.OUTPUTS:
                    files.written(header, body)
                elif kind == frames.NOTICES:
                    for notice in notices.parse(name, header):
                        self._observer.note(notices.sentence(notice))
                elif kind == frames.SKIPPED:
                    self._observer.note(f"{name}: not brought back: {header['path']}: {header['reason']}.")
                elif kind == frames.DONE:
                    done = True
                elif kind != frames.BEAT:
                    raise BadAnswer(f"{name}: sent {kind!r}, which is not part of a run.")
        files.intake.discard()
        for path, why in files.intake.refused.items():
            self._observer.note(f"{name}: the file {path!r} was refused: {why}.")
        if not done:
            raise ConnectionLost(f"{name}: the connection ended in the middle of the run.")
        with self._changing:
            self._go_on(name)  # after that not everything was taken in
            if differ := files.keep_checkpoints():
                self._observer.note(checkpoints.other_content(self._run, differ))
            files.keep_outputs()
        self._events.put(partial(self._close, name, ended=ended))


def _why(record: NodeRecord) -> str:
    """Describe the end of a node's part."""
    if record.failure:
        return sentence(record.failure)
    return "stopped" if record.stopped else "failed" if record.exit_code != 0 else "done"


def _reconnect_s() -> float:
    """Return how long connecting again may take."""
    return max(RECONNECT_S, AWAY_RECONNECT_S - back_for_s())


def _left(name: str) -> ConnectionLost:
    """Return the error for nodes that are still active once nobody follows them any more."""
    return ConnectionLost(f"{name}: it is not followed from here any more.")


def _raise(error: Exception) -> None:
    raise error
