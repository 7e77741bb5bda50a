"""The device and the CPU threads of a rank."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from train.distributed.environment import DistributedEnvironment
from train.distributed.opening import opening
from train.errors import BadEnvironment
from train.options import Device


def choose_device(requested: Device, env: DistributedEnvironment) -> torch.device:
    """Return the device of this rank: its own GPU (local rank n has GPU n), or the CPU. Raises BadEnvironment."""
    if requested != "cpu":
        opening(env.local_rank).join()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if requested == "cpu" or (requested == "auto" and gpus == 0):
        return torch.device("cpu")
    if env.local_rank >= gpus:
        raise BadEnvironment(
            f"There is no GPU for local rank {env.local_rank}: PyTorch sees {gpus} on this host. "
            f"Start at most {gpus} processes on it, or train with --device cpu."
            if gpus
            else "PyTorch sees no GPU on this host. Train with --device cpu, or look at what nvidia-smi says."
        )
    return torch.device("cuda", env.local_rank)


def warm_up(device: torch.device, *, images: bool) -> None:
    """Have the libraries for matrix products and, for images, convolutions begin on a GPU: the first use is slow."""
    if device.type == "cuda":
        square = torch.ones(1, 1, 8, 8, device=device)
        square @ square  # type: ignore[unused-ignore]
        if images:
            torch.conv2d(square, square)


def cpu_threads(
    env: DistributedEnvironment, *, cores: int, ranks: int, environ: Mapping[str, str] = os.environ
) -> int:
    """Return a rank's share of CPU threads where `ranks` ranks share `cores`, or what OMP_NUM_THREADS says."""
    chosen = environ.get("OMP_NUM_THREADS", "")
    # Where nobody chose, torchrun sets 1 for several processes, which would leave most cores of a host idle.
    from_torchrun = chosen == "1" and env.local_world_size > 1 and "TORCHELASTIC_RUN_ID" in environ
    if chosen.isdecimal() and int(chosen) > 0 and not from_torchrun:
        return int(chosen)
    return max(1, cores // ranks)


def ranks_on_this_machine(env: DistributedEnvironment) -> int:
    """Count the ranks that share this machine's cores; all ranks of the process group have to call it.

    It can be more than the local world size, where several launchers run on one machine. Their ranks would have too
    many threads together, and then each is many times slower.
    """
    if env.world_size == 1:
        return 1
    boot_id = Path("/proc/sys/kernel/random/boot_id")  # hostnames may be alike
    mine = boot_id.read_text() if boot_id.exists() else socket.gethostname()
    machines = [""] * env.world_size
    dist.all_gather_object(machines, mine)
    return machines.count(mine)


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
