"""Around one rank: its log, its metrics file, and a record of how it ended.

    python3 -I <folder> rank RUN_DIR CWD -- COMMAND …

torchrun starts this in the rank's place, in a session of its own, with RANK and LOCAL_RANK set.
"""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import BinaryIO, Dict, List, Mapping, Optional

from remote.node import nccl_log, process
from remote.node.files import write_json

LOOK_S = 2.0
"""How often NCCL's log is looked at while nothing is in it; it says all within the first step."""


def main(arguments: List[str]) -> int:
    """Run the command as a child, write `ranks/rank-N.json` before and after, end the way it ended."""
    run_dir, cwd = Path(arguments[0]), arguments[1]
    command = arguments[3:]
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    record = {"rank": rank, "local_rank": local_rank, "pid": os.getpid(), "started_at": time.time()}
    # torchrun has made this process the leader of a session, and so of a group.
    group = {"group": os.getpgrp(), "birth": process.birth(os.getpgrp())}
    path = run_dir / "ranks" / "rank-{}.json".format(rank)
    metrics = run_dir / "metrics" / "rank-{}.jsonl".format(rank)
    log_path = str(run_dir / "logs" / "rank-{}.log".format(rank))
    debug = nccl_debug(os.environ, str(run_dir / "logs" / "nccl-{}.log".format(rank)))
    environment = dict(os.environ, GPUCTL_METRICS=str(metrics), **debug)
    # The whole group gets the signal; this process outlives the child to tell how it ended.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    with open(log_path, "ab", buffering=0) as log:
        try:
            child = subprocess.Popen(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        except OSError as error:
            log.write("gpuctl: {} could not be started: {}\n".format(command[0], error).encode())
            write_json(path, dict(record, ended_at=time.time(), exit_code=127))
            return 127
        write_json(path, dict(record, pid=child.pid, **group))
        # Where the user asked NCCL to speak, it speaks in the rank's own log.
        chosen = _wait(child, debug["NCCL_DEBUG_FILE"], log) if debug else _wait(child, log_path, None)
        code = child.returncode
        ended = {"ended_at": time.time(), "exit_code": code, "transports": chosen}
        write_json(path, dict(record, pid=child.pid, **group, **ended))
    if code < 0:
        # Die of the same signal, so that the launcher reports what really happened.
        if -code in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def nccl_debug(environment: Mapping[str, str], path: str) -> Dict[str, str]:
    """Variables that make NCCL write into a file what it chose; none where the user asked NCCL to speak."""
    if "NCCL_DEBUG" in environment:
        return {}
    return dict(nccl_log.DEBUG, NCCL_DEBUG_FILE=path)


def _wait(child: "subprocess.Popen[bytes]", nccl: str, log: Optional[BinaryIO]) -> List[str]:
    """Wait for the child's end. Returns what NCCL chose by its log `nccl`, and tells `log` once, meanwhile."""
    while child.poll() is None:
        process.wait_for_end(child.pid, LOOK_S)
        chosen = nccl_log.read(nccl) if log else []
        if log and chosen:
            log.write("gpuctl: NCCL goes over {}\n".format(", ".join(chosen)).encode())
            log = None
    return nccl_log.read(nccl)
