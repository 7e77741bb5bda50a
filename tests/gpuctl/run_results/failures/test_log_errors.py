"""Test finding the error at the end of a rank's log, from logs of Python, torch, NCCL and Ray."""

import pytest

from gpuctl.run_results.failures.log_errors import path_not_found, read
from inventories.runs.end_reasons import Cause, Reason

BOOM = 'starting\nTraceback (most recent call last):\n  File "train.py", line 3, in <module>\nRuntimeError: boom\n'


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("", ""),
        ("\n \n", ""),
        (
            "[rank1]: Traceback (most recent call last):\n[rank1]:   File\n[rank1]: ValueError: no\n[rank1]: more",
            "ValueError: no more",
        ),
        (
            "[default0]:[rank0]: Traceback (most recent call last):\n"
            "[default0]:[rank0]:   x\n[default0]:[rank0]: E: y",
            "E: y",
        ),
        (
            BOOM + "\nDuring handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n  x\nKeyError: 'late'\n",
            "KeyError: 'late', after RuntimeError: boom",
        ),
        ("Traceback (most recent call last):\n  cut", "cut"),
        (
            " 40%|████      | 40/100 [00:00<00:00, 194.73it/s]error: shard 7\r 40%|████      | 40/100 [00:00<00:00]",
            "error: shard 7",
        ),
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
def test_read_extracts_error_from_log_tail(tail: str, message: str) -> None:
    assert read(tail).words == message


def test_read_limits_length() -> None:
    assert len(read("x" * 1_000_000).words) <= 2000
    assert len(read("Traceback (most recent call last):\n  x\nE: " + "x" * 1_000_000).words) <= 800


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


DIST = "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:77, unhandled system error, NCCL"
ASSERT = "Loss.cu:250: nll_loss: block: [0,0,0], thread: [4,0,0] Assertion `t >= 0 && t < n_classes` failed."


@pytest.mark.parametrize(
    ("line", "reason", "cause"),
    [
        ("RuntimeError: CUDA error: out of memory", Reason.OUT_OF_MEMORY, Cause.GPU_MEMORY),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED", Reason.OUT_OF_MEMORY, Cause.GPU_MEMORY),
        ("MemoryError", Reason.OUT_OF_MEMORY, None),
        ("RuntimeError: CUDA error: device-side assert triggered", Reason.CUDA_ERROR, Cause.DEVICE_ASSERT),
        (
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            Reason.CUDA_ERROR,
            Cause.ILLEGAL_ACCESS,
        ),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            Reason.CUDA_ERROR,
            Cause.NO_KERNEL_IMAGE,
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
            Reason.CUDA_ERROR,
            Cause.DRIVER_TOO_OLD,
        ),
        ("RuntimeError: Found no NVIDIA driver on your system.", Reason.CUDA_ERROR, Cause.NO_DRIVER),
        ("AssertionError: Torch not compiled with CUDA enabled", Reason.CUDA_ERROR, Cause.CPU_BUILD),
        ("ValueError: Invalid backend: 'ncll'", None, Cause.UNKNOWN_BACKEND),
        (
            "RuntimeError: Distributed package doesn't have MPI built in",
            None,
            Cause.UNKNOWN_BACKEND,
        ),
        ("RuntimeError: Distributed package doesn't have NCCL built in", None, Cause.NO_BACKEND),
        ("RuntimeError: CUDA error: invalid device ordinal", Reason.CUDA_ERROR, Cause.NO_SUCH_GPU),
        (
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            Reason.CUDA_ERROR,
            Cause.GPU_BUSY,
        ),
        ("RuntimeError: CUDA error: system not yet initialized", Reason.CUDA_ERROR, Cause.FABRIC_MANAGER),
        (
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            Reason.CUDA_ERROR,
            Cause.GPU_BROKEN,
        ),
        ("RuntimeError: CUDA error: something new", Reason.CUDA_ERROR, None),
        (
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            None,
            Cause.NO_BACKEND,
        ),
        ("RuntimeError: No backend type associated with device type cpu", None, Cause.CPU_TENSOR),
        ("RuntimeError: 0 active drivers ([]). There should only be one.", None, Cause.NO_GPU),
        (
            "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend.",
            None,
            None,
        ),
        ("RuntimeError: expected a CPU tensor, got cuda:0", None, None),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
            Reason.SHARED_MEMORY_FULL,
            None,
        ),
        (
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_7_8>: No space left on device (28)",
            Reason.SHARED_MEMORY_FULL,
            None,
        ),
        ("RuntimeError: unable to write to file </torch_7_8>", Reason.SHARED_MEMORY_FULL, None),
        (
            f"{DIST}\nncclSystemError: System call failed.\nLast error:\nConnect failed",
            Reason.NCCL_ERROR,
            None,
        ),
        (
            f"{DIST}\nncclInvalidUsage: ...\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA "
            "device 1000",
            Reason.NCCL_ERROR,
            Cause.SAME_GPU,
        ),
        (
            f"{DIST}\nncclSystemError: x\nLast error:\nError while creating shared memory segment /dev/shm/nccl-x "
            "(size 9637888), error: No space left on device (28)",
            Reason.SHARED_MEMORY_FULL,
            None,
        ),
        (
            f"{DIST}\nncclUnhandledCudaError: x\nLast error:\nCuda failure 'out of memory'",
            Reason.OUT_OF_MEMORY,
            Cause.GPU_MEMORY,
        ),
        (f"{DIST}\nncclRemoteError: x\nLast error:\nremote process exited", Reason.LOST_PEER, None),
        ("epoch 3", None, Cause.SILENT),
        ("ValueError: unrecognized arguments: --x", None, None),
    ],
)
def test_read_tells_cause_by_the_words_of_cuda_nccl_and_torch(
    line: str, reason: Reason | None, cause: Cause | None
) -> None:
    trace = "" if cause is Cause.SILENT else "Traceback (most recent call last):\n  File\n"
    output = read(f"starting\n{trace}{line}\n")
    assert (output.reason, output.cause) == (reason, cause)


def test_read_adds_what_explains_an_error_of_cuda_or_nccl() -> None:
    trace = "Traceback (most recent call last):\n  File\n"
    failed = read(
        f"{ASSERT}\n{trace}RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors\n"
    )
    assert failed.words.endswith("device-side assert triggered: Assertion `t >= 0 && t < n_classes` failed")
    lines = f"{trace}{DIST}\nLast error:\nsocketPollConnect: refused".split("\n")
    failed = read("\n".join(f"[rank0]: {line}" for line in lines))
    assert failed.words == f"{DIST}: socketPollConnect: refused"


def test_read_tells_own_exception_from_one_that_was_asked_for() -> None:
    traced = "Traceback (most recent call last):\n  ...\n"
    assert read(BOOM).traceback
    assert not read("RuntimeError: boom\n").traceback
    assert not read(f"{traced}KeyboardInterrupt\n").traceback
    assert not read(f"{traced}torch...SignalException: Process 7 got signal: 15\n").traceback
    assert not read(f"{traced}RuntimeError: gloo: Broken pipe\n").traceback


def test_read_finds_what_the_watchdog_said_before_it_aborted() -> None:
    tail = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)\nterminate called\nframe #0: clone\n"
    assert (read(tail, code=-6).reason, read(tail).reason) == (Reason.TIMED_OUT, None)


def test_read_names_ranks_that_missed_a_barrier() -> None:
    output = read("RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 5000 ms\n")
    assert (output.reason, output.ranks) == (Reason.TIMED_OUT, (2, 3))


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
        ("RuntimeError: Parent directory my out/a does not exist.", "my out/a/"),
        ("OSError: Cannot save file into a non-existent directory: 'out'", "out/"),
        ("python: can't open file '/h/x.py': [Errno 2] No such file or directory", "/h/x.py"),
        ("ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory", ""),
        ("RuntimeError: Failed to open socket", ""),
        ("ValueError: no", ""),
    ],
)
def test_path_not_found_is_read_from_the_words_of_python_hdf5_and_c(words: str, path: str) -> None:
    assert path_not_found(words) == path
    assert (read(words).reason is Reason.FILE_NOT_FOUND) == bool(path)


SENT = "/home/ubuntu/.gpuctl-node/code/proj-63f92a52"
LIBRARY = "/x/site-packages/torch/distributed"
BAD_LABEL = (
    f'Traceback (most recent call last):\n  File "{SENT}/v.py", line 4, in <module>\n    load()\n'
    f'  File "{SENT}/sets/data.py", line 41, in load\n    check(row)\n'
    '  File "/x/site-packages/lib.py", line 7, in check\n    raise ValueError(row)\n'
    "ValueError: bad\nlabel in row 7\n"
)


@pytest.mark.parametrize(
    ("tail", "words", "place"),
    [
        (BAD_LABEL, "ValueError: bad label in row 7", "sets/data.py:41"),
        (f"{BAD_LABEL}\nlater", "ValueError: bad label in row 7", "sets/data.py:41"),
        (
            f"{BAD_LABEL}[W1123 18:01:09 x.cpp:1250] Warning\n",
            "ValueError: bad label in row 7",
            "sets/data.py:41",
        ),
        (
            f"  File \"{SENT}/train.py\", line 12\n    x = (1,\n        ^\nSyntaxError: '(' was never closed\n",
            "SyntaxError: '(' was never closed",
            "train.py, line 12",
        ),
        (BOOM, "RuntimeError: boom", ""),
    ],
)
def test_read_tells_the_whole_message_and_where_in_the_project_it_was_raised(
    tail: str, words: str, place: str
) -> None:
    result = read(tail)
    assert (result.words, result.place, result.traceback, result.reason) == (words, place, True, None)


def test_read_bounds_a_message_of_many_lines() -> None:
    result = read("Traceback (most recent call last):\n  x\nValueError: 1\n" + "2\n" * 50)
    assert result.words == "ValueError: 1 2 2 2 2 2 … (34 more lines)"


def test_read_tells_which_collective_lost_its_peer_without_torch_s_own_text() -> None:
    tail = (
        f'Traceback (most recent call last):\n  File "{SENT}/h.py", line 8, in <module>\n    dist.all_reduce(t)\n'
        f'  File "{LIBRARY}/c10d_logger.py", line 83, in wrapper\n    return func(*args, **kwargs)\n'
        f'  File "{LIBRARY}/distributed_c10d.py", line 3252, in all_reduce\n    work.wait()\n'
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:1933. This is typically caused by a remote worker crashing. Check its logs. GLHF!\n"
    )
    result = read("".join(f"[rank0]: {line}\n" for line in tail.splitlines()))
    assert (result.reason, result.place) == (Reason.LOST_PEER, "all_reduce, h.py:8")
    assert result.words == "RuntimeError: Connection closed by peer [127.0.0.1]:1933"
