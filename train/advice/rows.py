"""The answer: a row for each machine, count and strategy, the cheapest first. Pure."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from train.advice.candidates import Layout, Refused, layouts, strategies
from train.advice.machines import Machines
from train.advice.measured import MeasuredRun, measured, range_of
from train.advice.memory import USABLE, Memory
from train.advice.network import Network, text_network
from train.advice.question import Question
from train.advice.speed import has_graphs, step_s
from train.errors import BadEnvironment
from train.models.gpt_sizes import GPT_SIZES
from train.options import Options, Precision
from train.strategies.degrees import strategy_name

HARDLY_FASTER = 1.03
"""Speed-up over a simpler strategy below which the arithmetic can't tell them apart."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A strategy's figures on some machines. `None`: not known."""

    shape: str
    count: int
    gpus: int
    gpu: str
    gpu_memory_gb: float
    strategy: str
    precision: Precision
    fits: bool
    memory_gb: float | None = None
    """Memory of the fullest rank."""
    memory: dict[str, float] | None = None
    """By part, GB."""
    micro_batch: int | None = None
    gradient_accumulation_steps: int | None = None
    batch_samples: int | None = None
    """Of a step of all ranks."""
    batch_tokens: int | None = None
    """The same; `None`: images."""
    step_s: tuple[float, float] | None = None
    samples_per_s: float | None = None
    """In the middle of the range."""
    tokens_per_s: float | None = None
    """The same; `None`: images."""
    mfu: float | None = None
    hourly_usd: float | None
    usd_per_sample: float | None = None
    compared: float | None = None
    """The price by which rows are sorted: of the whole training, else of a sample; without a price the GPUs' seconds
    for a sample. A strategy that is hardly faster than a simpler one has the simpler one's, if that is higher."""
    usd_per_epoch: float | None = None
    """Of its samples alone, on machines that run already."""
    total_s: tuple[float, float] | None = None
    """From the order of the machines to the last step: the best case and the worst."""
    usd_total: float | None = None
    """Of that time, in the middle of the range, and at least of the shortest time that is billed."""
    reason: str | None = None
    """The reason against it, a missing fact, or the run that measured it."""
    without_command: str | None = None
    """Why `words` do not train on all that is priced. `None`: they do."""
    words: tuple[str, ...]
    """The job's options for it."""

    @property
    def lacking_gb(self) -> float:
        """Return the missing GPU memory, GB; infinite if memory is not the reason that it does not fit."""
        return math.inf if self.memory_gb is None else self.memory_gb - self.gpu_memory_gb


def network_of(question: Question, *, pipelines: bool) -> Network:
    """Return the layers of the job's network. `pipelines`: whether it will be cut into stages.

    Raises BadEnvironment if torch has to measure it, and is not installed.
    """
    options, data = question.options, question.data
    if data.shape is not None:
        try:
            from train.advice.images import image_network
        except ImportError as error:
            raise BadEnvironment(
                f"What {options.model} needs is measured with torch, on tensors that take no memory, and this "
                f"computer has no {error.name}: pip install torch torchvision. Text models need neither."
            ) from error
        return image_network(options, data.shape, data.classes, pipelines=pipelines)
    return text_network(
        GPT_SIZES[options.model],
        vocabulary=data.classes,
        length=options.seq_len,
        precision=options.precision,
        by_blocks=not options.wrap.startswith("size:"),
        compiled=options.compile,
    )


def rows(question: Question, machines: Sequence[Machines], runs: Sequence[MeasuredRun] = ()) -> list[Row]:
    """Return all rows: fitting rows by price, then by number of GPUs; then the others by lacking memory.

    `runs`: earlier runs, the latest last; the steps of an equal run replace the estimate.
    """
    chosen = question.spelled_out and not question.precision_given
    precisions: Iterable[Precision] = [question.options.precision]
    if chosen:
        precisions = dict.fromkeys(precision for group in machines for precision in group.usual_precisions)
    every_row: list[Row] = []
    stages = question.options.strategy == "pp" or (question.options.pp or 1) > 1
    for precision in precisions:
        suited = [group for group in machines if not chosen or precision in group.usual_precisions]
        pipelines = stages or (not question.strategy_given and any(group.world_size > 1 for group in suited))
        of_precision = question.in_precision(precision) if chosen else question
        network = network_of(of_precision, pipelines=pipelines)
        every_row += [
            row
            for group in suited
            for row in _rows_of(of_precision, network, group, runs)
            # A reason against all precisions of a GPU is shown once.
            if row.fits or not chosen or precision == group.usual_precisions[-1]
        ]
    return sorted(every_row, key=_order)


def _order(row: Row) -> tuple[float, ...]:
    price = row.compared or math.inf
    # Similar prices count as equal: fewer GPUs come first then.
    step = round(math.log(price) / math.log(HARDLY_FASTER)) if math.isfinite(price) else math.inf
    return (
        not row.fits,
        # Seconds are not compared with dollars.
        row.compared is None or not row.hourly_usd,
        step if row.fits else row.lacking_gb,
        row.count * row.gpus,
        price,
    )


def _rows_of(
    question: Question, network: Network, machines: Machines, runs: Sequence[MeasuredRun]
) -> Iterator[Row]:
    """Yield the best row of each strategy's layouts: one that fits, and the fastest of these.

    Simpler strategies come first, and stay before strategies that are hardly faster.
    """
    simpler: Row | None = None
    for strategy in strategies(question, machines):
        every = [
            _refused(question, machines, layout)
            if isinstance(layout, Refused)
            else _row(question, network, machines, layout, measured(runs, layout, machines))
            for layout in layouts(question, network, machines, strategy)
        ]
        if not every:
            continue
        best = min(every, key=lambda row: (not row.fits, -(row.samples_per_s or 0.0), row.lacking_gb))
        if simpler is not None and (best.samples_per_s or 0.0) <= HARDLY_FASTER * (
            simpler.samples_per_s or 0.0
        ):
            best = replace(best, compared=max(best.compared or 0.0, simpler.compared or 0.0) or None)
        elif best.fits:
            simpler = best
        yield best


def _refused(question: Question, machines: Machines, refused: Refused) -> Row:
    return Row(
        **_facts(machines),
        strategy=refused.options.strategy,
        precision=refused.options.precision,
        fits=False,
        reason=refused.reason,
        words=question.words,
    )


def _row(
    question: Question, network: Network, machines: Machines, layout: Layout, run: MeasuredRun | None
) -> Row:
    options = layout.options
    seconds = None
    if run is not None:
        seconds = range_of(run, layout)
    elif layout.fits:
        graphs = has_graphs(options, layout.sizes, layout.memory, machines.gpu_memory_gb)
        seconds = step_s(network, options, layout.sizes, layout.batch, machines, graphs=graphs)
    speed = usd_per_sample = mfu = cost = gpu_s = None
    if seconds is not None:
        speed = layout.global_batch / (sum(seconds) / 2)
        gpu_s = machines.world_size / speed
        mfu = (
            speed
            * network.flops
            / ((machines.peak_flops(options.precision) or math.inf) * machines.world_size)
        )
        # To three figures: rows that differ less cost the same.
        usd_per_sample = figures(machines.hourly_usd and machines.hourly_usd / 3600 / speed, 3)
        if question.samples is not None:
            best, worst = (step / layout.global_batch for step in seconds)
            cost = training_cost(machines, question.samples, (best, worst))
    samples, of_text = question.data.training, None if network.of_images else network.tokens
    return Row(
        **_facts(machines),
        strategy=strategy_name(options, layout.sizes),
        precision=options.precision,
        # A run that succeeded has proved it, whatever the arithmetic says.
        fits=layout.fits or run is not None,
        memory_gb=round(layout.memory.total / 1e9, 2),
        memory=layout.memory.parts_gb(),
        micro_batch=layout.batch.micro_batch,
        gradient_accumulation_steps=layout.batch.number,
        batch_samples=layout.global_batch,
        batch_tokens=of_text and layout.global_batch * of_text,
        step_s=None if seconds is None else (figures(seconds[0]), figures(seconds[1])),
        samples_per_s=figures(speed),
        tokens_per_s=figures(speed and of_text and speed * of_text),
        mfu=figures(mfu),
        usd_per_sample=usd_per_sample,
        compared=(cost.usd if cost is not None else usd_per_sample) or gpu_s,
        usd_per_epoch=figures(usd_per_sample and samples and usd_per_sample * samples),
        total_s=None if cost is None else (figures(cost.total_s[0]), figures(cost.total_s[1])),
        usd_total=None if cost is None else figures(cost.usd),
        without_command=question.without_command,
        reason=_reason(options, layout, machines, seconds, run),
        words=(*question.words, *_decided(question, layout)),
    )


@overload
def figures(value: float, number: int = 4) -> float: ...
@overload
def figures(value: None, number: int = 4) -> None: ...
@overload
def figures(value: float | None, number: int = 4) -> float | None: ...
def figures(value: float | None, number: int = 4) -> float | None:
    """Return a value rounded to `number` significant figures: it is not known better."""
    return None if value is None else float(f"{value:.{number}g}")


def _facts(machines: Machines) -> dict[str, Any]:
    return {
        "shape": machines.shape,
        "count": machines.count,
        "gpus": machines.gpus,
        "gpu": machines.gpu,
        "gpu_memory_gb": machines.gpu_memory_gb,
        "hourly_usd": machines.hourly_usd,
    }


def _decided(question: Question, layout: Layout) -> Iterator[str]:
    """Yield the options of a layout."""
    options, sizes = layout.options, layout.sizes
    yield from ("--strategy", options.strategy)
    if sizes.tp > 1:
        yield from ("--tp", str(sizes.tp))
    if sizes.pp > 1:
        yield from ("--pp", str(sizes.pp))
    if question.batch_tokens is not None or options.global_batch_size is not None:
        yield from ("--global-batch-size", str(layout.global_batch))
    elif options.batch_size is not None:
        yield from ("--batch-size", str(options.batch_size))
    if layout.batch.number > 1:
        yield from ("--gradient-accumulation-steps", str(layout.batch.number))


def _reason(
    options: Options,
    layout: Layout,
    machines: Machines,
    seconds: tuple[float, float] | None,
    run: MeasuredRun | None,
) -> str | None:
    if run is not None:
        return f"measured in {run.run}"
    if not layout.fits:
        number, name = layout.batch.micro_batch, options.samples_name
        samples = f"one {name.removesuffix('s')}" if number == 1 else f"{number} {name}"
        return does_not_fit(layout.memory, machines, samples)
    if seconds is not None:
        return None
    if machines.peak_flops(options.precision) is None:
        return f"It fits; how fast a {machines.gpu} is in {options.precision} is not known."
    if options.cpu_offload:
        return (
            "It fits; how fast a host updates the weights, and gets them to its GPUs and back, is not known."
        )
    return "It fits; how fast the links between its GPUs are is not known."


def does_not_fit(memory: Memory, machines: Machines, samples: str) -> str:
    """Return the reason, a sentence with the largest parts of the memory."""
    parts = sorted(memory.parts_gb().items(), key=lambda part: -part[1])
    largest = ", ".join(f"{name} {gb:.1f}" for name, gb in parts[:3] if gb)
    return (
        f"With {samples} at a time a rank needs {memory.total / 1e9:.1f} GB ({largest}), and {USABLE * 100:.0f} % of "
        f"the {machines.gpu}'s {machines.gpu_memory_gb:.0f} GB is {USABLE * machines.gpu_memory_gb:.1f}."
    )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A whole training on rented machines."""

    total_s: tuple[float, float]
    """From the order of the machines to the last step: the best case and the worst."""
    usd: float | None
    """In the middle of that range, and at least the shortest time that is billed. `None`: no price is known."""


def training_cost(machines: Machines, samples: float, sample_s: tuple[float, float]) -> Cost:
    """Return the cost of a training with `samples`. `sample_s`: seconds for each, the best case and the worst."""
    best, worst = (machines.setup_s + samples * seconds for seconds in sample_s)
    billed_s = max(machines.min_billed_s, (best + worst) / 2)
    usd = None if machines.hourly_usd is None else machines.hourly_usd * billed_s / 3600
    return Cost(total_s=(best, worst), usd=usd)
