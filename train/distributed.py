"""This process's place among the ranks: the launcher's variables, its device, the process group, its CPU threads."""

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from train.errors import BadEnvironment, NoPeers, PeerLost, PeerSilent
from train.options import Device

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which of the ranks this process is."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Rank among the processes of this host."""
    local_world_size: int = 1
    """Processes on this host."""


def this_place(environ: Mapping[str, str] = os.environ) -> Place:
    """Read the launcher's variables; with none of them set, this is the only process."""
    given = [name for name in LAUNCHER_VARIABLES if name in environ]
    if not {"RANK", "WORLD_SIZE"} & set(given):
        return Place()
    missing = [name for name in LAUNCHER_VARIABLES if name not in given]
    if missing:
        raise BadEnvironment(
            f"{', '.join(given)} set but {', '.join(missing)} not. Start the job with torchrun, which sets all of "
            "them, or unset them to train in one process."
        )
    try:
        rank, world_size, local_rank, local_world_size = (
            int(environ[name]) for name in LAUNCHER_VARIABLES[:4]
        )
    except ValueError as error:
        raise BadEnvironment(
            f"{', '.join(LAUNCHER_VARIABLES[:4])} have to be whole numbers ({error}). Start the job with torchrun."
        ) from None
    return Place(rank=rank, world_size=world_size, local_rank=local_rank, local_world_size=local_world_size)


def choose_device(wanted: Device, place: Place) -> torch.device:
    """The device of this rank: its own GPU (local rank n has GPU n), or the CPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and gpus == 0):
        return torch.device("cpu")
    if place.local_rank >= gpus:
        raise BadEnvironment(
            f"There is no GPU for local rank {place.local_rank}: PyTorch sees {gpus} on this host. "
            f"Start at most {gpus} processes on it, or train with --device cpu."
            if gpus
            else "PyTorch sees no GPU on this host. Train with --device cpu, or look at what nvidia-smi says."
        )
    return torch.device("cuda", place.local_rank)


def cpu_threads(place: Place, *, cores: int, ranks: int, environ: Mapping[str, str] = os.environ) -> int:
    """A fair number of CPU threads for each of `ranks` ranks that share `cores`, unless OMP_NUM_THREADS says it."""
    chosen = environ.get("OMP_NUM_THREADS", "")
    # Where nobody chose, torchrun sets 1 for several processes, which would leave most cores of a host idle.
    from_torchrun = chosen == "1" and place.local_world_size > 1 and "TORCHELASTIC_RUN_ID" in environ
    if chosen.isdecimal() and int(chosen) > 0 and not from_torchrun:
        return int(chosen)
    return max(1, cores // ranks)


def ranks_on_this_machine(place: Place) -> int:
    """How many ranks share this machine's cores; all ranks of the process group have to ask.

    It can be more than the local world size, where several launchers run on one machine. Their ranks would have too
    many threads together, and then each is many times slower.
    """
    if place.world_size == 1:
        return 1
    boot_id = Path("/proc/sys/kernel/random/boot_id")  # hostnames may be alike
    mine = boot_id.read_text() if boot_id.exists() else socket.gethostname()
    machines = [""] * place.world_size
    dist.all_gather_object(machines, mine)
    return machines.count(mine)


def usable_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def meet(name: str, place: Place, *, timeout_s: float) -> None:
    """Wait until every rank has called it with that name, which may take longer than a collective operation may.

    Raises NoPeers after that time, and what torch raises where the connection is lost.
    """
    if place.world_size == 1:
        return
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no other way to it
    store.set(f"{name}/{place.rank}", "")
    try:
        store.wait([f"{name}/{rank}" for rank in range(place.world_size)], timedelta(seconds=timeout_s))
    except dist.DistStoreError as error:
        late = [rank for rank in range(place.world_size) if not store.check([f"{name}/{rank}"])]
        raise NoPeers(
            f"Rank {place.rank} waited {timeout_s:g} s for the {name} of {_ranks(late)} ({_brief(error)}). Look at "
            f"{'its log' if len(late) == 1 else 'their logs'}: still at it, or stuck.",
            late,
        ) from error


@contextmanager
def process_group(place: Place, device: torch.device, *, timeout_s: float) -> Iterator[None]:
    """The ranks together: nccl between GPUs, gloo between CPUs, nothing for a single process.

    After an error the group is left as it is: to take it down in order could mean to wait for ranks that wait for
    this one. The process has to end; the other ranks notice. With gloo they do by an error, told as PeerLost; of nccl
    they may hear nothing before its watchdog ends them after `timeout_s`, if their launcher does not do so before.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)  # before the first collective, or every rank opens GPU 0
    if place.world_size == 1:
        yield
        return
    try:
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            timeout=timedelta(seconds=timeout_s),
            device_id=device if on_gpu else None,
        )
    except RuntimeError as error:  # the family of torch's errors of stores, networks and back ends
        raise NoPeers(
            f"Rank {place.rank} did not find the other {place.world_size - 1} within {timeout_s:g} s at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} ({_brief(error)}). Look for a rank that "
            "failed before this one, then at whether the hosts reach each other on that port."
        ) from error
    try:
        yield
    except RuntimeError as error:
        # gloo has no error class of its own
        if "/gloo/" in str(error) and "Timed out waiting" in str(error):
            raise PeerSilent(
                f"Rank {place.rank} waited {timeout_s:g} s for another rank in vain ({_brief(error)}). That one "
                "hangs, or is far behind: look at the logs of the ranks that did not give up. A larger --timeout-s "
                "waits longer."
            ) from error
        if isinstance(error, dist.DistError) or "/gloo/" in str(error):
            raise PeerLost(
                f"Rank {place.rank} lost another rank ({_brief(error)}). Look for the cause in the log of the rank "
                f"that failed first; if none failed, one hung for more than {timeout_s:g} s (--timeout-s)."
            ) from error
        raise
    dist.destroy_process_group()


def _ranks(ranks: list[int], most: int = 8) -> str:
    """`rank 3`, `ranks 1, 2`, `ranks 0, 1, … (16 in all)`."""
    shown = ", ".join(map(str, ranks[:most]))
    if len(ranks) == 1:
        return f"rank {shown}"
    return f"ranks {shown}" if len(ranks) <= most else f"ranks {shown}, … ({len(ranks)} in all)"


def _brief(error: RuntimeError) -> str:
    """The first sentence of an error of torch's, without its place in the source."""
    return re.sub(r"^\[\S+\] ", "", str(error)).split("\n")[0].split(". ")[0].rstrip(".")
