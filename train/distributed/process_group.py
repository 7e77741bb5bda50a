"""Connect the ranks: torch's process group, a barrier with its own timeout, and the errors of a lost rank."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from train.distributed.environment import DistributedEnvironment
from train.errors import NoPeers, PeerLost, PeerSilent


@contextmanager
def process_group(env: DistributedEnvironment, device: torch.device, *, timeout_s: float) -> Iterator[None]:
    """Join the ranks: with nccl between GPUs, with gloo between CPUs. A single process has no group.

    After an error the group is left as it is: to destroy it in order could mean to wait for ranks that wait for this
    one. The process has to end, and the other ranks notice. With gloo they get an error, raised as PeerLost. With
    nccl they may hear nothing before its watchdog ends them after `timeout_s`, unless their launcher ends them first.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)  # before the first collective, or every rank opens GPU 0
    if env.world_size == 1:
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
            f"Rank {env.rank} did not find the other {env.world_size - 1} within {timeout_s:g} s at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} ({_brief(error)}). Look for a rank that "
            "failed before this one, then at whether the hosts reach each other on that port."
        ) from error
    try:
        yield
    except RuntimeError as error:
        # gloo has no error class of its own
        if "/gloo/" in str(error) and "Timed out waiting" in str(error):
            raise PeerSilent(
                f"Rank {env.rank} waited {timeout_s:g} s for another rank in vain ({_brief(error)}). That one "
                "hangs, or is far behind: look at the logs of the ranks that did not give up. A larger --timeout-s "
                "waits longer."
            ) from error
        if isinstance(error, dist.DistError) or "/gloo/" in str(error):
            raise PeerLost(
                f"Rank {env.rank} lost another rank ({_brief(error)}). Look for the cause in the log of the rank "
                f"that failed first; if none failed, one hung for more than {timeout_s:g} s (--timeout-s)."
            ) from error
        raise
    dist.destroy_process_group()


def barrier(name: str, env: DistributedEnvironment, *, timeout_s: float) -> None:
    """Wait until every rank has called it with that name, which may take longer than a collective operation may.

    Raises NoPeers after that time, and what torch raises where the connection is lost.
    """
    if env.world_size == 1:
        return
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no other way to it
    store.set(f"{name}/{env.rank}", "")
    try:
        store.wait([f"{name}/{rank}" for rank in range(env.world_size)], timedelta(seconds=timeout_s))
    except dist.DistStoreError as error:
        late = [rank for rank in range(env.world_size) if not store.check([f"{name}/{rank}"])]
        raise NoPeers(
            f"Rank {env.rank} waited {timeout_s:g} s for the {name} of {name_ranks(late)} ({_brief(error)}). Look at "
            f"{'its log' if len(late) == 1 else 'their logs'}: still at it, or stuck.",
            late,
        ) from error


def name_ranks(ranks: list[int], max_names: int = 8) -> str:
    """Format as `rank 3`, `ranks 1, 2` or `ranks 0, 1, … (16 in all)`."""
    shown = ", ".join(map(str, ranks[:max_names]))
    if len(ranks) == 1:
        return f"rank {shown}"
    return f"ranks {shown}" if len(ranks) <= max_names else f"ranks {shown}, … ({len(ranks)} in all)"


def _brief(error: RuntimeError) -> str:
    """Return the first sentence of one of torch's errors, without its position in the source."""
    return re.sub(r"^\[\S+\] ", "", str(error)).split("\n")[0].split(". ")[0].rstrip(".")
