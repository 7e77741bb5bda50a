"""A program `nvidia-smi` that prints recorded CSV, once or again and again, as the real one does."""

import shlex
from pathlib import Path

TWO_A10 = (
    "2, 0, GPU-5a1f0b7c, 87, 20314, 23028, 61, 141.27, NVIDIA A10\n"
    "2, 1, GPU-c93e4d10, [N/A], 3, 23028, 38, [Not Supported], NVIDIA A10\n"
)
"""What `remote.node.gpu.gpu_usage` asks for, of two GPUs; the second one's driver can't tell everything."""

PROGRAM = """\
#!/bin/sh
folder={folder}
case "$*" in
-L)
    awk -F', ' '{{print "GPU " $2 ": " $9 " (UUID: " $3 ")"}}' "$folder/rows.csv" ;;
*--loop-ms=*)
    while cat "$folder/rows.csv"; do sleep 0.2; done ;;
*)
    awk -F', ' '{{print $2 ", " $3 ", " $9 ", " $6 ", 580.65.06"}}' "$folder/rows.csv" ;;
esac
"""


def install(folder: Path, rows: str = TWO_A10) -> Path:
    """Put the program into a new folder for PATH; returns the folder. Without `rows.csv` the program ends."""
    folder.mkdir(parents=True)
    (folder / "rows.csv").write_text(rows)
    program = folder / "nvidia-smi"
    program.write_text(PROGRAM.format(folder=shlex.quote(str(folder))))
    program.chmod(0o755)
    return folder
