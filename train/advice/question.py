"""The question: a job by its options, how large its steps are, and on how many tokens it is trained. Pure."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from train.advice.data import Data, data_of
from train.command_line import parse
from train.errors import BadOptions
from train.options import Options, Precision
from train.strategies.degrees import batch_of_rank

DECIDED = (
    "--strategy",
    "--tp",
    "--pp",
    "--batch-size",
    "--global-batch-size",
    "--gradient-accumulation-steps",
)
"""Options that a row of the answer has values for."""
OF_PARTS = {"--cpu-offload", "--prefetch"}
"""Options that only strategies with parts of the weights have."""
AUTO = "auto"
PRECISIONS = ("no --precision is named: rows have bf16 if the GPU has it, else fp16 or fp32",)
NO_TEXT = "no text is named, and the job's generated sentences are too few: give --data-dir after --"
"""Instead of an epoch, if the question is about more tokens than the generated sentences have."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A job to advise on."""

    words: tuple[str, ...]
    """The job's options as typed, without the options that the answer decides."""
    options: Options
    strategy_given: bool
    """Whether one strategy alone is asked about."""
    batch_tokens: float | None
    """Tokens of a step of all ranks, about. `None`: the options say how many samples."""
    data: Data
    samples: float | None
    """To train on in all. `None`: not known."""
    spelled_out: bool = False
    """Whether the answer's options are to say all that is priced: the precision and the epochs, too."""
    precision_given: bool = False
    without_command: str | None = None
    """Why no options train on these samples. `None`: the answer's options do."""
    notes: tuple[str, ...] = ()
    """How long the training is, in clauses."""

    def in_precision(self, precision: Precision) -> "Question":
        """Return the question for a precision that the options do not name."""
        return replace(
            self,
            words=(*self.words, "--precision", precision),
            options=replace(self.options, precision=precision),
        )

    def batch_of_rank(self, replicas: int) -> int:
        """Return the samples of a step of each of `replicas` data-parallel ranks. Raises BadOptions."""
        if self.batch_tokens is not None:
            return max(1, round(self.batch_tokens / self.options.seq_len / replicas))
        if (size := batch_of_rank(self.options, replicas)) is not None:
            return size
        default, samples = self.options.default_batch_size, self.rank_samples(replicas)
        return default if samples is None else min(default, samples)  # as in the job

    def rank_samples(self, replicas: int) -> int | None:
        """Return the samples of an epoch of each data-parallel rank. `None`: not known."""
        if not self.spelled_out or self.data.training is None:
            return None
        return math.ceil(self.data.training / replicas)


def question_of(
    words: Sequence[str], *, batch_tokens: float | None, tokens: float | None, spelled_out: bool = False
) -> Question:
    """Read a job's options. Exits as the job does where they are wrong; raises BadOptions for what has no answer."""
    words = tuple(without_auto(words))
    names = {word.partition("=")[0] for word in words}
    strategy_given = "--strategy" in names
    # Options of weights in parts are refused with the default strategy.
    options = parse([*words, "--strategy", "fsdp"] if names & OF_PARTS and not strategy_given else words)
    if not options.is_text and (batch_tokens, tokens) != (None, None):
        raise BadOptions(
            f"--batch-tokens and --tokens are for text, and --model {options.model} is for images: give "
            "--global-batch-size and --epochs after --."
        )
    if options.engine != "torch":
        raise BadOptions(f"advise compares torch's strategies: leave out --engine {options.engine}.")
    if batch_tokens is not None and (options.global_batch_size or options.batch_size):
        raise BadOptions(
            "--batch-tokens and a batch size after -- both say how large a step is: leave one out."
        )
    data = data_of(options)
    if options.is_text and options.data_dir is None and (batch_tokens, tokens) != (None, None):
        data = replace(data, training=None, epoch=NO_TEXT)
    length = length_of(data, options, tokens=tokens, epochs_given="--epochs" in names)
    job_words = tuple(_without(words, DECIDED))
    if spelled_out and length.epochs is not None:
        job_words = (*_without(job_words, ("--epochs",)), "--epochs", str(length.epochs))
        options = replace(options, epochs=length.epochs)
    return Question(
        words=job_words,
        options=options,
        strategy_given=strategy_given,
        batch_tokens=batch_tokens,
        data=data,
        samples=length.samples,
        spelled_out=spelled_out,
        precision_given="--precision" in names,
        without_command=length.without_command,
        notes=(
            data.epoch,
            *length.notes,
            *(PRECISIONS if spelled_out and "--precision" not in names else ()),
        ),
    )


def without_auto(words: Sequence[str]) -> list[str]:
    """Return the options without `--strategy auto`, which asks for advice."""
    strategy = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--strategy":
            strategy = value if equals else following
    return _without(words, ("--strategy",)) if strategy == AUTO else list(words)


def _without(words: Sequence[str], options: Collection[str]) -> list[str]:
    """Return the words without some options, each of which takes a value."""
    words_left, skip = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip or name in options:
            skip = not skip and not equals
            continue
        words_left.append(word)
    return words_left


@dataclass(frozen=True, kw_only=True)
class Length:
    """A training's length."""

    samples: float | None
    """`None`: not known."""
    epochs: int | None
    """The passes over the training samples. `None`: not known."""
    without_command: str | None = None
    """Why no options train on these samples, in a sentence."""
    notes: tuple[str, ...] = ()
    """Clauses for people."""


def length_of(data: Data, options: Options, *, tokens: float | None, epochs_given: bool) -> Length:
    """Return the length of the training that the options and `tokens` ask for.

    Raises BadOptions for tokens and epochs that contradict each other.
    """
    if data.epoch == NO_TEXT:
        samples = None if tokens is None else tokens / options.seq_len
        return Length(samples=samples, epochs=None, without_command=f"No command: {NO_TEXT}.")
    if tokens is None:
        samples = None if data.training is None else float(options.epochs * data.training)
        tokens_option = "--tokens, or " if options.is_text else ""
        default = f"{options.epochs} epochs, the job's default: give {tokens_option}--epochs after --"
        return Length(samples=samples, epochs=options.epochs, notes=() if epochs_given else (default,))
    if data.training is not None:
        if epochs_given:
            raise BadOptions("--tokens and --epochs after -- both say how long to train: leave one out.")
        epochs = max(1, math.ceil(tokens / (data.training * options.seq_len)))
        in_all = epochs * data.training * options.seq_len
        noun = "epoch" if epochs == 1 else "epochs"
        return Length(
            samples=float(epochs * data.training),
            epochs=epochs,
            notes=(f"--tokens {tokens:,.0f} are {epochs:,} {noun}, which have {in_all:,} tokens",),
        )
    samples = tokens / options.seq_len
    if epochs_given:
        return Length(samples=samples, epochs=options.epochs)
    return Length(
        samples=samples,
        epochs=None,
        without_command=f"No command: how many epochs {tokens:,.0f} tokens are is not known. Give --epochs after --, "
        "too, or a text on this computer, in bytes.",
    )
