"""The sentence for each reason that ends a rank, a node's part in a run, or a run. Nothing reads what it says."""

import signal

from inventories.end_reasons import Ended, Reason
from remote.checks.finding import listed

MEMORY = "running out of memory is the usual cause"


def sentence(ended: Ended) -> str:
    """One line on what ended it: `exit status 3: RuntimeError: boom`."""
    match ended.reason:
        case Reason.SIGNAL if ended.signal == signal.SIGKILL:
            return f"{exit_text(ended)}; {MEMORY}"
        case Reason.UNKNOWN:
            return f"killed, it is not known by what; {MEMORY}"
        case Reason.THREAD_AT_EXIT:
            return (
                f"{exit_text(ended)}: {ended.detail}; if its work was done, a thread of torch's gloo was still at it "
                "when Python ended: end the script with os._exit(0)"
            )
        case Reason.NOT_STARTED:
            return f"{ended.program} could not be started: {ended.detail}"
        case Reason.LAUNCHER_ENDED if ended.exit_code is None:
            return f"{ended.program} ended, and its exit status is not known"
        case Reason.LAUNCHER_ENDED:
            return f"{ended.program} ended by itself: {exit_text(ended)}"
        case Reason.TIMED_OUT | Reason.HUNG | Reason.ENDED_EARLY:
            return _waiting(ended)
        case Reason.RAY_ENDED | Reason.RAY_LATE:
            return _of_ray(ended)
        case Reason.STOPPED:
            return "stopped"
        case Reason.RESIZED:
            return "stopped, as more machines can take part"
        case Reason.PEER_FAILED:
            return "stopped, as another node had failed"
        case reason if reason in _OF_RANKS:
            return ": ".join(filter(None, [exit_text(ended), ended.detail]))
        case _:
            return _of_node(ended)


_OF_RANKS = frozenset(
    {
        Reason.EXIT_CODE,
        Reason.SIGNAL,
        Reason.TERMINATED,
        Reason.OUT_OF_MEMORY,
        Reason.MODULE_NOT_FOUND,
        Reason.LOST_PEER,
    }
)


def _of_node(ended: Ended) -> str:
    """Of a node that failed, where neither its launcher nor a rank did."""
    match ended.reason:
        case Reason.DISK_FULL:
            free = ended.free_bytes
            return ended.detail if free is None else f"the disk is full ({free // 1024} kB free)"
        case Reason.SHUT_DOWN:
            return "the run was ended by SIGTERM: the machine was shut down, or somebody on it ended the run"
        case Reason.REBOOTED:
            return "the machine was rebooted during the run"
        case Reason.RUNNER_KILLED:
            return "the runner was killed from outside"
        case Reason.NO_RECORD:
            return f"the run was never started here, or its folder {ended.detail} is gone"
        case Reason.NODE_LOST:
            return f"the node was lost and could not be reached again within {ended.seconds:.0f} s: {ended.detail}"
        case Reason.NODE_SILENT:
            return (
                f"the node was lost: it can be logged in to, but has said nothing for {ended.seconds:.0f} s. Its "
                "disk may hang, its memory be used up, or large packets be lost on the way."
            )
        case Reason.MACHINE_REMOVED:
            return "the machine was removed or replaced before the run's end could be brought back"
        case Reason.NODE_FAILED | Reason.UNREACHABLE | Reason.BAD_ANSWER | Reason.TOLD:
            return ended.detail
    raise ValueError(f"no sentence for {ended.reason}")


def _of_ray(ended: Ended) -> str:
    if ended.reason is Reason.RAY_ENDED:
        return f"Ray ended here during the run: {ended.detail}"
    return (
        f"Ray did not start rank {ended.rank} here within {ended.seconds:.0f} s: others may use what it has "
        "(gpuctl ray stop ends them, too)"
    )


def _waiting(ended: Ended) -> str:
    """Of ranks that others waited for until they gave up."""
    if ended.reason is Reason.TIMED_OUT:
        return (
            "every rank waited for others until its time was over: the network between them fails, or they are not "
            f"in the same operation; rank {ended.rank} waited in vain ({ended.detail})"
        )
    one = len(ended.ranks) == 1
    which = "" if one else f"one of the ranks {listed(list(map(str, ended.ranks)), most=8)} "
    how = "had ended" if ended.reason is Reason.ENDED_EARLY else "hung, or was far behind"
    whom = "it" if one else "them"
    return f"{which}{how}: rank {ended.rank} waited for {whom} in vain ({ended.detail})"


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
