"""The built-in job on Ray Train: the same ranks, data and loop as under torchrun, in workers that Ray starts.

Run by gpuctl on the first node, with what Ray calls the nodes and what gpuctl does:

    python -m train.on_ray --run ID --layout 1afe…:2,07c2…:2 --names gpu-0,gpu-1 --master 10.0.0.1:29400 -- [options]

Rank n is on the same node as under torchrun, and has the same environment variables. On each node a worker reads
`place.json` in the run's folder: the folder of the code, and variables. It prints to `logs/rank-N.log` there, and
writes its start and its exit code to `ranks/rank-N.began` and `.ended`.

Ray sends the functions of this file to its workers whole: they run before a worker can import this package.
"""

import argparse
import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# By name: Ray pickles a worker's functions by value, before the worker knows the folder of this package.
from train.constants import (
    METRICS_VARIABLE,
    NODE_HOME_VARIABLE,
    NODE_ID_LABEL,
    NODE_VARIABLE,
    PLACE,
    RANK_BEGAN,
    RANK_ENDED,
    RANK_LOG,
    RANK_METRICS,
    RUN_DIR_VARIABLE,
    RUNS,
)
from train.on_ray import ranks as ranks_module
from train.on_ray.ranks import assign_ranks, parse_layout

if TYPE_CHECKING:
    from ray.train.v2._internal.execution.worker_group import ExecutionGroup

PLACE_TIMEOUT_S = 60.0
PEER_LOST_GRACE_S = 1.0
"""How much later a rank ends that only lost another, so that the other is seen to have failed first."""


def _node_and_gpu() -> tuple[str, int]:
    """Return the node of this worker, and its first GPU."""
    import ray

    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids().get("GPU", [])
    return str(context.get_node_id()), min(map(int, gpus), default=0)


def _set_up_rank(run: str, variables: dict[str, str]) -> None:
    """Make this worker a rank of the run: folder, variables, log, and a process group of its own."""
    from importlib.util import module_from_spec, spec_from_file_location

    run_dir = Path(os.environ[NODE_HOME_VARIABLE], RUNS, run, variables[NODE_VARIABLE])
    place = _read_place(run_dir)
    os.environ.update(place["env"])
    os.environ.update(variables)
    rank = variables["RANK"]
    os.environ[METRICS_VARIABLE] = str(run_dir / RANK_METRICS.format(rank))
    sys.path.insert(0, place["cwd"])
    os.chdir(place["cwd"])
    with contextlib.suppress(PermissionError):  # it leads one already
        os.setsid()
    log = os.open(run_dir / RANK_LOG.format(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    # torchrun's ranks have gpuctl's hook from their start: it reports this rank's stacks if the run hangs.
    hook: dict[str, str] = place.get("hook") or {}
    spec = spec_from_file_location("gpuctl_rank_hook", hook["module"]) if hook else None
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.begin(hook["files"].format(rank))
    _write_status(RANK_BEGAN, pid=os.getpid())


def _read_place(run_dir: Path) -> dict[str, Any]:
    """Wait for what gpuctl writes on each node for its workers. Raises TimeoutError."""
    deadline = time.monotonic() + PLACE_TIMEOUT_S
    path = run_dir / PLACE
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{path} did not appear within {PLACE_TIMEOUT_S:g} s: the run was not launched here"
            )
        time.sleep(0.05)
    place: dict[str, Any] = json.loads(path.read_text())
    return place


def _write_status(name: str, **values: int) -> None:
    """Write what became of this rank for gpuctl's process on this node, atomically."""
    path = Path(os.environ[RUN_DIR_VARIABLE], name.format(os.environ["RANK"]))
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps({"at": time.time(), **values}))
    temporary.rename(path)


def _train(words: list[str]) -> None:
    """Train, in Ray's worker. Prints an error before it raises it."""
    from train.command_line import parse
    from train.errors import BadOptions, PeerLost, TrainError

    status = 1
    try:
        from ray import train as ray_train

        from train.job import run

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
        _write_status(RANK_ENDED, exit_code=status)
        # What Ray prints next is not the rank's, and would be the last lines of its log.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)


def main(arguments: Sequence[str]) -> int:
    """Have Ray run the ranks. Returns 0 once all have succeeded."""
    parser = argparse.ArgumentParser(prog="python -m train.on_ray")
    parser.add_argument("--run", required=True)
    parser.add_argument("--layout", required=True, type=parse_layout)
    parser.add_argument("--names", required=True, type=lambda text: text.split(","))
    parser.add_argument("--master", required=True)
    parser.add_argument("--gpus-per-rank", type=float, default=0.0)
    parser.add_argument("--cpus-per-rank", type=float, default=1.0)
    parser.add_argument("words", nargs="*")
    parsed = parser.parse_args(arguments)

    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")  # how late the end is noticed
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "180")
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # ranks are in the code's folder, as under torchrun
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # a log would have all that is printed twice
    # A process that looks for machines which Ray's autoscaler on a cloud is about to remove.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    import ray
    import ray.cloudpickle
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.backend import Backend, BackendConfig

    # TorchTrainer is this with a process group that Ray opens. It would import torch here and in its controller, for
    # nothing, in seconds.
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    layout, run, master, words = parsed.layout, parsed.run, parsed.master, parsed.words
    names: list[str] = parsed.names

    class Ranks(Backend):  # type: ignore[misc,unused-ignore]
        """Makes ranks of Ray's workers. The job opens the process group, as under torchrun."""

        share_cuda_visible_devices = True

        def on_start(self, worker_group: "ExecutionGroup", backend_config: BackendConfig) -> None:  # noqa: ARG002
            ranks = assign_ranks(worker_group.execute(_node_and_gpu), layout)
            of_ranks = [rank.variables(master) | {NODE_VARIABLE: names[rank.node_rank]} for rank in ranks]
            ray.get(
                [
                    worker_group.execute_single_async(at, _set_up_rank, run, variables)
                    for at, variables in enumerate(of_ranks)
                ]
            )

    class RanksConfig(BackendConfig):  # type: ignore[misc,unused-ignore]
        """Names the class above, in Ray's form."""

        @property
        def backend_cls(self) -> type[Backend]:
            return Ranks

    ray.cloudpickle.register_pickle_by_value(ranks_module)  # Ray's controller may not have this package
    ray.init(log_to_driver=False)
    _start_coordinator()
    resources = {"CPU": parsed.cpus_per_rank}
    if parsed.gpus_per_rank:
        resources["GPU"] = parsed.gpus_per_rank
    trainer = DataParallelTrainer(
        lambda: _train(words),
        backend_config=RanksConfig(),
        scaling_config=ScalingConfig(
            num_workers=sum(layout.values()),
            use_gpu=bool(parsed.gpus_per_rank),
            resources_per_worker=resources,
            label_selector=[{NODE_ID_LABEL: node} for node, count in layout.items() for _ in range(count)],
        ),
        run_config=RunConfig(
            name=run,
            storage_path=str(Path(os.environ[RUN_DIR_VARIABLE], "ray")),
            # A failure is reported, not retried here: gpuctl starts another run where it may.
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


def _start_coordinator() -> None:
    """Start Ray's autoscaling coordinator now: the controller would otherwise start it and wait for it.

    A cluster has one coordinator, which stays.
    """
    with contextlib.suppress(ImportError):  # it may have another name in another release of Ray
        from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
            get_or_create_autoscaling_coordinator,
        )

        get_or_create_autoscaling_coordinator()


def _brief(error: Exception) -> str:
    """Return the last line of Ray's long error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # Python takes seconds to end the threads of Ray and pyarrow
