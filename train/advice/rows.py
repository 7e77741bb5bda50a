"""The answer: a row for each machine, count and strategy, the cheapest first. Pure."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, overload

from train.advice.candidates import Layout, Refused, layouts, strategies
from train.advice.machines import Machines
from train.advice.memory import USABLE, Memory
from train.advice.network import Network, text_network
from train.advice.question import Question
from train.advice.speed import step_s
from train.models.gpt_sizes import GPT_SIZES
from train.options import Options
from train.strategies.degrees import strategy_name


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one strategy comes to on some machines. None: not known."""

    shape: str
    count: int
    gpus: int
    gpu: str
    gpu_memory_gb: float
    strategy: str
    fits: bool
    memory_gb: float | None
    """Of the fullest rank."""
    memory: dict[str, float] | None
    """By part, GB."""
    micro_batch: int | None
    gradient_accumulation_steps: int | None
    batch_tokens: int | None
    """Of a step of all ranks."""
    step_s: tuple[float, float] | None
    tokens_per_s: float | None
    """In the middle of the range."""
    mfu: float | None
    hourly_usd: float | None
    usd_per_token: float | None
    """What the rows are sorted by."""
    usd_per_epoch: float | None
    usd_total: float | None
    reason: str | None
    """Why it is not possible, or what is not known of it. None: all is."""
    words: tuple[str, ...]
    """The job's options for it."""

    @property
    def lacking_gb(self) -> float:
        """What it needs beyond what there is; infinite where that is not what is wrong with it."""
        return math.inf if self.memory_gb is None else self.memory_gb - self.gpu_memory_gb


def network_of(question: Question) -> Network:
    """Return what the job's network is made of."""
    options = question.options
    return text_network(
        GPT_SIZES[options.model],
        vocabulary=question.vocabulary,
        length=options.seq_len,
        precision=options.precision,
        by_blocks=not options.wrap.startswith("size:"),
    )


def rows(question: Question, machines: Iterable[Machines]) -> list[Row]:
    """Return all rows: what fits, by dollars, and of the same dollars by fewer GPUs; then by how much is lacking."""
    network = network_of(question)
    found = [row for one in machines for row in _rows_of(question, network, one)]
    return sorted(found, key=_order)


def _order(row: Row) -> tuple[float, ...]:
    dollars = math.inf if row.usd_per_token is None else row.usd_per_token
    return (
        not row.fits,
        dollars if row.fits else row.lacking_gb,
        row.count * row.gpus,
        -(row.tokens_per_s or 0.0),
    )


def _rows_of(question: Question, network: Network, machines: Machines) -> Iterator[Row]:
    """Yield the row of the best of each strategy's layouts: one that fits, and the fastest of them."""
    for strategy in strategies(question, machines):
        every = [
            _refused(question, machines, one)
            if isinstance(one, Refused)
            else _row(question, network, machines, one)
            for one in layouts(question, network, machines, strategy)
        ]
        if every:
            yield min(every, key=lambda row: (not row.fits, -(row.tokens_per_s or 0.0), row.lacking_gb))


def _refused(question: Question, machines: Machines, refused: Refused) -> Row:
    return Row(
        **_facts(machines),
        strategy=refused.options.strategy,
        fits=False,
        memory_gb=None,
        memory=None,
        micro_batch=None,
        gradient_accumulation_steps=None,
        batch_tokens=None,
        step_s=None,
        tokens_per_s=None,
        mfu=None,
        usd_per_token=None,
        usd_per_epoch=None,
        usd_total=None,
        reason=refused.reason,
        words=question.words,
    )


def _row(question: Question, network: Network, machines: Machines, layout: Layout) -> Row:
    options = layout.options
    seconds = step_s(network, options, layout.sizes, layout.batch, machines) if layout.fits else None
    tokens = layout.global_batch * network.tokens
    speed = peak = usd_per_token = None
    flops = 0.0
    if seconds is not None:
        speed = tokens / (sum(seconds) / 2)
        flops = speed * network.flops / network.tokens
        peak = machines.peak_flops(options.precision)
        # To three figures: rows that differ less cost the same.
        usd_per_token = figures(machines.hourly_usd and machines.hourly_usd / 3600 / speed, 3)
    epoch = None if question.epoch_samples is None else question.epoch_samples * network.tokens
    return Row(
        **_facts(machines),
        strategy=strategy_name(options, layout.sizes),
        fits=layout.fits,
        memory_gb=round(layout.memory.total / 1e9, 2),
        memory=layout.memory.parts_gb(),
        micro_batch=layout.batch.micro_batch,
        gradient_accumulation_steps=layout.batch.number,
        batch_tokens=tokens,
        step_s=None if seconds is None else (figures(seconds[0]), figures(seconds[1])),
        tokens_per_s=figures(speed),
        mfu=figures(flops / (peak * machines.world_size)) if peak else None,
        usd_per_token=usd_per_token,
        usd_per_epoch=_product(usd_per_token, epoch),
        usd_total=_product(usd_per_token, question.tokens),
        reason=_reason(options, layout, machines, seconds),
        words=(*question.words, *_decided(question, layout)),
    )


def _product(price: float | None, tokens: float | None) -> float | None:
    return None if price is None or tokens is None else figures(price * tokens)


@overload
def figures(value: float, number: int = 4) -> float: ...
@overload
def figures(value: None, number: int = 4) -> None: ...
@overload
def figures(value: float | None, number: int = 4) -> float | None: ...
def figures(value: float | None, number: int = 4) -> float | None:
    """Return a number with so many figures: it is not known better."""
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
    options: Options, layout: Layout, machines: Machines, seconds: tuple[float, float] | None
) -> str | None:
    if not layout.fits:
        return does_not_fit(layout.memory, machines, layout.batch.micro_batch)
    if seconds is not None:
        return None
    if machines.peak_flops(options.precision) is None:
        return f"It fits; how fast a {machines.gpu} is in {options.precision} is not known."
    return "It fits; how fast the links between its GPUs are is not known."


def does_not_fit(memory: Memory, machines: Machines, micro_batch: int) -> str:
    """Return what takes most of the memory that is not there, in a sentence."""
    parts = sorted(memory.parts_gb().items(), key=lambda part: -part[1])
    most = ", ".join(f"{name} {gb:.1f}" for name, gb in parts[:3] if gb)
    samples = "one sequence" if micro_batch == 1 else f"{micro_batch} sequences"
    return (
        f"With {samples} at a time a rank needs {memory.total / 1e9:.1f} GB ({most}), and {USABLE * 100:.0f} % of "
        f"the {machines.gpu}'s {machines.gpu_memory_gb:.0f} GB is {USABLE * machines.gpu_memory_gb:.1f}."
    )
