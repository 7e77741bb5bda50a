"""Holds the network namespace of a run's bridge, and removes the hosts' files when its owner is gone.

The owner holds the other end of standard input; that ends with the owner, however the owner ends.
"""

import shutil
import sys
import time
from pathlib import Path

REMOVAL_LIMIT_S = 20


def main() -> None:
    folder = Path(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.read()
    deadline = time.monotonic() + REMOVAL_LIMIT_S
    while folder.exists() and time.monotonic() < deadline:
        # The hosts end by the same event; until they have, they may write.
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
