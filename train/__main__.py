"""The built-in training job: data-parallel training on images or text, with its timings.

A single process, on the first GPU, or on the CPU without a GPU:

    python -m train

One node, two processes:

    torchrun --nproc-per-node 2 -m train

Two nodes, two processes each; on the node with the address 10.0.0.1, and on the other with `--node-rank 1`:

    torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29400 -m train

Start it from the folder that contains this package, with torch, torchmetrics and scikit-learn installed. The job's
options follow `-m train`; `--help` lists them. Exit status: 0 done, 1 failed, 2 wrong options.
"""

import contextlib
import gc
import os
import signal
import sys
import time
import traceback

from train.command_line import parse
from train.distributed.opening import opening
from train.errors import BadOptions, PeerLost, TrainError
from train.options import Options

PEER_LOST_GRACE_S = 1.0
"""Delay before a rank that only lost a peer exits, so that the peer is seen to have failed first."""


def main() -> int:
    """Run this rank. Returns its exit status."""
    options = parse()
    # A rank that gets a signal ends at once and silently, even inside a collective operation, where Python's own
    # handlers would wait for it to return. No cleanup is needed: files on disk are whole at any time.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    local_rank = os.environ.get("LOCAL_RANK", "0")
    if options.device != "cpu" and local_rank.isdecimal():
        opening(int(local_rank))
    gc.disable()  # imports make no garbage, and a fifth of their time would go into the search for some
    try:
        import torch._dynamo  # noqa: F401  # every optimizer of torch imports it; meanwhile the GPU is opened
        import torch.distributed.elastic.multiprocessing.errors as torchrun

        import train.job  # noqa: F401  # imported here, to tell a missing package from an error in the job
    except ModuleNotFoundError as error:
        return _fail(
            f"{sys.executable} has no package {error.name}. Install what the job needs: "
            f"{sys.executable} -m pip install torch torchmetrics scikit-learn"
        )
    gc.freeze()
    gc.enable()
    try:
        return torchrun.record(_train)(options) or 0  # its summary then shows the error, too
    except TrainError as error:
        return _fail(str(error), status=2 if isinstance(error, BadOptions) else 1)
    except Exception:  # noqa: BLE001  # shown as Python does; only the end of the process differs, below
        traceback.print_exc()
        return 1


def _train(options: Options) -> int:
    from train.job import run

    try:
        run(options)
    except PeerLost as error:
        status = _fail(str(error))
        time.sleep(PEER_LOST_GRACE_S)
        return status
    return 0


def _fail(sentence: str, status: int = 1) -> int:
    print(f"error: {sentence}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    status = main()
    with contextlib.suppress(OSError):  # a full disk was reported already
        sys.stdout.flush()
        sys.stderr.flush()
    # Not sys.exit: to destroy a process group in order can mean to wait for ranks that wait for this one.
    os._exit(status)
