"""What the end of a rank's log says, from logs as Python, torch, NCCL and Ray write them."""

import pytest

from gpuctl.run_results.log_errors import last_words, path_not_found, read
from inventories.end_reasons import Reason

BOOM = 'starting\nTraceback (most recent call last):\n  File "train.py", line 3, in <module>\nRuntimeError: boom\n'


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ("", ""),
        ("\n \n", ""),
        (
            "[rank1]: Traceback (most recent call last):\n[rank1]:   File\n[rank1]: ValueError: no\n[rank1]: more",
            "ValueError: no",
        ),
        (
            "[default0]:[rank0]: Traceback (most recent call last):\n"
            "[default0]:[rank0]:   x\n[default0]:[rank0]: E: y",
            "E: y",
        ),
        (
            BOOM + "\nDuring handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n  x\nKeyError: 'late'\n",
            "KeyError: 'late'",
        ),
        ("Traceback (most recent call last):\n  cut", "cut"),
        ("\x1b[31mred\x1b[0m\x07\n", "red"),
        (" 10%|#\r 50%|##\r", "50%|##"),
        (
            'Traceback (most recent call last):\n  File "drive.py", line 9\n    ray.get(ref)\n'
            "ray.exceptions.RayTaskError(ValueError): ray::fails() (pid=7, ip=127.0.0.2)\n"
            '  File "drive.py", line 4, in fails\nValueError: boom\n(fails pid=7) a task\'s own words\n',
            "ValueError: boom",
        ),
    ],
)
def test_last_words_extracts_error_line_from_log_tail(tail: str, said: str) -> None:
    assert last_words(tail) == said


def test_last_words_limits_length() -> None:
    assert len(last_words("x" * 1_000_000)) <= 2000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("RuntimeError: boom", None),
        ("RuntimeError: [/gloo/transport/tcp/pair.cc:537] Connection reset by peer", Reason.LOST_PEER),
        ("torch.distributed.DistBackendError: ncclRemoteError: A call failed", Reason.LOST_PEER),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly", Reason.LOST_PEER),
        ("RuntimeError: [gloo] Timed out waiting 1000ms for recv operation to complete", Reason.TIMED_OUT),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", Reason.OUT_OF_MEMORY),
        ("RuntimeError: CUDA error: out of memory", Reason.OUT_OF_MEMORY),
        ("MemoryError", Reason.OUT_OF_MEMORY),
        ("ModuleNotFoundError: No module named 'timm'", Reason.MODULE_NOT_FOUND),
        ("terminate called without an active exception", Reason.THREAD_AT_EXIT),
    ],
)
def test_read_tells_reason_by_the_libraries_words(line: str, reason: Reason | None) -> None:
    assert read(f"starting\n{line}\n").reason is reason


def test_read_tells_own_exception_from_one_that_was_asked_for() -> None:
    traced = "Traceback (most recent call last):\n  ...\n"
    assert read(BOOM).traceback
    assert not read("RuntimeError: boom\n").traceback
    assert not read(f"{traced}KeyboardInterrupt\n").traceback
    assert not read(f"{traced}torch...SignalException: Process 7 got signal: 15\n").traceback
    assert not read(f"{traced}RuntimeError: gloo: Broken pipe\n").traceback


def test_read_finds_what_the_watchdog_said_before_it_aborted() -> None:
    tail = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)\nterminate called\nframe #0: clone\n"
    assert (read(tail, aborted=True).reason, read(tail).reason) == (Reason.TIMED_OUT, None)


def test_read_names_ranks_that_missed_a_barrier() -> None:
    said = read("RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 5000 ms\n")
    assert (said.reason, said.ranks) == (Reason.TIMED_OUT, (2, 3))


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: '../data/a b.txt'", "../data/a b.txt"),
        ("FileNotFoundError: [Errno 2] No such file or directory: b'x.bin'", "x.bin"),
        ('FileNotFoundError: [Errno 2] No such file or directory: "it\'s.txt"', "it's.txt"),
        (
            "FileNotFoundError: [Errno 2] Unable to synchronously open file (unable to open file: name = 'a.h5', "
            "errno = 2, error message = 'No such file or directory', flags = 0)",
            "a.h5",
        ),
        ("cat: data/x.txt: No such file or directory", "data/x.txt"),
        ("RuntimeError: cannot open file 'tokens.bin'", "tokens.bin"),
        ("python: can't open file '/h/x.py': [Errno 2] No such file or directory", "/h/x.py"),
        ("ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory", ""),
        ("RuntimeError: Failed to open socket", ""),
        ("ValueError: no", ""),
    ],
)
def test_path_not_found_is_read_from_the_words_of_python_hdf5_and_c(words: str, path: str) -> None:
    assert path_not_found(words) == path
    assert (read(words).reason is Reason.FILE_NOT_FOUND) == bool(path)
