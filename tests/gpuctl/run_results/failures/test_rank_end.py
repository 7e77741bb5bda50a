"""Test the cause of a rank's end if its node saw more than its exit status and log show."""

from typing import Any

import pytest

from gpuctl.run_results.failures.rank_end import rank_end
from gpuctl.run_results.rank_metrics import RankMetrics
from inventories.runs.end_reasons import Cause, Ended, EndFacts, Reason
from inventories.runs.records import RankRecord
from remote.end_sentences import sentence

TRACE = "Traceback (most recent call last):\n  x\n"
WORKER_KILLED = f"{TRACE}RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. \n"
NO_SPACE = f"{TRACE}OSError: [Errno 28] No space left on device\n"
BOOM = f"{TRACE}RuntimeError: boom\n"
KILLED = EndFacts(memory_kill_at=99.0, killed_process="python", killed_bytes=1_900_000_000)
SMALL_SHM = EndFacts(shm_bytes=67_108_864, shm_least_free_bytes=4096)
CRASH = """Fatal Python error: Segmentation fault

Current thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/root/.gpuctl-node/code/job-1/data.py", line 41 in load_batch
  File "/root/.gpuctl-node/code/job-1/train.py", line 9 in <module>

Thread 0x2 (most recent call first):
  File "/root/.gpuctl-node/code/job-1/other.py", line 1 in other

Extension modules: numpy (total: 1)
"""


def end_of(code: int | None, tail: str, seen: EndFacts | None = None, **facts: Any) -> Ended:
    seen = seen or EndFacts(**facts)
    record = RankRecord(
        rank=0, local_rank=0, pid=1, started_at=0.0, ended_at=100.0, exit_code=code, facts=seen
    )
    return rank_end(record, tail, RankMetrics())[0]


@pytest.mark.parametrize(("code", "tail"), [(-9, "epoch 3\n"), (None, ""), (1, WORKER_KILLED)])
def test_kill_by_the_kernel_is_named_as_lack_of_memory(code: int | None, tail: str) -> None:
    end = end_of(code, tail, seen=KILLED)
    assert (end.reason, end.cause) == (Reason.OUT_OF_MEMORY, Cause.KERNEL_KILL)
    assert "out of memory: the kernel killed python, which had 1.9 GB," in sentence(end)


@pytest.mark.parametrize(
    ("tail", "code", "facts", "limit"),
    [
        ("MemoryError", 1, {"address_space_bytes": 2 << 30}, "is limited to 2.1 GB (ulimit -v)"),
        ("RuntimeError: can't start new thread", 1, {"address_space_bytes": 1 << 28}, "to 268 MB (ulimit -v)"),
        ("RuntimeError: can't start new thread", 1, {"max_processes": 99}, "may have 99 processes and threads"),
        ("ImportError: x.so: failed to map segment from shared object", 1, {"address_space_bytes": 1 << 28}, "268"),
        ("OSError: [Errno 24] Too many open files: 'x'", 1, {"max_open_files": 64}, "64 open files (ulimit -n)"),
        ("OSError: [Errno 27] File too large", 1, {"max_file_bytes": 5_000_000}, "a file may have 5 MB (ulimit -f)"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", -6,
         {"address_space_bytes": 1 << 33}, "killed by SIGABRT: std::bad_alloc; the address space of the process is"),
    ],
)  # fmt: skip
def test_limit_of_the_process_is_told_with_the_error_that_it_explains(
    tail: str, code: int, facts: dict[str, int], limit: str
) -> None:
    log = f"Traceback (most recent call last):\n  x\n{tail}\n" if code > 0 else tail
    assert limit in sentence(end_of(code, log, **facts))
    assert "ulimit" not in sentence(end_of(code, log))


def test_exception_of_a_rank_that_did_not_end_is_told_before_the_signal() -> None:
    for code, name in ((-15, "SIGTERM"), (-9, "SIGKILL")):
        ended = end_of(code, BOOM)
        assert ended.cause is Cause.RAISED
        assert sentence(ended) == f"RuntimeError: boom; its process did not end by itself: killed by {name}"
    assert (
        sentence(end_of(-9, BOOM + "\nepoch 3 loss 0.2\n"))
        == "killed by SIGKILL; running out of memory is the usual cause"
    )


def test_process_of_a_pool_that_crashed_is_told_with_the_line() -> None:
    broken = "Traceback (most recent call last):\n  x\nfutures.process.BrokenProcessPool: A process ended.\n"
    assert sentence(end_of(1, CRASH + broken)) == (
        "exit status 1: futures.process.BrokenProcessPool: A process ended: it crashed in C code that was "
        "called from load_batch, data.py:41"
    )
    unknown = sentence(end_of(1, broken, no_memory_kill=True))
    assert unknown.endswith("A process ended; the kernel killed no process there for want of memory")


def test_kill_by_the_kernel_explains_no_error_of_another_kind() -> None:
    assert end_of(1, BOOM, seen=KILLED).reason is Reason.EXIT_CODE
    assert end_of(-15, "", seen=KILLED).reason is Reason.TERMINATED
    assert end_of(-9, "", memory_kill_at=10.0).reason is Reason.SIGNAL


@pytest.mark.parametrize(("code", "tail"), [(-7, "epoch 3\n"), (1, NO_SPACE)])
def test_full_shared_memory_is_named_where_it_was_seen_full(code: int, tail: str) -> None:
    assert end_of(code, tail, seen=SMALL_SHM).reason is Reason.SHARED_MEMORY_FULL
    roomy = EndFacts(shm_bytes=67_108_864, shm_least_free_bytes=60_000_000)
    assert end_of(code, tail, seen=roomy).reason is not Reason.SHARED_MEMORY_FULL


@pytest.mark.parametrize(
    "log", [f"epoch 3\n{CRASH}", f"epoch 3\n{CRASH.replace('Current thread 0x1', 'Stack')}"]
)
def test_crash_names_the_line_that_called_into_c_code(log: str) -> None:
    end = end_of(-11, log)
    assert sentence(end) == "killed by SIGSEGV in C code that was called from load_batch, data.py:41"
    assert end_of(1, log).place == "", "a worker's crash is not the rank's"


def test_crash_without_a_place_is_told_by_the_words_before_it() -> None:
    bare = "Fatal Python error: Aborted\n\nStack (most recent call first):\n  <no Python frame>\n"
    assert end_of(-11, bare).place == ""
    assert sentence(end_of(-11, f"epoch 3\n{bare}\nExtension modules: a, b (total: 2)\n")) == (
        "killed by SIGSEGV without a traceback; its log ends with: epoch 3"
    )
    at_exit = end_of(-6, f"terminate called without an active exception\n{CRASH}")
    assert at_exit.reason is Reason.THREAD_AT_EXIT
    local = end_of(1, f"Fatal Python error: init_fs_encoding: failed\n{BOOM}{CRASH}")
    assert local.detail == "RuntimeError: boom"


def test_words_of_a_node_can_not_steer_the_terminal() -> None:
    evil = "\x1b[31mpython"
    end = end_of(-9, "", memory_kill_at=99.0, killed_process=evil, nccl_interfaces=(evil,), nccl_warning=evil)
    assert "\x1b" not in repr(end) + sentence(end)
