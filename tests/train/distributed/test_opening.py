"""A rank's GPU, opened while Python imports the job: with a planted driver, as this machine has no GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int say(const char *call, int number) {
    FILE *file = fopen(getenv("CALLS"), "a");
    fprintf(file, "%s %d\\n", call, number);
    return fclose(file);
}
int cuInit(unsigned flags) { sleep(1); return say("cuInit", flags) || BROKEN; }
int cuDeviceGet(int *device, int number) { *device = 40 + number; return say("cuDeviceGet", number); }
int cuDevicePrimaryCtxRetain(void **context, int device) { return say("cuDevicePrimaryCtxRetain", device); }
"""
PROGRAM = """
import sys, time
from train.distributed.opening import opening
began = time.perf_counter()
opened = opening(1)
time.sleep(0.01)
at_work = time.perf_counter() - began < 0.9 and opened.is_alive()
opening(1).join()
print(at_work, opening(1) is opened, "torch" in sys.modules)
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc, which builds the driver, is not installed")
@pytest.mark.parametrize(
    ("broken", "cuda", "calls"),
    [
        (0, "cuda: Optional[str] = '13.0'", ["cuInit 0", "cuDeviceGet 1", "cuDevicePrimaryCtxRetain 41"]),
        (1, "cuda = '12.6'", ["cuInit 0"]),
        (0, "cuda: Optional[str] = None", []),
    ],
    ids=["works", "broken", "torch-for-cpus"],
)
def test_opening_runs_beside_python_and_ignores_a_broken_driver(
    tmp_path: Path, broken: int, cuda: str, calls: list[str]
):
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").touch()
    (torch / "version.py").write_text(f"__version__ = '2.13'\n{cuda}\nhip = None\n")
    (tmp_path / "driver.c").write_text(DRIVER)
    library = ["-shared", "-fPIC", f"-DBROKEN={broken}", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(["gcc", *library, str(tmp_path / "driver.c")], check=True, timeout=60)
    environment = {
        "LD_LIBRARY_PATH": str(tmp_path),
        "CALLS": str(tmp_path / "calls"),
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == ([str(calls != []), "True", "False"], "")
    (tmp_path / "calls").touch()
    assert (tmp_path / "calls").read_text().splitlines() == calls


def test_opening_is_nothing_without_a_driver():
    program = "from train.distributed.opening import opening\nopening(0).join()"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
