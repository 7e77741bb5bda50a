"""The built-in job on Ray Train: the same ranks, data and loop as under torchrun, in workers that Ray starts.

Run by gpuctl on the first node of a Ray cluster whose nodes carry their names as the label `gpuctl-node`:

    python -m train.on_ray --run ID --layout gpu-0:2,gpu-1:2 --master 10.0.0.1:29400 -- [the job's options]

Rank n is on the same node as under torchrun, and finds the same variables. On each node a worker looks for
`place.json` in the run's folder: the folder of the code, and variables. What it prints goes to `logs/rank-N.log`
there, and `ranks/rank-N.began` and `.ended` tell of it.
"""

import argparse
import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

# By name: Ray's workers get what is used of them by value, before they know the folder of this package.
from train.constants import (
    METRICS_VARIABLE,
    NODE_HOME_VARIABLE,
    NODE_LABEL,
    NODE_VARIABLE,
    PLACE,
    RANK_BEGAN,
    RANK_ENDED,
    RANK_LOG,
    RANK_METRICS,
    RUN_DIR_VARIABLE,
    RUNS,
)

if TYPE_CHECKING:
    from ray.train.v2._internal.execution.worker_group import ExecutionGroup

PLACE_DEADLINE_S = 60.0
PEER_LOST_GRACE_S = 1.0
"""A rank that only lost another ends that much later, so that the other is seen to have failed first."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank's place."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int

    def variables(self, master: str) -> dict[str, str]:
        """As torchrun sets them."""
        address, _, port = master.rpartition(":")
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }


def ranks_of(workers: Sequence[tuple[str, int]], layout: Mapping[str, int]) -> list[Rank]:
    """Each worker's rank: by node, then by its first GPU, as torchrun numbers them.

    `workers`: node and first GPU (0 where it has none) of each; `layout`: how many each node has, in their order.
    Raises ValueError where Ray did not start them as the layout says.
    """
    found = {node: sum(node == at for at, _ in workers) for node in layout}
    if found != layout or len(workers) != sum(layout.values()):
        raise ValueError(f"Ray started {found} workers on the nodes, where {dict(layout)} were asked for")
    nodes = list(layout)
    order = sorted(range(len(workers)), key=lambda at: (nodes.index(workers[at][0]), workers[at][1], at))
    ranks: dict[int, Rank] = {}
    for rank, worker in enumerate(order):
        node = workers[worker][0]
        ranks[worker] = Rank(
            rank=rank,
            world_size=len(workers),
            local_rank=sum(ranks[before].node_rank == nodes.index(node) for before in order[:rank]),
            local_world_size=layout[node],
            node_rank=nodes.index(node),
        )
    return [ranks[worker] for worker in range(len(workers))]


def layout_of(text: str) -> dict[str, int]:
    """`gpu-0:2,gpu-1:2`: how many ranks each node has."""
    return {node: int(count) for node, _, count in (part.rpartition(":") for part in text.split(","))}


def _where() -> tuple[str, int]:
    """Of this worker: its node and its first GPU."""
    import ray

    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids().get("GPU", [])
    return str(context.get_node_labels()[NODE_LABEL]), min(map(int, gpus), default=0)


def _become(run: str, rank: Rank, master: str) -> None:
    """Make this worker that rank of the run: folder, variables, log, and a process group of its own."""
    run_dir = Path(os.environ[NODE_HOME_VARIABLE], RUNS, run, os.environ[NODE_VARIABLE])
    place = _place(run_dir)
    os.environ.update(place["env"])
    os.environ.update(rank.variables(master))
    os.environ[METRICS_VARIABLE] = str(run_dir / RANK_METRICS.format(rank.rank))
    sys.path.insert(0, place["cwd"])
    os.chdir(place["cwd"])
    with contextlib.suppress(PermissionError):  # it leads one already
        os.setsid()
    log = os.open(run_dir / RANK_LOG.format(rank.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    _tell(RANK_BEGAN, pid=os.getpid())


def _place(run_dir: Path) -> dict[str, Any]:
    """What gpuctl leaves on each node for its workers. Raises TimeoutError."""
    limit = time.monotonic() + PLACE_DEADLINE_S
    path = run_dir / PLACE
    while not path.exists():
        if time.monotonic() > limit:
            raise TimeoutError(
                f"{path} did not appear within {PLACE_DEADLINE_S:g} s: the run was not launched here"
            )
        time.sleep(0.05)
    place: dict[str, Any] = json.loads(path.read_text())
    return place


def _tell(name: str, **said: int) -> None:
    """Tell gpuctl's part on this node of this rank, in a file that is there whole or not at all."""
    path = Path(os.environ[RUN_DIR_VARIABLE], name.format(os.environ["RANK"]))
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps({"at": time.time(), **said}))
    temporary.rename(path)


def _train(words: list[str]) -> None:
    """The rank's work, in Ray's worker. Raises what it failed of, once that was told."""
    from train.command_line import parse
    from train.errors import BadOptions, PeerLost, TrainError

    status = 1
    try:
        from ray import train as ray_train

        from train.loop import run

        run(parse(words), on_epoch=lambda epoch: ray_train.report(dict(epoch.scalars())))
        status = 0
    except TrainError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        status = 2 if isinstance(error, BadOptions) else 1
        if isinstance(error, PeerLost):
            time.sleep(PEER_LOST_GRACE_S)
        raise
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        _tell(RANK_ENDED, exit_code=status)
        # What Ray says of this end has no place in the rank's log: it would be its last words.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)


def main(arguments: Sequence[str]) -> int:
    """Have Ray run the ranks; 0 once all have ended well."""
    ours = argparse.ArgumentParser(prog="python -m train.on_ray")
    ours.add_argument("--run", required=True)
    ours.add_argument("--layout", required=True, type=layout_of)
    ours.add_argument("--master", required=True)
    ours.add_argument("--gpus-per-rank", type=float, default=0.0)
    ours.add_argument("--cpus-per-rank", type=float, default=1.0)
    ours.add_argument("words", nargs="*")
    asked = ours.parse_args(arguments)

    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")  # the end is noticed that much later
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "180")
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # ranks are in the code's folder, as under torchrun
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # a log would have all that is printed twice
    # It looks for machines that a cloud's autoscaler of Ray's is about to take away, in a process of its own.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.backend import Backend, BackendConfig

    # TorchTrainer is this with a process group that Ray opens: here and in its controller it would import torch,
    # which takes seconds, for nothing.
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    layout, run, master, words = asked.layout, asked.run, asked.master, asked.words

    class Ranks(Backend):  # type: ignore[misc,unused-ignore]
        """Makes Ray's workers our ranks. The process group is then the loop's own to open, as under torchrun."""

        share_cuda_visible_devices = True

        def on_start(self, worker_group: "ExecutionGroup", backend_config: BackendConfig) -> None:  # noqa: ARG002
            ranks = ranks_of(worker_group.execute(_where), layout)
            ray.get(
                [
                    worker_group.execute_single_async(at, _become, run, rank, master)
                    for at, rank in enumerate(ranks)
                ]
            )

    class RanksConfig(BackendConfig):  # type: ignore[misc,unused-ignore]
        """Names the class above, as Ray wants it."""

        @property
        def backend_cls(self) -> type[Backend]:
            return Ranks

    ray.init(log_to_driver=False)
    _begin_coordinator()
    resources = {"CPU": asked.cpus_per_rank}
    if asked.gpus_per_rank:
        resources["GPU"] = asked.gpus_per_rank
    trainer = DataParallelTrainer(
        lambda: _train(words),
        backend_config=RanksConfig(),
        scaling_config=ScalingConfig(
            num_workers=sum(layout.values()),
            use_gpu=bool(asked.gpus_per_rank),
            resources_per_worker=resources,
            label_selector=[{NODE_LABEL: node} for node, count in layout.items() for _ in range(count)],
        ),
        run_config=RunConfig(
            name=run,
            storage_path=str(Path(os.environ[RUN_DIR_VARIABLE], "ray")),
            # Nothing is tried again without end: what fails is told, and gpuctl starts another run where it may.
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:  # noqa: BLE001  # Ray has a family of errors for what its workers raised
        print(f"error: {_brief(error)}", file=sys.stderr, flush=True)
        return 1
    finally:
        ray.shutdown()
    return 0


def _begin_coordinator() -> None:
    """Have Ray's own bookkeeper of who wants which machines begin beside the controller, which waits for it.

    There is one in a cluster, which stays: the controller of the first run would start it, and each finds it.
    """
    with contextlib.suppress(ImportError):  # it may be called otherwise in another Ray
        from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
            get_or_create_autoscaling_coordinator,
        )

        get_or_create_autoscaling_coordinator()


def _brief(error: Exception) -> str:
    """The last line of Ray's long story."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # Python's own end of Ray's and pyarrow's threads takes seconds
