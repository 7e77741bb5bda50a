"""Checkpoints of runs on a node: found, sent, and placed where the next run looks for them.

A run keeps them in `checkpoints/` of its folder.

Files that are placed for a run before its launch lie next to its folder, which only the launch may make; the
launch moves it in. This module never changes files of an earlier run.

During a run, the computer that started it may get the list of checkpoints, and ask for them.
"""

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

from remote.node.home_folder import NODE_HOME
from remote.node.run_state import placed_for
from remote.node.storage.sending import Heartbeat, send_files
from remote.shared import frames
from remote.shared.checkpoint_files import describe, describe_script, files_in, lacking, parts_in, torn_in
from remote.shared.constants import CHECKPOINTS, CODE_RECORD, RUNS

LOOK_S = 5.0
"""The pause between looks at the folder of an active run; a script's files count as written after the same time."""
TELL_S = 120.0
"""The pause between reports to the other side: a report may cause a transfer, which may be billed by size."""
COPY_BYTES = 1024 * 1024


def of_run(run: str, node: str) -> Path:
    """The folder of a run's checkpoints on this machine; `node`: the name under which it took part."""
    return NODE_HOME / RUNS / run / node / CHECKPOINTS


def parts_of_run(run: str) -> Dict[str, Path]:
    """Return the parts of a run's checkpoints on this machine, each with its folder.

    A shared home has the parts of several nodes.
    """
    folders = sorted((NODE_HOME / RUNS / run).glob("*/" + CHECKPOINTS))
    return {name: folder for folder in reversed(folders) for name in parts_in(folder)}


def _held(run: str, node: str, whole: bool, newest: bool = False) -> List[Tuple[Path, str]]:
    """Return this machine's files of a run's checkpoints: for each its folder, and its name there."""
    folder = of_run(run, node)
    if not whole:
        return [(inner, name) for name, inner in _of_script(folder).items()]
    parts = parts_of_run(run)
    foreign_parts = [name for name in lacking(folder, newest) if name in parts]
    return [(parts[name], name) for name in foreign_parts] + [
        (folder, name) for name, _ in files_in(folder, whole, newest)
    ]


def written_in(folder: Path) -> Dict[str, int]:
    """Return the files that a script's ranks wrote into a folder, with their bytes, without placed ones."""
    try:
        began_ns = os.lstat(str(folder.parent / CODE_RECORD)).st_ctime_ns
    except FileNotFoundError:
        began_ns = 0
    return {
        name: size
        for name, size in files_in(folder, False)
        if os.stat(str(folder / name)).st_ctime_ns > began_ns
    }


def _written(first_folder: Path) -> Dict[str, Path]:
    """Return the files that a script's ranks wrote on this machine, each with its folder; first of `first_folder`."""
    folders = sorted(first_folder.parents[1].glob("*/" + CHECKPOINTS))
    return {name: folder for folder in [*reversed(folders), first_folder] for name in written_in(folder)}


def _of_script(first_folder: Path) -> Dict[str, Path]:
    """Return all files of a script's checkpoints on this machine, each with its folder.

    Files of the run replace placed ones.
    """
    return dict({name: first_folder for name, _ in files_in(first_folder, False)}, **_written(first_folder))


def found_in(folder: Path, whole: bool, ranks: int, newest: bool = False) -> Optional[Dict[str, Any]]:
    """Describe this machine's checkpoints of a run with `ranks` ranks. `folder`: of its first node.

    `None`: no checkpoints.
    """
    if whole:
        return describe(folder, newest)
    checkpoints = describe_script(_of_script(folder), _written(folder), ranks)
    return checkpoints and dict(checkpoints, torn=torn_in(folder))


def is_to_be_told(
    current: Optional[Dict[str, Any]],
    reported: Optional[Dict[str, Any]],
    *,
    whole: bool,
    told_s_ago: float,
    written_s_ago: float,
) -> bool:
    """Return whether current checkpoints are reported: the first at once, then news, not too often.

    A script's files only if no file was written just now, as they may be half of a set. `written_s_ago` is negative
    for a time that a script has set to the future.
    """
    if current is None or current == reported:
        return False
    at_rest = whole or abs(written_s_ago) >= LOOK_S
    return at_rest and (reported is None or told_s_ago >= TELL_S)


class News:
    """The newest checkpoints of an active run, for reports now and then."""

    def __init__(self, folder: Path, whole: bool, ranks: int) -> None:
        self._folder = folder
        self._whole = whole
        self._ranks = ranks
        self._reported: Optional[Dict[str, Any]] = None
        self._reported_s = self._looked_s = time.monotonic() - TELL_S

    def poll(self) -> Optional[Dict[str, Any]]:
        """Return the description of the files needed to resume, if it is due. Never raises, and is cheap."""
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return None
        self._looked_s = now
        try:
            checkpoints = found_in(self._folder, self._whole, self._ranks, newest=True)
        except (OSError, ValueError):
            return None  # the run is active: listed files may have been removed
        written_s_ago = time.time() - checkpoints["written_ns"] / 1e9 if checkpoints else 0.0
        if not is_to_be_told(
            checkpoints,
            self._reported,
            whole=self._whole,
            told_s_ago=now - self._reported_s,
            written_s_ago=written_s_ago,
        ):
            return None
        self._reported, self._reported_s = checkpoints, now
        return checkpoints


def command_checkpoints(request: Dict[str, Any], output: BinaryIO) -> None:
    """`checkpoints`: describe each of `runs` ([id, node, whole, ranks]), and list its parts, with their bytes."""
    checkpoints, parts = [], []
    for run, node, whole, ranks in request["runs"]:
        checkpoints.append(found_in(of_run(run, node), whole, ranks))
        written = parts_of_run(run) if whole else _written(of_run(run, node))
        parts.append({name: os.stat(str(folder / name)).st_size for name, folder in written.items()})
    frames.write(output, {"t": frames.CHECKPOINTS, "found": checkpoints, "parts": parts})


def command_place(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `place`: put the checkpoints of a run into `run_dir`, where another run is to be launched.

    `source`: [id, node, whole, ranks] of the run. The built-in job never writes into an existing checkpoint, so its
    files may be linked; a script might, and gets copies. Sends a beat now and then while it copies. Half a set is
    never left, nor a set that was not reported.
    """
    run, node, whole, _ = request["source"]
    target = placed_for(Path(request["run_dir"]))
    heartbeat = Heartbeat(output)
    try:
        for source, name in _held(run, node, whole):
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if whole:
                with contextlib.suppress(OSError):  # some disks have no hard links
                    os.link(str(source / name), str(path))
                    continue
            _copy(source / name, path, heartbeat)
        frames.write(output, {"t": frames.PLACED})
    except BaseException:
        # Also if the other side has disconnected: it may have removed the placed files by now.
        shutil.rmtree(str(target), ignore_errors=True)
        raise


def _copy(source: Path, target: Path, heartbeat: Heartbeat) -> None:
    """Copy a file with its times: the newest of a folder stays that."""
    with open(str(source), "rb") as reader, open(str(target), "wb") as writer:
        for body in iter(lambda: reader.read(COPY_BYTES), b""):
            writer.write(body)
            heartbeat()
    shutil.copystat(str(source), str(target))


def command_send_checkpoints(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `send_checkpoints`: send a run's checkpoints, or the ones to resume from (`newest`).

    `source`: [id, node, whole, ranks] of the run. `names`: parts that other nodes lack and this node has.
    """
    run, node, whole, _ = request["source"]
    if request["names"]:
        parts = parts_of_run(run) if whole else _written(of_run(run, node))
        held = [(parts[name], name) for name in request["names"] if name in parts]
    else:
        held = _held(run, node, whole, request["newest"])
    for folder, name in held:
        send_files(folder, [name], "", output)
    frames.write(output, {"t": frames.DONE})


def command_discard(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `discard`: remove files that were placed for a run in `run_dir` that was not launched."""
    shutil.rmtree(str(placed_for(Path(request["run_dir"]))), ignore_errors=True)
    frames.write(output, {"t": frames.DISCARDED})


def send_if_small(
    run_dir: Path, output: BinaryIO, *, whole: bool, max_bytes: int, failed: bool, parts: bool = False
) -> None:
    """Send a run's checkpoints with the files that come back at its end.

    If it `failed`, report checkpoints that are too large. `parts`: this is not the first node, and what its ranks
    wrote of them is sent. Of a script, the names of all files that its ranks wrote come before.
    """
    folder = run_dir / CHECKPOINTS
    written = {} if whole else written_in(folder)
    names = parts_in(folder) if whole else written
    files = sorted(names.items()) if parts else files_in(folder, whole)
    if not whole:
        frames.write(output, {"t": frames.PARTS}, json.dumps(sorted(written)).encode())
    size = sum(size for _, size in files)
    if size <= max_bytes:
        send_files(folder, [name for name, _ in files], CHECKPOINTS, output)
    elif failed:
        reason = "{:.0f} MB, more than {:.0f} MB; they stay on the node until it is removed".format(
            size / 1e6, max_bytes / 1e6
        )
        frames.write(output, {"t": frames.SKIPPED, "path": CHECKPOINTS, "reason": reason})
