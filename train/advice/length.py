"""The length of a training: in samples, and in the epochs that a command has to name. Pure."""

import math
from dataclasses import dataclass

from train.advice.data import Data
from train.errors import BadOptions
from train.options import Options

NO_TEXT = "no text is named, and the job's generated sentences are too few: give --data-dir after --"
"""Instead of an epoch, if the question is about more tokens than the generated sentences have."""


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
        return _whole_epochs(data.training, options, tokens, epochs_given=epochs_given)
    samples = tokens / options.seq_len
    if epochs_given:
        return Length(samples=samples, epochs=options.epochs)
    return Length(
        samples=samples,
        epochs=None,
        without_command=f"No command: how many epochs {tokens:,.0f} tokens are is not known. Give --epochs after --, "
        "too, or a text on this computer, in bytes.",
    )


def _whole_epochs(training: int, options: Options, tokens: float, *, epochs_given: bool) -> Length:
    """Return the epochs of a text of a known size that have at least `tokens` tokens."""
    if epochs_given:
        raise BadOptions("--tokens and --epochs after -- both say how long to train: leave one out.")
    epochs = max(1, math.ceil(tokens / (training * options.seq_len)))
    in_all = epochs * training * options.seq_len
    noun = "epoch" if epochs == 1 else "epochs"
    return Length(
        samples=float(epochs * training),
        epochs=epochs,
        notes=(f"--tokens {tokens:,.0f} are {epochs:,} {noun}, which have {in_all:,} tokens",),
    )
