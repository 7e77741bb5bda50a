"""Benchmark the built-in job on one GPU: speed against other loops, floors, waits, losses, start, advice, NCCL.

    python bench/gpu.py [--out DIR] [--minutes 5] [--device auto|cuda|cpu] [--only SECTION]...

Needs this checkout with its packages (`pip install -e ".[train]"`), torch 2.11 or newer, and no network. ResNet-18
with torchvision's stem on synthetic images of 32 x 32, batches of 64 and 1024: the published loop
(`bench/parts/published.py`), `--loop plain`, and `fast` with and without CUDA graphs, in bf16 and compiled, each as
in `python -m train`. gpt-124m against the plainest loop (`bench/parts/plain_gpt.py`); other networks against the step
and the memory that `gpuctl advise` gives; `gpuctl train` on a local host against a script under torchrun.

Times steady steps only, and waits for the GPU at both ends: warm-up steps come first, and fewer than twenty later
steps give no figure. Writes `gpu.json` (after each section), `gpu.txt` and `gpu.log` into DIR, and prints the table.
In addition to the speeds it checks that

- no step of the fast loop waits for the GPU, by CUDA's own warnings;
- the timed steps of each loop that records CUDA graphs are graphs;
- the losses are the CPU's, in double precision and, as far as rounding permits, in single;
- NCCL starts with one rank, and DistributedDataParallel's steps on it, also with compressed gradients, have the
  losses of the same steps over gloo on the CPU;
- the facts and the use that the node's part reads from nvidia-smi agree with torch.

Each section has its own part of the time and the time that earlier sections leave. A failure or a timeout is
recorded, and takes no time from other sections. Without a GPU, or with `--device cpu`, the benchmark runs small
networks on the CPU without compiling, which shows only that the program works. Exit status: 0 all is well, 1 a check
or a section failed, 4 a section had too little time, 130 interrupted.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.parts.gpu_plan import MINIATURE, WHOLE, sections_of  # noqa: E402
from bench.parts.gpu_table import judged, text  # noqa: E402
from bench.parts.sections import Document, Section, end, run, status_of  # noqa: E402
from bench.parts.start import tear_down  # noqa: E402


def main() -> int:
    options = _parse()
    if options.work is not None:
        return _work(options.device, options.work)
    device = _device(options.device)
    sizes = WHOLE if device == "cuda" else MINIATURE
    sections = sections_of(sizes, on_gpu=device == "cuda")
    wrong = set(options.only) - {section.name for section in sections}
    if wrong:
        names = ", ".join(repr(section.name) for section in sections)
        print(f"there is no section {', '.join(sorted(wrong))}: give one of {names}", file=sys.stderr)
        return 2
    out = Path(options.out or tempfile.mkdtemp(prefix="gpuctl-bench-gpu-"))
    out.mkdir(parents=True, exist_ok=True)
    document: Document = {
        "program": "bench/gpu.py",
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "minutes": options.minutes,
        "sizes": asdict(sizes),
        "seconds": 0.0,
        "complete": False,
        "sections": {},
        "checks": [],
        "loops": [],
    }
    chosen = [section for section in sections if not options.only or section.name in options.only]
    return _run(chosen, document, out, device, options.minutes)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the built-in job on one GPU, beside the published loop")
    parser.add_argument(
        "--out", help="folder for gpu.json, gpu.txt and gpu.log (default: a new temporary one)"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="for all of it (default: 5)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--only", action="append", default=[], metavar="SECTION", help="may be given several times"
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser.parse_args()


def _device(requested: str) -> str:
    """Return the device without importing torch: only the sections' processes import it."""
    if requested != "auto":
        return requested
    return "cuda" if shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists() else "cpu"


def _run(sections: Sequence[Section], document: Document, out: Path, device: str, minutes: float) -> int:
    began = time.monotonic()
    until = began + minutes * 60
    begun: list[subprocess.Popen[Any]] = []
    stop = _Stop()

    def keep() -> None:
        document["seconds"] = round(time.monotonic() - began, 1)
        document["loops"] = judged(document)
        _write(out / "gpu.json", json.dumps(document, indent=1, default=str))

    with (out / "gpu.log").open("wb") as log, tempfile.TemporaryDirectory(prefix="gpuctl-bench-") as scratch:

        def start(together: Sequence[Section], handle: int) -> "subprocess.Popen[Any]":
            request = json.dumps(
                {
                    "handle": handle,
                    "folder": scratch,
                    "sections": [asdict(section) for section in together],
                }
            )
            command = [sys.executable, str(Path(__file__).resolve()), "--device", device, "--work", request]
            with stop.held():
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=ROOT,
                    # No earlier compilation may be reused.
                    env={
                        **os.environ,
                        "PYTHONUNBUFFERED": "1",
                        "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor",
                        "TRITON_CACHE_DIR": f"{scratch}/triton",
                    },
                    pass_fds=[handle],
                    start_new_session=True,
                )
                begun.append(process)
            return process

        try:
            run(sections, start, document, until=until, keep=keep)
        except KeyboardInterrupt:
            for process in begun[-1:]:  # earlier processes have ended
                end(process)
            for section in document["sections"].values():
                if section["status"] == "running":
                    section |= {"status": "failed", "error": "interrupted"}
            status = 130
        else:
            document["complete"] = True
            status = status_of(document)
        keep()
        if "start" in document["sections"]:
            tear_down(Path(scratch))
    shown = text(document)
    _write(out / "gpu.txt", shown)
    print(shown, end="")
    print(f"written to {out}: gpu.json, gpu.txt, gpu.log")
    return status


class _Stop:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt, but not between a process's start and its registration."""

    def __init__(self) -> None:
        self._held = False
        self._requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self._requested = True
        if not self._held:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay an interruption to the end of the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._requested:
            raise KeyboardInterrupt


def _write(path: Path, content: str) -> None:
    """Write the file atomically."""
    part = path.with_name(path.name + ".part")
    part.write_text(content)
    part.replace(path)


def _work(device: str, request_text: str) -> int:
    """Run the requested sections. Runs in the other process."""
    request = json.loads(request_text)
    os.set_inheritable(request["handle"], False)
    import torch

    from bench.parts.gpu_sections import run_here

    sections = [Section(**section) for section in request["sections"]]
    sizes = WHOLE if device == "cuda" else MINIATURE
    # With its index: without it the device is not equal to a tensor's.
    where = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    run_here(sections, sizes, where, Path(request["folder"]), request["handle"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
