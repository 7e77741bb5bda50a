"""Around one rank: its log, its metrics file, and a record of how it ended.

    python3 -I <folder> rank RUN_DIR CWD -- COMMAND …

torchrun starts this in the rank's place, in a session of its own, with RANK and LOCAL_RANK set.
"""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import List

from remote.node import process
from remote.node.files import write_json


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
    environment = dict(os.environ, GPUCTL_METRICS=str(metrics))
    # The whole group gets the signal; this process outlives the child to tell how it ended.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    with open(str(run_dir / "logs" / "rank-{}.log".format(rank)), "ab", buffering=0) as log:
        try:
            child = subprocess.Popen(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        except OSError as error:
            log.write("gpuctl: {} could not be started: {}\n".format(command[0], error).encode())
            write_json(path, dict(record, ended_at=time.time(), exit_code=127))
            return 127
        write_json(path, dict(record, pid=child.pid, **group))
        code = child.wait()
        write_json(path, dict(record, pid=child.pid, **group, ended_at=time.time(), exit_code=code))
    if code < 0:
        # Die of the same signal, so that the launcher reports what really happened.
        if -code in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
