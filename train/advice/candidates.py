"""The ways to divide a job among the ranks of some machines, and for each the largest micro-batch that fits. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from train.advice.machines import Machines
from train.advice.memory import Batch, Memory, fits, fullest_rank
from train.advice.network import Network
from train.advice.question import Question
from train.command_line import conflict
from train.distributed.environment import DistributedEnvironment
from train.errors import BadOptions
from train.options import Options, StrategyName
from train.strategies.degrees import Degrees, check_alone, degrees, micro_batches

TRIED: tuple[StrategyName, ...] = ("ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp")
"""Where no strategy is named. zero3 is fsdp, and dp is slower than ddp."""
DEGREES = (2, 4, 8, 16)
"""Of tensor parallelism and pipelines, where the options say nothing."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A division of the job."""

    options: Options
    sizes: Degrees
    batch: Batch
    global_batch: int
    memory: Memory
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A way that is not possible."""

    options: Options
    reason: str


def strategies(question: Question, machines: Machines) -> Iterator[StrategyName]:
    """Yield the strategies to try; a single rank has nothing to distribute."""
    if question.strategy_given:
        yield question.options.strategy
        return
    for name in TRIED if machines.world_size > 1 else TRIED[:1]:
        if name == "hsdp" and 1 in (machines.count, machines.gpus):
            continue  # the same as fsdp or ddp
        yield name


def layouts(
    question: Question, network: Network, machines: Machines, strategy: StrategyName
) -> Iterator[Layout | Refused]:
    """Yield the ways to divide the job by that strategy: one, or one for each degree that the options leave open.

    Yields nothing for a strategy that no option names, and that these ranks can't have.
    """
    variants = list(_variants(question.options, strategy, machines, network))
    for options in variants:
        try:
            yield _layout(question, options, network, machines)
        except BadOptions as error:
            yield Refused(options=options, reason=str(error))
    if not variants and question.strategy_given:
        yield Refused(
            options=replace(question.options, strategy=strategy),
            reason=(network.uncut if strategy == "pp" else network.unsplit)
            or f"The model's {network.heads} heads and {len(network.layers)} layers can't be divided among "
            f"{machines.count} x {machines.gpus} ranks by 2, 4, 8 or 16.",
        )


def _variants(
    options: Options, strategy: StrategyName, machines: Machines, network: Network
) -> Iterator[Options]:
    named = replace(options, strategy=strategy)
    if strategy == "tp" and options.tp is None:
        max_ranks = machines.gpus // (options.pp or 1) or machines.gpus
        for tp in DEGREES:
            if machines.gpus % tp == 0 and tp <= max_ranks and network.heads and network.heads % tp == 0:
                yield replace(named, tp=tp)
    elif strategy == "pp" and options.pp is None:
        for pp in DEGREES if network.uncut is None else ():
            if machines.world_size % (pp * (options.tp or 1)) == 0 and pp <= len(network.layers):
                yield replace(named, pp=pp)
    else:
        yield named


def _layout(question: Question, options: Options, network: Network, machines: Machines) -> Layout:
    """Return a layout with the largest micro-batch that fits, or with the smallest. Raises BadOptions."""
    env = DistributedEnvironment(world_size=machines.world_size, local_world_size=machines.gpus)
    if (problem := conflict(options)) is not None:
        raise BadOptions(problem)
    if options.strategy == "dp":
        check_alone(env)
    sizes = degrees(options, env)
    if reason := (sizes.tp > 1 and network.unsplit) or (sizes.pp > 1 and network.uncut):
        raise BadOptions(reason)
    if sizes.tp > 1 and (not network.heads or network.heads % sizes.tp):
        raise BadOptions(f"--tp {sizes.tp} does not divide the model's {network.heads} heads: change it.")
    if sizes.tp > machines.gpus:
        raise BadOptions(
            f"--tp {sizes.tp} is more than the {machines.gpus} GPUs of a machine: each layer would wait "
            "for the network."
        )
    rank_batch, rank_samples = question.batch_of_rank(sizes.replicas), question.rank_samples(sizes.replicas)
    if rank_samples is not None and rank_batch > rank_samples:
        raise BadOptions(
            f"The batch has {rank_batch:,} {options.samples_name} a rank, and an epoch has {rank_samples:,}: give a "
            "smaller batch, or more data."
        )
    largest = _largest(options, network, sizes, rank_batch, machines.gpu_memory_gb)
    memory = fullest_rank(network, options, sizes, largest)
    return Layout(
        options=options,
        sizes=sizes,
        batch=largest,
        global_batch=rank_batch * sizes.replicas,
        memory=memory,
        fits=fits(memory, machines.gpu_memory_gb),
    )


def _largest(options: Options, network: Network, sizes: Degrees, samples: int, gpu_memory_gb: float) -> Batch:
    """Return the largest micro-batch of a rank's samples that fits; otherwise the smallest."""
    fewest = min(micro_batches(options, sizes, samples), samples)
    if fewest < sizes.pp:
        raise BadOptions(
            f"A rank's batch of {samples} can't be divided into a micro-batch for each of {sizes.pp} stages: give a "
            "larger batch."
        )
    if options.gradient_accumulation_steps is not None:
        return _batch(samples, fewest)

    def does(micro_batch: int) -> bool:
        batch = _batch(samples, _number(samples, micro_batch))
        return fits(fullest_rank(network, options, sizes, batch), gpu_memory_gb)

    whole = _batch(samples, fewest).micro_batch
    if does(whole):
        return _batch(samples, fewest)
    low, high = 1, whole  # the largest batch that fits is in [low, high), unless no batch fits
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if does(middle) else (low, middle)
    return _batch(samples, max(fewest, _number(samples, low)))


def _number(samples: int, micro_batch: int) -> int:
    return -(-samples // micro_batch)


def _batch(samples: int, number: int) -> Batch:
    """Return a batch in `number` micro-batches, the last of which may be smaller."""
    return Batch(micro_batch=_number(samples, number), number=number)
