"""The built-in training job: data-parallel training on real images, with its timings.

One process, on the first GPU or else the CPU:

    python -m train

One node, two processes:

    torchrun --nproc-per-node 2 -m train

Two nodes, two processes each; on the node with the address 10.0.0.1, and on the other with `--node-rank 1`:

    torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29400 -m train

All from the folder that holds this package, with torch, torchmetrics and scikit-learn installed. The job's options
follow `-m train`; `--help` lists them. Exit status: 0 done, 1 failed, 2 wrong options.
"""

import os
import signal
import sys
import traceback

from train.errors import TrainError
from train.options import parse


def main() -> int:
    """Run this rank; its exit status."""
    options = parse()
    # A rank that is told to stop does so at once and silently, even inside a collective operation, where Python's
    # own handlers would wait for it to return. There is nothing to tidy up: what is on disk is whole at any time.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        from torch.distributed.elastic.multiprocessing.errors import record

        from train.loop import run
    except ModuleNotFoundError as error:
        print(
            f"error: {sys.executable} has no package {error.name}. Install what the job needs: "
            f"{sys.executable} -m pip install torch torchmetrics scikit-learn",
            file=sys.stderr,
        )
        return 1
    try:
        record(run)(options)  # so that torchrun's summary names the error, too
    except TrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception:  # noqa: BLE001  # shown as Python shows it, then see below
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    if status:
        # Not sys.exit: taking down a process group in order can mean to wait for ranks that wait for this one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
