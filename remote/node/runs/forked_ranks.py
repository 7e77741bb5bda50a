"""torchrun with forked ranks, for the built-in job: a node imports torch once, not once more for each rank.

    python3 -u <folder> forked_ranks RUN_DIR CWD TORCHRUN-OPTION… -- MODULE ARGUMENT…

It is torch's own agent, which takes a function in place of a command. A rank is what `python -m MODULE` would be.
"""

import gc
import glob
import importlib
import os
import runpy
import sys
from pathlib import Path
from typing import BinaryIO, List, Mapping

from remote.node.hangs.rank_hook import sitecustomize
from remote.node.runs import rank_wrapper
from remote.node.runs.fork import Fork, end_by

JOB = "train"
"""The module that is known to import more than torch."""
GPUS = "/dev/nvidia[0-9]*"


def main(arguments: List[str]) -> int:
    """Start the ranks and see them to their end."""
    run_dir, cwd, end = arguments[0], arguments[1], arguments.index("--")
    options, job = arguments[2:end], arguments[end + 1 :]
    if sys.platform != "linux":  # system libraries may not outlive a fork there
        wrapper = [sys.executable, "-I", sys.argv[0], "rank", run_dir, cwd, "--"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *options, "--no-python", *wrapper]
        os.execv(sys.executable, [*torchrun, sys.executable, "-u", "-m", *job])  # noqa: S606
    sys.path.insert(0, cwd)
    gc.disable()  # imports make no garbage, and a fifth of their time would go into the search for some
    run = importlib.import_module("torch.distributed.run")
    errors = importlib.import_module("torch.distributed.elastic.multiprocessing.errors")
    try:
        importlib.import_module("torch" if job[0] != JOB else JOB + ".job")
        # Every optimizer of torch imports it; with a GPU, each rank while it opens that.
        if not glob.glob(GPUS):
            importlib.import_module("torch._dynamo")
        fresh = False
    except Exception as error:  # noqa: BLE001 - each rank tries by itself, and tells of it in its log
        sys.stderr.write("gpuctl: the ranks begin by themselves: {!r}\n".format(error))
        fresh = True
    gc.freeze()  # preloaded modules stay in memory that is shared with the ranks
    gc.enable()
    config, _, _ = run.config_from_args(run.parse_args([*options, "--start-method", "fork", job[0]]))
    errors.record(run.elastic_launch(config, _rank))(run_dir, cwd, job, fresh)
    return 0


def _rank(run_dir: str, cwd: str, job: List[str], fresh: bool) -> None:
    """Be the wrapper around one rank; torch's agent has made this process, and given it the rank's variables.

    `fresh`: the rank is to be a Python process of its own.
    """
    os.setsid()
    children = []  # type: List[Fork]

    def start(environment: Mapping[str, str], log: BinaryIO) -> Fork:
        children.append(Fork(lambda: _train(environment, log, cwd, job, fresh)))
        return children[0]

    code = rank_wrapper.watch(Path(run_dir), "the rank", start)
    if code < 0:
        end_by(-code)
    if code:
        os._exit(code)
    children[0].let_go()  # torch's agent waits for the others


def _train(environment: Mapping[str, str], log: BinaryIO, cwd: str, job: List[str], fresh: bool) -> int:
    """Be a rank, from here to the end of the process. Returns the exit status of one that could not begin."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, handle in enumerate((nothing, log.fileno(), log.fileno())):
        os.dup2(handle, number)
    # torchrun's sockets would stay open for as long as the rank lives. Their numbers stay taken: an object that
    # is left of torchrun could otherwise close a file of the rank's.
    for handle in map(int, os.listdir("/proc/self/fd")):
        if handle not in (0, 1, 2, nothing):
            os.dup2(nothing, handle, inheritable=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if fresh or sys.modules["torch.cuda"]._is_in_bad_fork():  # noqa: SLF001
        # CUDA was begun before the fork, and does not work after it.
        os.execve(sys.executable, [sys.executable, "-u", "-m", *job], environment)  # noqa: S606
    sitecustomize.begin_as_told()
    sys.argv = list(job)
    try:
        runpy.run_module(job[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:  # of a wrong option
        if end.code is not None and not isinstance(end.code, int):
            sys.stderr.write("{}\n".format(end.code))
            return 1
        return end.code or 0
    return 0
