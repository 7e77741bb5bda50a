"""The sections of `bench/gpu.py`: each measures on the device, records its results, and checks them."""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.parts import job
from bench.parts.device import check_parsers, environment, measure_ceilings, synchronize, timed
from bench.parts.gpu_models import advise_run, plain_gpt_section
from bench.parts.gpu_plan import (
    GPT,
    LOOPS,
    LOOPS_OF_LARGE,
    LOOPS_OF_SMALL,
    PLAIN_GPT,
    PUBLISHED,
    Case,
    Sizes,
    loop_section,
)
from bench.parts.gpu_work import Run, Work, check_graphs
from bench.parts.network import network_cost
from bench.parts.sections import Section, Tell, work
from bench.parts.start import measure_start
from remote.node.runs import nccl_log
from train.distributed.environment import DistributedEnvironment
from train.job import set_arithmetic
from train.models.networks import build_model
from train.optimization.optimizer import build_optimizer
from train.options import Compression, Options
from train.reporting.timing import StepTimer
from train.step_graph import WARM_UP, CudaRecorder, GraphedStep, recorder_of
from train.strategies.ddp import DataParallel
from train.strategies.strategy import Strategy
from train.train_step import ModelWithLoss, TrainStep
from train.trainer import Trainer

DOUBLE_BOUND = 1e-6
"""Relative bound of losses in double precision. Another order of additions makes 1e-14 in ten steps (measured on a
CPU, channels innermost against outermost); another sample or a wrong gradient makes more than 1e-3."""
FIRST_BOUND = 5e-5
"""Bound of the first loss in single precision: a CPU has 1e-7, and TF32's ten bits would have more than 1e-4."""
SINGLE_BOUND, ROUNDING = 1e-3, 30.0
"""Bound of later losses, as a value or as a multiple of this machine's CPU. Roundings grow with the steps, the faster
the larger these are (resnet18 on a CPU: to 1e-3 in eight of lr 1e-3, to 0.2 in ten of lr 1e-2): here they are small.
"""
SINGLE = {"optimizer": "sgd", "lr": 1e-4}
COMPRESSIONS: tuple[Compression, ...] = ("none", "half", "powersgd")
EXACT_BOUND, LOSSY_BOUND = 5e-3, 0.05
"""Bounds of the losses of a few steps over NCCL, against the same steps over gloo on the CPU. A compression is lossy:
both lose the same, but their different roundings grow."""
NCCL_TIMEOUT_S = 60.0
DDP_STEPS = 6
PROFILED = 20
"""Number of profiled steps."""
SHAPE = (3, 32, 32)


def device_section(work: Work) -> None:
    """Record the device's facts, its best rates, and the network's cost."""
    work.tell.value("environment", value=environment(work.device))
    work.tell.value("cost", value=asdict(network_cost(_job(work, 2), SHAPE, job.CLASSES)))
    measure_ceilings(work.device, work.tell, matrix=work.sizes.matrix, copied=work.sizes.copied)


def parsers_section(work: Work) -> None:
    """Check the node's readings of the real nvidia-smi."""
    check_parsers(work.device, work.tell, matrix=work.sizes.matrix)


def waits_section(work: Work) -> None:
    """Check that a deliberate wait is detected, and that no step waits with options of no loop's section."""
    if work.device.type == "cuda":
        with job.Waits() as planted:
            planted.on()
            torch.ones(1, device=work.device).item()
        work.tell.check(
            "a planted wait is seen",
            ok=bool(planted.places),
            details=f"{sum(planted.places.values())} of 1",
        )
    clipped: dict[str, Any] = {"max_grad_norm": 1.0, "optimizer": "adamw", "graphs": "on"}
    _check_waits(work, "fast clip adamw", {**clipped, "augmentation": "crop", "schedule": "cosine"})
    _check_waits(work, "fast fp16", {"precision": "fp16"})


def _check_waits(work: Work, name: str, chosen: dict[str, Any]) -> None:
    watched, batch = work.sizes.steps.watched, work.sizes.batches[0]
    options = _job(work, batch, images=(watched + 1) * batch, **chosen)
    with job.trainer_of(options, work.device, work.folder) as trainer:
        trainer.train_epoch()
        places = job.waits_of(trainer, job.Pace(trainer.timer, work.until), watched)
    work.tell.value("waits", name, value=places)
    _judge_waits(work, name, places)


def _judge_waits(work: Work, name: str, waits: dict[str, int]) -> None:
    if work.device.type == "cuda":
        places = ", ".join(f"{count} at {where}" for where, count in waits.items())
        work.tell.check(f"no step of {name} waits for the GPU", ok=not waits, details=places or "none does")


def losses_section(work: Work) -> None:
    """Check that the losses of some steps equal the CPU's."""
    cpu = torch.device("cpu")
    exact = _losses(work, cpu, double=True)
    work.tell.value("double", "cpu", value=exact)
    losses = _losses(work, work.device, double=True)
    work.tell.value("double", "device", value=losses)
    difference = apart(losses, exact)
    work.tell.check(
        "losses in double precision",
        ok=difference <= DOUBLE_BOUND,
        details=f"{len(losses)} steps differ from the CPU's by {difference:.1e} at most (bound {DOUBLE_BOUND:g})",
    )
    _check_single(work)
    _check_graphs(work)


def _check_graphs(work: Work) -> None:
    """Check that steps in CUDA graphs have the losses of steps without."""
    steps = WARM_UP + work.sizes.loss_steps
    graphs, plain = (_losses(work, work.device, steps=steps, graphs=word, **SINGLE) for word in ("on", "off"))
    work.tell.value("graphs", value={"on": graphs, "off": plain})
    _judge_graphs(work, "losses of CUDA graphs", graphs, plain)


def _judge_graphs(work: Work, name: str, graphs: list[float], plain: list[float]) -> None:
    difference = apart(graphs, plain)
    work.tell.check(
        name,
        ok=difference <= SINGLE_BOUND,
        details=f"{len(graphs)} steps differ from steps without by {difference:.1e} (bound {SINGLE_BOUND:g})",
    )


def _check_single(work: Work) -> None:
    chosen: dict[str, Any] = SINGLE
    exact = _losses(work, torch.device("cpu"), double=True, **chosen)
    rounded = _losses(work, torch.device("cpu"), **chosen)
    runs = {name: _losses(work, work.device, precision=name, **chosen) for name in ("fp32", "tf32", "bf16")}
    first, all_of_them = (
        {name: apart(losses[:count], exact[:count]) for name, losses in {"cpu": rounded, **runs}.items()}
        for count in (1, len(exact))
    )
    work.tell.value(
        "single", value={"double": exact, "cpu": rounded, **runs, "first": first, "apart": all_of_them}
    )
    work.tell.check(
        "the first loss in single precision",
        ok=first["fp32"] <= FIRST_BOUND,
        details=f"{_powers(first)} from double precision (bound {FIRST_BOUND:.1e})",
    )
    bound = max(SINGLE_BOUND, ROUNDING * all_of_them["cpu"])
    work.tell.check(
        "losses in single precision",
        ok=all_of_them["fp32"] <= bound,
        details=f"{len(exact)} steps, {_powers(all_of_them)} from double precision at most (bound {bound:.1e})",
    )


def _powers(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1e}" for name, value in values.items())


def _losses(
    work: Work,
    device: torch.device,
    *,
    double: bool = False,
    steps: int | None = None,
    **chosen: Any,  # noqa: ANN401
) -> list[float]:
    sizes = work.sizes
    images = (steps or sizes.loss_steps) * sizes.loss_batch
    options = _job(work, sizes.loss_batch, images=images, log_every=1, **chosen)
    torch.manual_seed(options.seed)
    weights = build_model(options, SHAPE, job.CLASSES).state_dict()
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    try:
        with job.trainer_of(options, device, work.folder) as trainer:
            # Double precision draws different random numbers.
            trainer.model.load_state_dict(weights)
            trainer.train_epoch()
    finally:
        torch.set_default_dtype(torch.float32)
    return job.losses_of(work.folder)


def apart(losses: list[float], expected: list[float]) -> float:
    """Return the largest relative difference."""
    return max(abs(loss - other) / abs(other) for loss, other in zip(losses, expected, strict=True))


def loop_run(batch: int, loop: str) -> Run:
    """Return the section of a loop: its steady steps, and whether they wait for the GPU."""

    def run(work: Work) -> None:
        if loop == PUBLISHED:
            measured = job.measure_published(
                _job(work, batch), work.device, steps=work.sizes.steps, until=work.until
            )
        else:
            options = _job(work, batch, **LOOPS[loop])
            measured = job.measure(
                options, work.device, work.folder, steps=work.sizes.steps, until=work.until
            )
            check_graphs(work, f"{loop}, batch {batch}", options, measured)
        work.tell.value("variants", loop, value=measured)
        if measured.get("waits") is not None and loop != "plain":
            _judge_waits(work, f"{loop}, batch {batch}", measured["waits"])

    return run


def compiled_graphs_section(work: Work) -> None:
    """Check compiled steps in CUDA graphs: until a GPU has shown this, the job does not record compiled steps."""
    plain, graphs = (
        _averaged(work, work.device, None, WARM_UP + DDP_STEPS, graphs=on, compiled=True)
        for on in (False, True)
    )
    _judge_graphs(work, "compiled steps in CUDA graphs", graphs, plain)


def start_section(work: Work) -> None:
    """Measure `gpuctl train` for two short epochs on this machine, and a hand-written script."""
    for name, value in measure_start(work.folder, rounds=work.sizes.starts).items():
        work.tell.value("start", name, value=value)


def nccl_section(work: Work) -> None:
    """Measure the start of the ranks' back end with one rank, and check the averaged step."""
    backend = "nccl" if work.device.type == "cuda" else "gloo"
    log = work.folder / "nccl.log"
    os.environ |= {**nccl_log.DEBUG, "NCCL_DEBUG_FILE": str(log)}
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")
    cpu = torch.device("cpu")
    with _one_rank(cpu, "gloo"):
        on_gloo = {compression: _averaged(work, cpu, compression) for compression in COMPRESSIONS}
    synchronize(work.device)
    began = time.perf_counter()
    with _one_rank(work.device, backend):
        work.tell.value("start_s", value=time.perf_counter() - began)
        tensor = torch.ones(2**20, device=work.device)
        began = time.perf_counter()
        dist.all_reduce(tensor)
        synchronize(work.device)
        work.tell.value("first_all_reduce_s", value=time.perf_counter() - began)
        weights = sum(p.numel() for p in build_model(_job(work, 1), SHAPE, job.CLASSES).parameters())
        gradients = torch.ones(weights, device=work.device)
        work.tell.value("all_reduce_ms", value=timed(lambda: dist.all_reduce(gradients), work.device) * 1e3)
        work.tell.check(
            "all-reduce of one rank", ok=bool((tensor == 1).all()), details=f"{backend}, 4 MiB, unchanged"
        )
        for compression in COMPRESSIONS:
            losses = _averaged(work, work.device, compression)
            work.tell.value("averaged", compression, value=losses)
            bound = EXACT_BOUND if compression == "none" else LOSSY_BOUND
            difference = apart(losses, on_gloo[compression])
            work.tell.check(
                f"DistributedDataParallel, --compression {compression}",
                ok=difference <= bound,
                details=f"{len(losses)} losses are up to {difference:.1e} from the CPU's over gloo (bound {bound:g})",
            )
        plain, graphs = (
            _averaged(work, work.device, "none", WARM_UP + DDP_STEPS, graphs=on) for on in (False, True)
        )
        _judge_graphs(work, "DistributedDataParallel in a CUDA graph", graphs, plain)
    work.tell.value("transports", value=nccl_log.read(str(log)))


@contextmanager
def _one_rank(device: torch.device, backend: str) -> Iterator[None]:
    """Join a process group as the job does with several ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"tcp://127.0.0.1:{port}",
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=NCCL_TIMEOUT_S),
        device_id=device if on_gpu else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _averaged(
    work: Work,
    device: torch.device,
    compression: Compression | None,
    steps: int = DDP_STEPS,
    *,
    graphs: bool = False,
    compiled: bool = False,
) -> list[float]:
    """Return the losses of some steps on the same images, with DistributedDataParallel or (`None`) without."""
    options = _job(
        work,
        work.sizes.loss_batch,
        optimizer="sgd",
        lr=1e-3,
        compression=compression or "none",
        compile=compiled,
        graphs="on",
    )
    kind = Strategy if compression is None else DataParallel
    strategy = kind(options, DistributedEnvironment(), device)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(work.sizes.loss_batch, 3, 32, 32, generator=generator).to(device)
    labels = torch.randint(job.CLASSES, (work.sizes.loss_batch,), generator=generator).to(device)
    set_arithmetic(options)
    torch.manual_seed(0)
    model = build_model(options, SHAPE, job.CLASSES).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    timer = StepTimer(device)
    recorder = recorder_of(device) if graphs else None
    objective = strategy.wrap(ModelWithLoss(model, options), steps=steps, on_ready=timer.gradients_ready)
    optimizer = build_optimizer(strategy, model.parameters(), fused=True, graphs=recorder is not None)
    batch = work.sizes.loss_batch
    step = TrainStep(options, objective, optimizer, timer, strategy, batch_size=batch, micro_batch_size=batch)
    graphed = recorder and GraphedStep(step, recorder, _raise, lambda _size: steps)
    take_step = graphed or step
    losses = []
    for _ in range(steps):
        timer.start()
        timer.data_ready(len(labels))
        loss, _ = take_step(images.contiguous(memory_format=torch.channels_last), labels)
        timer.end()
        losses.append(float(loss))
    assert all(step_time.step_ms >= 0 for step_time in timer.steps())
    if graphed:
        graphed.release()
    return losses


def _raise(reason: str) -> None:
    raise RuntimeError(reason)


def profile_section(work: Work) -> None:
    """Profile a step: kernels, the GPU's busy time, calls that wait."""
    batch = work.sizes.batches[0]
    for name, precision in (("fast", "fp32"), ("fast bf16", "bf16")):
        options = _job(
            work, batch, images=(work.sizes.steps.watched + 1) * batch, precision=precision, graphs="on"
        )
        with job.trainer_of(options, work.device, work.folder) as trainer:
            trainer.train_epoch()
            work.tell.value("steps", name, value=_profiled(work, trainer))


def _profiled(work: Work, trainer: Trainer) -> dict[str, Any]:
    """Return the profile of the first steps of the next epoch."""
    steps = min(work.sizes.steps.watched, PROFILED)
    pace = job.Pace(trainer.timer, work.until)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if work.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        pace.in_steps(steps, job.stop)
        with suppress(job.Stopped):
            trainer.train_epoch()
        synchronize(work.device)
    rows = profiler.key_averages()
    # Ranges named on the host appear on the device, too, around the kernels in them.
    on_device = [
        row
        for row in rows
        if str(row.device_type).endswith("CUDA") and not getattr(row, "is_user_annotation", False)
    ]
    top = sorted(on_device, key=lambda row: row.self_device_time_total, reverse=True)[:8]
    return {
        "steps": steps,
        "host_ms": (pace.began[-1] - pace.began[0]) * 1e3 / max(1, len(pace.began) - 1),
        "kernels": sum(row.count for row in on_device) / steps,
        "device_ms": sum(row.self_device_time_total for row in on_device) / 1e3 / steps,
        "calls": {row.key: row.count / steps for row in rows if row.key.startswith("cuda")},
        "top": [{"name": row.key[:100], "ms": row.self_device_time_total / 1e3 / steps} for row in top],
    }


def _job(work: Work, batch: int, *, images: int | None = None, **chosen: Any) -> Options:  # noqa: ANN401
    return job.job(work.sizes.images if images is None else images, batch, model=work.sizes.model, **chosen)


def runs_of(sizes: Sizes) -> dict[str, Run]:
    """Return the functions of the plan's sections."""
    small, large = sizes.batches
    loops = [(small, loop) for loop in LOOPS_OF_SMALL] + [(large, loop) for loop in LOOPS_OF_LARGE]
    return {
        "device": device_section,
        "waits": waits_section,
        "losses": losses_section,
        "parsers": parsers_section,
        "nccl": nccl_section,
        "profile": profile_section,
        "start": start_section,
        "compiled graphs": compiled_graphs_section,
        GPT: advise_run(Case(words=sizes.gpt)),
        PLAIN_GPT: plain_gpt_section,
        **{f"advise: {name}": advise_run(case) for name, case in sizes.cases.items()},
        **{loop_section(batch, loop): loop_run(batch, loop) for batch, loop in loops},
    }


def run_here(
    sections: Sequence[Section], sizes: Sizes, device: torch.device, folder: Path, handle: int
) -> None:
    """Run the sections in this process, each until its time, and write their lines to the handle.

    `folder`: for their files.
    """
    runs = runs_of(sizes)
    job.keep_images()
    if device.type == "cpu":
        torch.set_num_threads(1)

    def usable() -> bool:
        """Return whether neither the GPU nor the recording of a graph has failed in this process."""
        try:
            synchronize(device)
        except (RuntimeError, AssertionError):
            return False
        return not CudaRecorder.has_failed

    def run(section: Section, tell: Tell, until: float) -> None:
        torch.set_default_dtype(torch.float32)
        runs[section.name](Work(device=device, sizes=sizes, tell=tell, until=until, folder=folder))

    work(sections, run, usable, handle)
