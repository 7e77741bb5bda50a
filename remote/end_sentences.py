"""The sentence for each reason that ends a rank, a node's part in a run, or a run. No code reads a sentence."""

import signal
from collections.abc import Iterator, Mapping, Sequence

from inventories.runs.end_reasons import Cause, Ended, EndFacts, Reason
from inventories.runs.records import LeftProcess, NodeEnding
from inventories.text import listed
from remote.findings import number_ranges

MEMORY = "running out of memory is the usual cause"
BLOCKING = "CUDA tells of it late: --env CUDA_LAUNCH_BLOCKING=1 makes the traceback name the line"
NO_MEMORY_KILL = "; the kernel killed no process there for want of memory"
ON_CPU = 'without a GPU use torch.device("cuda" if torch.cuda.is_available() else "cpu")'
SET_BY = "by the script or by the node's /etc/security/limits.conf"
LIMITS = (Cause.OPEN_FILES, Cause.PROCESSES, Cause.FILE_SIZE)
"""Limits of a process, which its node reads."""
CAUSES = {
    Cause.DEVICE_ASSERT: "an index was out of range, often a label or token beyond the model's number of them. "
    + BLOCKING,
    Cause.ILLEGAL_ACCESS: f"a kernel used memory that is not its own, often one of an extension. {BLOCKING}",
    Cause.NO_KERNEL_IMAGE: "this PyTorch was built for other GPUs: install a build for this one's compute capability",
    Cause.DRIVER_TOO_OLD: "the node's NVIDIA driver is older than PyTorch's CUDA needs: install a newer driver, or a "
    "PyTorch that was built for an older CUDA",
    Cause.NO_DRIVER: f"the node has no NVIDIA driver that works: {ON_CPU}, and with GPUs run gpuctl doctor --cluster",
    Cause.CPU_BUILD: f"this PyTorch is a build for CPUs: {ON_CPU}, and with GPUs install a build for CUDA",
    Cause.NO_GPU: f"the rank has no such device: {ON_CPU}, and leave device_id out",
    Cause.NO_BACKEND: 'use gloo where there is no GPU: init_process_group("nccl" if torch.cuda.is_available() else '
    '"gloo"); with GPUs run gpuctl doctor --cluster',
    Cause.UNKNOWN_BACKEND: "this PyTorch has no such backend: the usual ones are nccl (GPUs) and gloo (CPUs)",
    Cause.CPU_TENSOR: 'NCCL takes tensors on a GPU only: move the tensor to the GPU, or init_process_group("cpu:gloo,'
    'cuda:nccl")',
    Cause.CPU_MODEL: "the model is on the CPU: move it to the GPU first, or without a GPU leave device_ids out",
    Cause.NO_SUCH_GPU: "the rank asked for a GPU that it does not have: --nproc-per-node may be too high, or "
    "CUDA_VISIBLE_DEVICES or --device cpu hides some",
    Cause.GPU_BUSY: "another process has the GPU for itself: gpuctl top shows which GPUs are in use",
    Cause.FABRIC_MANAGER: "NVIDIA's fabric manager does not run on the node: "
    "sudo systemctl restart nvidia-fabricmanager",
    Cause.GPU_BROKEN: "the GPU itself is at fault: replace the machine, or have it rebooted",
    Cause.SAME_GPU: "two ranks use one GPU: call torch.cuda.set_device with LOCAL_RANK before the first collective",
}
"""The cause of an error of a GPU or a backend, and the way out."""


WITHOUT_FACTS = {
    Reason.STOPPED: "stopped",
    Reason.STOPPED_HUNG: "stopped, as it hung",
    Reason.RESIZED: "stopped, as more machines can take part",
    Reason.PEER_FAILED: "stopped, as another node had failed",
    Reason.SHUT_DOWN: "the run was ended by SIGTERM: the machine was shut down, or somebody on it ended the run",
    Reason.REBOOTED: "the machine was rebooted during the run",
    Reason.CONTAINER_RESTARTED: "the pod's container was started again during the run: Ray in it ended, as it does "
    "where the head is lost, or its memory was used up (`kubectl describe pod` shows which)",
    Reason.RUNNER_KILLED: "the supervisor of the run was killed from outside",
    Reason.MACHINE_REMOVED: "the machine was removed or replaced before the run's end could be brought back",
}
"""The whole sentence on an end that has no facts."""


def sentence(ended: Ended) -> str:
    """Return one line on the end: `exit status 3: RuntimeError: boom`. Also where its facts are not known."""
    if ended.reason in WITHOUT_FACTS:
        return WITHOUT_FACTS[ended.reason]
    match ended.reason:
        case Reason.OUT_OF_MEMORY if ended.cause is Cause.KERNEL_KILL:
            facts = ended.facts or EndFacts()
            had = f", which had {_gb(facts.killed_bytes)}," if facts.killed_bytes else ""
            killed = f"the kernel killed {facts.killed_process or 'a process of it'}{had}{_used_up(facts)}"
            return f"out of memory: {killed} ({_with_words(exit_text(ended), ended)})"
        case Reason.TERMINATED | Reason.SIGNAL if ended.cause is Cause.RAISED:
            place = f" ({ended.place})" if ended.place else ""
            return f"{ended.detail}{place}; its process did not end by itself: {exit_text(ended)}"
        case Reason.SIGNAL if ended.signal == signal.SIGKILL:
            return f"{exit_text(ended)}; {_who_killed(ended)}"
        case Reason.UNKNOWN:
            return f"killed, it is not known by what; {_who_killed(ended)}"
        case Reason.SIGNAL if ended.place:
            words = f": {ended.detail}" if ended.detail and ended.cause is not Cause.SILENT else ""
            return f"{exit_text(ended)} in C code that was called from {ended.place}{words}"
        case Reason.SIGNAL | Reason.EXIT_CODE if ended.cause is Cause.SILENT:
            if not ended.detail:
                return f"{exit_text(ended)} without a word in its log"
            return f"{exit_text(ended)} without a traceback; its log ends with: {ended.detail}"
        case Reason.EXIT_CODE if ended.cause is Cause.CHILD_KILLED:
            return f"{_with_words(exit_text(ended), ended).rstrip('.')}; {_who_killed(ended)}"
        case Reason.OUT_OF_MEMORY:
            return f"{_with_words(exit_text(ended), ended)}{_address_space(ended.facts)}"
        case Reason.EXIT_CODE if ended.cause is Cause.CHILD_GONE:
            memory = "" if ended.facts is None or not ended.facts.no_memory_kill else NO_MEMORY_KILL
            return f"{_with_words(exit_text(ended), ended).rstrip('.')}{memory}"
        case Reason.EXIT_CODE | Reason.SIGNAL if ended.cause in LIMITS:
            return f"{_with_words(exit_text(ended), ended)}{_limit(ended)}"
        case Reason.SHARED_MEMORY_FULL:
            return f"{_with_words(exit_text(ended), ended)}; {_shared_memory(ended.facts)}"
        case Reason.NCCL_ERROR:
            return f"{_with_words(exit_text(ended), ended)}{_nccl(ended.facts)}{_cause(ended)}"
        case Reason.EXIT_CODE | Reason.CUDA_ERROR if ended.cause in CAUSES:
            return f"{_with_words(exit_text(ended), ended)}{_cause(ended)}"
        case Reason.THREAD_AT_EXIT:
            return (
                f"{_with_words(exit_text(ended), ended)}; if its work was done, a thread of torch's gloo was "
                "still at it when Python ended: end the script with os._exit(0)"
            )
        case Reason.NOT_STARTED:
            return _with_words(f"{ended.program or 'its program'} could not be started", ended)
        case Reason.LAUNCHER_ENDED if ended.exit_code is None:
            return f"{_launcher(ended)} ended, and its exit status is not known"
        case Reason.LAUNCHER_ENDED:
            return f"{_launcher(ended)} ended by itself: {exit_text(ended)}"
        case Reason.TIMED_OUT | Reason.HUNG | Reason.ENDED_EARLY:
            return _waiting(ended)
        case Reason.RAY_ENDED:
            return _with_words("Ray ended here during the run", ended)
        case Reason.RAY_LATE:
            return (
                f"Ray did not start {_rank(ended)} here{_within(ended) or ' in time'}: others may use what it has "
                "(gpuctl ray stop ends them, too)"
            )
        case Reason.GPUS_IDLE:
            limit = "the limit" if ended.percent is None else f"{ended.percent:g} %"
            since = "" if ended.seconds is None else f" for {_long(ended.seconds)}"
            return f"stopped, as all its GPUs were below {limit}{since}"
        case Reason.DISK_FULL:
            free = ended.free_bytes
            full = "the disk is full"
            return ended.detail or full if free is None else f"{full} ({free // 1024} kB free)"
        case Reason.NO_RECORD:
            return f"the run was never started here, or its folder {ended.detail or 'there'} is gone"
        case Reason.NODE_LOST:
            return _with_words(f"the node was lost and could not be reached again{_within(ended)}", ended)
        case Reason.NODE_SILENT:
            since = "for long" if ended.seconds is None else f"for {ended.seconds:.0f} s"
            return (
                f"the node was lost: it can be logged in to, but has said nothing {since}. Its disk may hang, its "
                "memory be used up, or large packets be lost on the way."
            )
        case Reason.NODE_FAILED | Reason.UNREACHABLE | Reason.BAD_ANSWER:
            return ended.detail or "it is not known what ended it"
        case _:  # of a rank, without further facts
            return _with_words(exit_text(ended), ended)


def _cause(ended: Ended) -> str:
    text = CAUSES.get(ended.cause) if ended.cause else None
    return f"; {text}" if text else ""


def _who_killed(ended: Ended) -> str:
    if ended.facts is None or not ended.facts.no_memory_kill:
        return MEMORY
    return "the kernel did not do it for want of memory: somebody did, or a service of the node such as systemd-oomd"


def _used_up(facts: EndFacts) -> str:
    limit = facts.memory_limit_bytes
    if facts.used_up == "node":
        size = f" of {_gb(facts.memory_bytes)}" if facts.memory_bytes else ""
        return f" as the node's memory{size} was used up"
    if limit:
        return f" as its container or session had reached its memory limit of {_gb(limit)}"
    if facts.used_up == "group":
        return " as its container or session had reached its memory limit"
    return " for want of memory"


def _address_space(facts: EndFacts | None) -> str:
    if facts is None or facts.address_space_bytes is None:
        return ""
    return f"; the address space of the process is limited to {_gb(facts.address_space_bytes)} (ulimit -v), {SET_BY}"


def _limit(ended: Ended) -> str:
    """The limit that explains an error, where it is known."""
    facts = ended.facts or EndFacts()
    match ended.cause:
        case Cause.OPEN_FILES if facts.max_open_files:
            limit = f"a process may have {facts.max_open_files} open files (ulimit -n)"
        case Cause.PROCESSES if facts.max_processes:
            limit = f"its user may have {facts.max_processes} processes and threads (ulimit -u)"
        case Cause.FILE_SIZE if facts.max_file_bytes:
            limit = f"a file may have {_gb(facts.max_file_bytes)} (ulimit -f)"
        case _:
            return ""
    return f"; {limit}, {SET_BY}"


def _shared_memory(facts: EndFacts | None) -> str:
    size = f", {_gb(facts.shm_bytes)}," if facts and facts.shm_bytes else ""
    return (
        f"the shared memory in /dev/shm{size} was full: use fewer DataLoader workers, or enlarge it with sudo mount "
        "-o remount,size=50% /dev/shm (of a container: its --shm-size)"
    )


def _nccl(facts: EndFacts | None) -> str:
    if facts is None:
        return ""
    used = f"; NCCL used {' and '.join(facts.nccl_interfaces)}" if facts.nccl_interfaces else ""
    warned = f"{' and' if used else '; NCCL'} warned: {facts.nccl_warning}" if facts.nccl_warning else ""
    return f"{used}{warned}"


def _gb(size: int | None) -> str:
    """`1.9 GB`, `64 MB`."""
    size = size or 0
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _waiting(ended: Ended) -> str:
    """Return the sentence on ranks that others waited for until they timed out."""
    if ended.reason is Reason.TIMED_OUT:
        return (
            "every rank waited for others until its time was over: the network between them fails, or they are not "
            f"in the same operation; {_rank(ended)} waited in vain{_in_brackets(ended)}"
        )
    single = len(ended.ranks) <= 1
    if ended.reason is Reason.ENDED_EARLY:
        subject = "" if single else f"the ranks {_ranks(ended.ranks)} "
        at = f" ({ended.place})" if ended.place else _in_brackets(ended)
        return f"{subject}ended with exit status 0 while {_rank(ended)} waited for {'it' if single else 'them'}{at}"
    subject = "" if single else f"one of the ranks {_ranks(ended.ranks)} "
    whom = "it" if single else "them"
    return f"{subject}hung, or was far behind: {_rank(ended)} waited for {whom} in vain{_in_brackets(ended)}"


def _ranks(ranks: Sequence[int]) -> str:
    """`1, 2 and 3`, of many `0-61,63`."""
    return listed(list(map(str, ranks)), limit=8) if len(ranks) <= 8 else number_ranges(ranks)


def _rank(ended: Ended) -> str:
    return "a rank" if ended.rank is None else f"rank {ended.rank}"


def _launcher(ended: Ended) -> str:
    return ended.program or "the launcher"


def _within(ended: Ended) -> str:
    return "" if ended.seconds is None else f" within {ended.seconds:.0f} s"


def _in_brackets(ended: Ended) -> str:
    return f" ({ended.detail})" if ended.detail else ""


def _with_words(text: str, ended: Ended) -> str:
    """Return a text, followed by the words of others, if any."""
    place = f" ({ended.place})" if ended.place else ""
    return f"{text}: {ended.detail}{place}" if ended.detail else text


def exit_text(ended: Ended) -> str:
    """`exit status 3`, `killed by SIGKILL`, `exit status 139 (SIGSEGV)`."""
    code = ended.exit_code
    if code is None:
        return "its exit status is not known"
    if code < 0:
        return f"killed by {signal_name(-code)}"
    return f"exit status {code}" + (f" ({signal_name(ended.signal)})" if ended.signal else "")


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 99`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


SHORT_S = 1.0
"""Ranks that end sooner are not worth a line."""


def interrupt_text(begun: bool, ended: bool, grace_s: float) -> str:
    """Return the line on the first Ctrl-C. `begun`: whether a rank has; `ended`: whether all ranks have."""
    if not begun:
        return "stopping the run on every node before its ranks begin"
    grace = seconds_text(grace_s)
    if ended:
        return f"the ranks have ended; processes that they left behind get up to {grace}; Ctrl-C again kills them"
    return f"stopping the run on every node: ranks are given up to {grace} to save; Ctrl-C again kills them"


def waiting_text(ending: NodeEnding) -> str:
    """Return the text on the ranks and processes that a node waits for."""
    grace = seconds_text(ending.grace_s)
    if ending.active:
        still = "still runs" if len(ending.active) == 1 else "still run"
        return f"{ranks_text(ending.active)} {still}; ranks are given up to {grace} to save"
    return f"its ranks have ended; waiting up to {grace} for what they left behind: {_processes(ending.left)}"


def ended_lines(endings: Mapping[str, NodeEnding]) -> Iterator[str]:
    """Yield the lines on how a run's ranks were ended: the time, the killed ranks, the processes left behind.

    `endings`: by node.
    """
    killed = [ending for ending in endings.values() if ending.killed]
    took = [
        ending
        for ending in endings.values()
        if ending.signal and not ending.killed and ending.seconds is not None and ending.seconds >= SHORT_S
    ]
    if killed:
        ranks = sorted(rank for ending in killed for rank in ending.killed)
        were, last = "was" if len(ranks) == 1 else "were", max(killed, key=lambda ending: ending.grace_s)
        since = last.signal or "the failure"
        late = f" did not end within {seconds_text(last.grace_s)} of {since} and" * (last.grace_s > 0)
        more_time = "; --stop-grace gives ranks that save more time" * (last.grace_s > 0)
        at_once = _AT_ONCE.get(last.signal or "", "")
        if more_time and at_once and len(ranks) > 1:  # Python interrupts no rank that waits in a collective
            more_time = (
                f". Ranks that wait for each other do not end in any time, and {at_once} kills them at once; "
                "--stop-grace gives ranks that save more time"
            )
        yield f"{ranks_text(ranks)}{late} {were} killed{more_time}"
    if took:
        last = max(took, key=lambda ending: ending.seconds or 0.0)
        yield f"the {'other ' * bool(killed)}ranks ended within {seconds_text(last.seconds or 0.0)} of {last.signal}"
    for node, ending in endings.items():
        if of_node := [left for left in ending.left if left.killed]:
            yield f"{node}: killed what the ranks left behind: {_processes(of_node)}"
        if of_node := [left for left in ending.left if not left.killed]:
            yield f"{node}: what the ranks left behind ended by itself: {_processes(of_node)}"


_AT_ONCE = {"SIGINT": "a second Ctrl-C", "SIGTERM": "gpuctl stop --stop-grace 0s"}
"""Signal → how the user kills the ranks without waiting."""


def seconds_text(seconds: float) -> str:
    """`30 s`, `2.5 s`."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{round(seconds, 1):g} s"


def _long(seconds: float) -> str:
    """`1 h`, `90 min`, `45 s`."""
    unit, size = next(
        ((unit, size) for unit, size in (("h", 3600), ("min", 60)) if seconds % size == 0), ("s", 1)
    )
    return f"{seconds / size:g} {unit}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Return `rank 1`, `ranks 0, 1 and 2`."""
    names = listed([str(rank) for rank in ranks], limit=8)
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def _processes(left: Sequence[LeftProcess]) -> str:
    return listed([f"{process.command} (pid {process.pid})" for process in left], limit=3)
