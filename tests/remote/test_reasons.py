"""Test the sentence for each reason, from its facts."""

import pytest

from inventories.runs.end_reasons import STOPS, Cause, Ended, EndFacts, Reason
from remote.end_sentences import sentence
from remote.node import end_reasons as on_a_node
from remote.runs.node_state import NODE_REASONS, RANK_REASONS

R = Reason
MEMORY = "running out of memory is the usual cause"
SENTENCES: list[tuple[Ended, str]] = [
    (Ended(reason=R.EXIT_CODE, exit_code=3, detail="ValueError: no"), "exit status 3: ValueError: no"),
    (Ended(reason=R.EXIT_CODE, exit_code=200), "exit status 200"),
    (Ended(reason=R.SIGNAL, exit_code=-9), f"killed by SIGKILL; {MEMORY}"),
    (Ended(reason=R.SIGNAL, exit_code=137), f"exit status 137 (SIGKILL); {MEMORY}"),
    (Ended(reason=R.SIGNAL, exit_code=-11, detail="Fatal"), "killed by SIGSEGV: Fatal"),
    (Ended(reason=R.TERMINATED, exit_code=-15), "killed by SIGTERM"),
    (Ended(reason=R.TERMINATED, exit_code=143, detail="bye"), "exit status 143 (SIGTERM): bye"),
    (
        Ended(reason=R.OUT_OF_MEMORY, exit_code=1, detail="CUDA out of memory."),
        "exit status 1: CUDA out of memory.",
    ),
    (
        Ended(
            reason=R.OUT_OF_MEMORY,
            exit_code=-9,
            cause=Cause.KERNEL_KILL,
            facts=EndFacts(
                killed_process="python", killed_bytes=1_900_000_000, memory_limit_bytes=2_000_000_000
            ),
        ),
        "out of memory: the kernel killed python, which had 1.9 GB, as its container or session had reached "
        "its memory limit of 2.0 GB (killed by SIGKILL)",
    ),
    (
        Ended(
            reason=R.OUT_OF_MEMORY,
            exit_code=1,
            cause=Cause.KERNEL_KILL,
            detail="worker killed",
            facts=EndFacts(used_up="node", memory_bytes=16_000_000_000),
        ),
        "out of memory: the kernel killed a process of it as the node's memory of 16.0 GB was used up (exit status "
        "1: worker killed)",
    ),
    (
        Ended(reason=R.SIGNAL, exit_code=-9, facts=EndFacts(no_memory_kill=True)),
        "killed by SIGKILL; the kernel did not do it for want of memory: somebody did, or a service of the node such "
        "as systemd-oomd",
    ),
    (
        Ended(reason=R.SIGNAL, exit_code=-11, place="load, data.py:4", detail="x", cause=Cause.SILENT),
        "killed by SIGSEGV in C code that was called from load, data.py:4",
    ),
    (
        Ended(reason=R.SIGNAL, exit_code=-6, place="load, data.py:4", detail="c10::Error: no"),
        "killed by SIGABRT in C code that was called from load, data.py:4: c10::Error: no",
    ),
    (
        Ended(reason=R.EXIT_CODE, exit_code=1, detail="E: process 1 was killed.", cause=Cause.CHILD_KILLED),
        "exit status 1: E: process 1 was killed; running out of memory is the usual cause",
    ),
    (
        Ended(reason=R.EXIT_CODE, exit_code=3, cause=Cause.SILENT, detail="epoch 3"),
        "exit status 3 without a traceback; its log ends with: epoch 3",
    ),
    (
        Ended(reason=R.SHARED_MEMORY_FULL, exit_code=-7, facts=EndFacts(shm_bytes=67_108_864)),
        "killed by SIGBUS; the shared memory in /dev/shm, 67 MB, was full: use fewer DataLoader workers, or enlarge "
        "it with sudo mount -o remount,size=50% /dev/shm (of a container: its --shm-size)",
    ),
    (
        Ended(
            reason=R.NCCL_ERROR,
            exit_code=1,
            detail="NCCL error",
            facts=EndFacts(nccl_interfaces=("ens5:10.0.0.4",), nccl_warning="Connect to 10.0.0.5 failed"),
        ),
        "exit status 1: NCCL error; NCCL used ens5:10.0.0.4 and warned: Connect to 10.0.0.5 failed",
    ),
    (
        Ended(reason=R.CUDA_ERROR, exit_code=1, detail="no kernel image", cause=Cause.NO_KERNEL_IMAGE),
        "exit status 1: no kernel image; this PyTorch was built for other GPUs: install a build for this one's "
        "compute capability",
    ),
    (
        Ended(reason=R.MODULE_NOT_FOUND, exit_code=1, detail="No module named 'x'"),
        "exit status 1: No module named 'x'",
    ),
    (
        Ended(reason=R.FILE_NOT_FOUND, exit_code=1, detail="No such file or directory: 'x'"),
        "exit status 1: No such file or directory: 'x'",
    ),
    (
        Ended(reason=R.THREAD_AT_EXIT, exit_code=-6, detail="terminate called"),
        "killed by SIGABRT: terminate called; if its work was done, a thread of torch's gloo was still at it when "
        "Python ended: end the script with os._exit(0)",
    ),
    (
        Ended(reason=R.NOT_STARTED, program="my-train", detail="No such file or directory"),
        "my-train could not be started: No such file or directory",
    ),
    (Ended(reason=R.LOST_PEER, exit_code=1, detail="Broken pipe"), "exit status 1: Broken pipe"),
    (
        Ended(reason=R.TIMED_OUT, rank=0, detail="Timed out"),
        "every rank waited for others until its time was over: the network between them fails, or they are not in "
        "the same operation; rank 0 waited in vain (Timed out)",
    ),
    (
        Ended(reason=R.HUNG, rank=0, ranks=(1,), detail="Timed out"),
        "hung, or was far behind: rank 0 waited for it in vain (Timed out)",
    ),
    (
        Ended(reason=R.HUNG, rank=0, ranks=(1, 2, 3), detail="Timed out"),
        "one of the ranks 1, 2 and 3 hung, or was far behind: rank 0 waited for them in vain (Timed out)",
    ),
    (
        Ended(reason=R.ENDED_EARLY, rank=0, ranks=(1,), detail="Timed out"),
        "ended with exit status 0 while rank 0 waited for it (Timed out)",
    ),
    (
        Ended(reason=R.ENDED_EARLY, rank=0, ranks=(1, 2), detail="Timed out", place="all_reduce, h.py:8"),
        "the ranks 1 and 2 ended with exit status 0 while rank 0 waited for them (all_reduce, h.py:8)",
    ),
    (
        Ended(reason=R.EXIT_CODE, exit_code=1, detail="ValueError: bad", place="data.py:41"),
        "exit status 1: ValueError: bad (data.py:41)",
    ),
    (Ended(reason=R.UNKNOWN), f"killed, it is not known by what; {MEMORY}"),
    (
        Ended(reason=R.LAUNCHER_ENDED, program="torchrun", exit_code=2),
        "torchrun ended by itself: exit status 2",
    ),
    (
        Ended(reason=R.LAUNCHER_ENDED, program="torchrun"),
        "torchrun ended, and its exit status is not known",
    ),
    (Ended(reason=R.RAY_ENDED, detail="killed"), "Ray ended here during the run: killed"),
    (
        Ended(reason=R.RAY_LATE, rank=3, seconds=300.0),
        "Ray did not start rank 3 here within 300 s: others may use what it has (gpuctl ray stop ends them, too)",
    ),
    (Ended(reason=R.DISK_FULL, free_bytes=12_288), "the disk is full (12 kB free)"),
    (Ended(reason=R.DISK_FULL, detail="gpu-0: the disk is full."), "gpu-0: the disk is full."),
    (
        Ended(reason=R.SHUT_DOWN),
        "the run was ended by SIGTERM: the machine was shut down, or somebody on it ended the run",
    ),
    (Ended(reason=R.REBOOTED), "the machine was rebooted during the run"),
    (
        Ended(reason=R.CONTAINER_RESTARTED),
        "the pod's container was started again during the run: Ray in it ended, as it does where the head is lost, "
        "or its memory was used up (`kubectl describe pod` shows which)",
    ),
    (Ended(reason=R.RUNNER_KILLED), "the supervisor of the run was killed from outside"),
    (Ended(reason=R.NO_RECORD, detail="/r"), "the run was never started here, or its folder /r is gone"),
    (Ended(reason=R.NODE_FAILED, detail="gpu-0: no."), "gpu-0: no."),
    (
        Ended(reason=R.NODE_LOST, seconds=25.0, detail="closed; gpu-0: refused."),
        "the node was lost and could not be reached again within 25 s: closed; gpu-0: refused.",
    ),
    (
        Ended(reason=R.NODE_SILENT, seconds=41.2),
        "the node was lost: it can be logged in to, but has said nothing for 41 s. Its disk may hang, its memory be "
        "used up, or large packets be lost on the way.",
    ),
    (Ended(reason=R.UNREACHABLE, detail="gpu-0: refused."), "gpu-0: refused."),
    (Ended(reason=R.BAD_ANSWER, detail="gpu-0: sent 'x'."), "gpu-0: sent 'x'."),
    (
        Ended(reason=R.MACHINE_REMOVED),
        "the machine was removed or replaced before the run's end could be brought back",
    ),
    (Ended(reason=R.STOPPED), "stopped"),
    (Ended(reason=R.STOPPED_HUNG), "stopped, as it hung"),
    (
        Ended(reason=R.GPUS_IDLE, seconds=3600.0, percent=12.5),
        "stopped, as all its GPUs were below 12.5 % for 1 h",
    ),
    (Ended(reason=R.RESIZED), "stopped, as more machines can take part"),
    (Ended(reason=R.PEER_FAILED), "stopped, as another node had failed"),
]


@pytest.mark.parametrize(("ended", "text"), SENTENCES, ids=lambda value: getattr(value, "reason", ""))
def test_sentence_says_what_ended_it(ended: Ended, text: str) -> None:
    assert sentence(ended) == text


def test_every_reason_has_a_sentence() -> None:
    assert {ended.reason for ended, _ in SENTENCES} == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_sentence_needs_no_facts(reason: Reason) -> None:
    text = sentence(Ended(reason=reason))
    assert text.strip(" :;") == text != ""
    assert [part for part in ("None", "()", "  ") if part in text] == []


def test_a_node_gives_reasons_that_are_known() -> None:
    inputs = {value for name, value in vars(on_a_node).items() if name.isupper() and isinstance(value, str)}
    assert inputs < set(Reason)
    assert inputs & STOPS == {Reason.STOPPED, Reason.GPUS_IDLE}
    assert inputs | STOPS == set(NODE_REASONS), "what is taken from a node is what a node gives"
    assert set(RANK_REASONS) <= inputs
