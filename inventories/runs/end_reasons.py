"""Reasons for the end of a rank, of a node's part in a run, or of a run: a closed set, each with its facts.

Records hold these values. Sentences are made of them where they are shown (`remote/end_sentences.py`), never read.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

STOP_GRACE_S = 30.0
"""For the ranks of a run that is stopped, where nobody says otherwise."""


class Reason(StrEnum):
    """The reason for an end."""

    # A rank.
    EXIT_CODE = "exit_code"
    """The process exited with another status than 0."""
    SIGNAL = "signal"
    """A signal that asks for nothing: it was killed, or it crashed."""
    TERMINATED = "terminated"
    """SIGTERM, SIGINT or SIGHUP: somebody asked it to end."""
    OUT_OF_MEMORY = "out_of_memory"
    SHARED_MEMORY_FULL = "shared_memory_full"
    """The /dev/shm over which DataLoader workers and NCCL hand data on."""
    CUDA_ERROR = "cuda_error"
    NCCL_ERROR = "nccl_error"
    """NCCL failed, and not as a peer was gone."""
    MODULE_NOT_FOUND = "module_not_found"
    FILE_NOT_FOUND = "file_not_found"
    THREAD_AT_EXIT = "thread_at_exit"
    """A library's thread was still running when Python ended."""
    NOT_STARTED = "not_started"
    """Its program could not be started. Also a node's."""
    LOST_PEER = "lost_peer"
    """Another rank was gone."""
    TIMED_OUT = "timed_out"
    """It gave up waiting for others."""
    HUNG = "hung"
    """Others gave up waiting for it."""
    ENDED_EARLY = "ended_early"
    """Others gave up waiting for it, as it had ended well."""
    UNKNOWN = "unknown"
    """It is gone, and nobody saw its exit status."""

    # A node's part in a run.
    LAUNCHER_ENDED = "launcher_ended"
    """The launcher failed; no rank explains it."""
    RAY_ENDED = "ray_ended"
    RAY_LATE = "ray_late"
    """Ray did not start a rank in time."""
    DISK_FULL = "disk_full"
    SHUT_DOWN = "shut_down"
    """SIGTERM that is not gpuctl's: the machine was shut down, or somebody on it ended the run."""
    REBOOTED = "rebooted"
    CONTAINER_RESTARTED = "container_restarted"
    """The machine is a pod, and its container was started again."""
    RUNNER_KILLED = "runner_killed"
    NO_RECORD = "no_record"
    """The run was never started there, or its folder is gone."""
    NODE_FAILED = "node_failed"
    """The node refused to start it, and said why."""
    NODE_LOST = "node_lost"
    """The connection broke, and no other could be made."""
    NODE_SILENT = "node_silent"
    """It can be logged in to, and nothing more."""
    UNREACHABLE = "unreachable"
    """No connection could be made at all."""
    BAD_ANSWER = "bad_answer"
    """The node's messages can't be understood."""
    MACHINE_REMOVED = "machine_removed"

    # gpuctl ended it.
    STOPPED = "stopped"
    """A person asked for it."""
    STOPPED_HUNG = "stopped_hung"
    """It hung, and was to be stopped then."""
    GPUS_IDLE = "gpus_idle"
    """Its GPUs were below the limit of --end-if-gpu-below."""
    RESIZED = "resized"
    """More machines can take part in an elastic job."""
    PEER_FAILED = "peer_failed"
    """Another node's part had failed."""


class Cause(StrEnum):
    """The cause behind a reason, as far as messages and the node show it."""

    KERNEL_KILL = "kernel_kill"
    """The kernel killed the rank, or a descendant, for lack of memory."""
    ARGUMENTS = "arguments"
    """The script refused its arguments."""
    CHILD_KILLED = "child_killed"
    """A process that it had started was killed, it is not known by what."""
    CHILD_GONE = "child_gone"
    """A process that it had started ended, it is not known how."""
    GPU_MEMORY = "gpu_memory"
    OPEN_FILES = "open_files"
    """It had as many open files as its limit allows."""
    PROCESSES = "processes"
    """No more processes or threads could be started."""
    FILE_SIZE = "file_size"
    """A file had reached the limit of its size."""
    RAISED = "raised"
    """Its script had ended with an exception; its process had not."""
    SILENT = "silent"
    """Its log has no traceback, and its last line names no error."""
    DEVICE_ASSERT = "device_assert"
    """A check in a kernel failed."""
    ILLEGAL_ACCESS = "illegal_access"
    NO_KERNEL_IMAGE = "no_kernel_image"
    """PyTorch was built for other GPUs."""
    DRIVER_TOO_OLD = "driver_too_old"
    NO_DRIVER = "no_driver"
    CPU_BUILD = "cpu_build"
    """PyTorch was built without CUDA."""
    NO_GPU = "no_gpu"
    """The script needs a GPU or another accelerator that its node does not have."""
    NO_BACKEND = "no_backend"
    """PyTorch has no NCCL or another backend for accelerators, or it needs GPUs."""
    UNKNOWN_BACKEND = "unknown_backend"
    """PyTorch has no other backend of that name."""
    CPU_TENSOR = "cpu_tensor"
    """The script passed a tensor on the CPU to NCCL."""
    CPU_MODEL = "cpu_model"
    """The script passed GPU ids for a model on the CPU."""
    NO_SUCH_GPU = "no_such_gpu"
    GPU_BUSY = "gpu_busy"
    FABRIC_MANAGER = "fabric_manager"
    """What manages the links among the GPUs does not run."""
    GPU_BROKEN = "gpu_broken"
    SAME_GPU = "same_gpu"
    """Two ranks use one GPU."""


STOPS = frozenset({Reason.STOPPED, Reason.STOPPED_HUNG, Reason.GPUS_IDLE, Reason.RESIZED, Reason.PEER_FAILED})
"""gpuctl ended it: no failure."""
WAITED_FOR = frozenset({Reason.TIMED_OUT, Reason.HUNG, Reason.ENDED_EARLY})
"""Ranks gave up waiting for others; of a run, where it is not always known for which."""


@dataclass(frozen=True, kw_only=True)
class EndFacts:
    """Facts that a node saw of a rank that failed. `None`: not known there."""

    no_memory_kill: bool = False
    """Whether it is certain that the kernel killed nothing there for want of memory."""
    memory_kill_at: float | None = None
    """Time of the kernel's last kill in the rank's group; the node's clock. `None`: never, or it is not known."""
    killed_process: str = ""
    killed_bytes: int | None = None
    """What that process had, by the kernel's log."""
    used_up: Literal["group", "node"] | None = None
    """Whose memory was, by the kernel's log: that of a control group (a container, a session), or the node's."""
    memory_limit_bytes: int | None = None
    """Of its control group. `None`: it has all of the node's, or it is not known."""
    memory_bytes: int | None = None
    """The node's."""
    shm_bytes: int | None = None
    """Size of /dev/shm."""
    shm_least_free_bytes: int | None = None
    """The least that was seen free there."""
    address_space_bytes: int | None = None
    """The rank's own limit (`ulimit -v`). `None`: unlimited, or not known."""
    max_file_bytes: int | None = None
    """`ulimit -f`"""
    max_open_files: int | None = None
    """`ulimit -n`"""
    max_processes: int | None = None
    """`ulimit -u`, of processes and threads of the user."""
    nccl_interfaces: tuple[str, ...] = ()
    """`ens5:10.0.0.4`, `mlx5_0`: NCCL's interfaces, chosen or set."""
    nccl_warning: str = ""
    """The last one in its log."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A reason and its facts; the reason decides which facts exist."""

    reason: Reason
    exit_code: int | None = None
    """Negative: ended by that signal; from 129 on as a shell reports it. `None`: not known."""
    rank: int | None = None
    """The rank that gave up waiting, or that was not started."""
    ranks: tuple[int, ...] = ()
    """The ranks that others waited for, as far as they are known."""
    seconds: float | None = None
    """How long was waited, or GPUs were below a limit."""
    percent: float | None = None
    """The limit of the GPUs' use."""
    free_bytes: int | None = None
    program: str = ""
    """The program: a launcher, or a rank's command."""
    detail: str = ""
    """Words of others: the script's, a library's, the system's, SSH's."""
    cause: Cause | None = None
    place: str = ""
    """Where in the project: a crash `load_batch, data.py:41`, an exception `data.py:41`, a wait `barrier, a.py:8`."""
    facts: EndFacts | None = None

    @property
    def signal(self) -> int | None:
        """The signal that ended it."""
        if self.exit_code is None or 0 <= self.exit_code <= 128 or self.exit_code >= 160:
            return None
        return -self.exit_code if self.exit_code < 0 else self.exit_code - 128
