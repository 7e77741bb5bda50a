"""What is asked: a job by its options, how large its steps are, and on how many tokens it is trained. Pure."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.command_line import parse
from train.data.sentences import generated_text
from train.errors import BadOptions
from train.models.gpt_sizes import GPT_SIZES
from train.options import DEFAULT_BATCH_OF_TEXT, Options

VOCABULARY_OF_BYTES = 257
VOCABULARY_OF_GPT2 = 50_257
HELD_OUT = 0.1
"""Fraction of a text that is not trained on, where the options say nothing."""
DECIDED = (
    "--strategy",
    "--tp",
    "--pp",
    "--batch-size",
    "--global-batch-size",
    "--gradient-accumulation-steps",
)
"""Options that a row of the answer has values for."""
AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Question:
    """A job, and what it is to be advised about."""

    words: tuple[str, ...]
    """The job's options as they were typed, without those that the answer decides."""
    options: Options
    strategy_given: bool
    """Whether one strategy alone is asked about."""
    batch_tokens: float | None
    """Tokens of a step of all ranks, about. None: the options say how many samples."""
    tokens: float | None
    """To train on in all. None: not said."""
    vocabulary: int
    epoch_samples: int | None
    """Training samples. None: not known."""
    notes: tuple[str, ...] = ()
    """What was assumed."""

    def global_batch(self, replicas: int) -> int | None:
        """Return the samples of a step of so many data-parallel ranks. None: they can't be divided so."""
        if self.options.global_batch_size is not None:
            return None if self.options.global_batch_size % replicas else self.options.global_batch_size
        if self.batch_tokens is not None:
            return max(1, round(self.batch_tokens / self.options.seq_len / replicas)) * replicas
        return (self.options.batch_size or DEFAULT_BATCH_OF_TEXT) * replicas


def question_of(words: Sequence[str], *, batch_tokens: float | None, tokens: float | None) -> Question:
    """Read a job's options. Exits as the job does where they are wrong; raises BadOptions for what has no answer."""
    words = tuple(without_auto(words))
    options = parse(words)
    if options.model not in GPT_SIZES:
        raise BadOptions(
            f"advise knows what text models need, and --model {options.model} is for images. Give one of "
            f"{', '.join(GPT_SIZES)}; of images, gpuctl bench --forecast measures and predicts."
        )
    if batch_tokens is not None and (options.global_batch_size or options.batch_size):
        raise BadOptions(
            "--batch-tokens and a batch size after -- both say how large a step is: leave one out."
        )
    vocabulary, notes = _vocabulary(options)
    samples = _training_samples(options)
    return Question(
        words=tuple(_without(words, DECIDED)),
        options=options,
        strategy_given=bool(set(_names(words)) & {"--strategy"}),
        batch_tokens=batch_tokens,
        tokens=tokens,
        vocabulary=vocabulary,
        epoch_samples=samples,
        notes=(*notes, _epoch_note(options, samples)),
    )


def without_auto(words: Sequence[str]) -> list[str]:
    """Return the options without `--strategy auto`, which asks for advice."""
    if _last_value(words, "--strategy") != AUTO:
        return list(words)
    return _without(words, ("--strategy",))


def _names(words: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in words]


def _last_value(words: Sequence[str], option: str) -> str | None:
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            found = value if equals else following
    return found


def _without(words: Sequence[str], options: Collection[str]) -> list[str]:
    """Return the words without some options, each of which takes a value."""
    kept, skip = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip or name in options:
            skip = not skip and not equals
            continue
        kept.append(word)
    return kept


def _vocabulary(options: Options) -> tuple[int, tuple[str, ...]]:
    """Return the number of tokens that there are, and what was assumed."""
    if options.tokenizer is None:
        return VOCABULARY_OF_BYTES, ()
    try:
        known = json.loads(Path(options.tokenizer).expanduser().read_text())
        added = [int(one["id"]) for one in known.get("added_tokens", ())]
        return max([*_ids(known["model"]["vocab"]), *added]) + 1, ()
    except (OSError, ValueError, KeyError, TypeError):
        return VOCABULARY_OF_GPT2, (
            f"the tokenizer {options.tokenizer} can't be read on this computer: {VOCABULARY_OF_GPT2:,} tokens are "
            "assumed, as GPT-2 has",
        )


def _ids(vocabulary: Mapping[str, int] | Sequence[Any]) -> list[int]:
    """Return the numbers of the tokens: a vocabulary names them, or is in their order."""
    if isinstance(vocabulary, Mapping):
        return [int(number) for number in vocabulary.values()]
    return list(range(len(vocabulary)))


def _text_bytes(options: Options) -> int | None:
    """Return the size of the text. None: it is not on this computer."""
    if options.data_dir is None:
        return len(generated_text().encode())
    path = Path(options.data_dir).expanduser()
    try:
        files = [path] if path.is_file() else list(path.rglob("*.txt"))
        return sum(one.stat().st_size for one in files) if files else None
    except OSError:
        return None


def _training_samples(options: Options) -> int | None:
    """Return the sequences to train on. None: the text is not here, or how many tokens it has is not known."""
    size = _text_bytes(options)
    if size is None or options.tokenizer is not None:
        return None
    samples = size // options.seq_len
    held_out = HELD_OUT if options.validation is None else options.validation
    return samples - max(1, round(held_out * samples))


def _epoch_note(options: Options, samples: int | None) -> str:
    """Return what an epoch is, or why that is not known."""
    text = options.data_dir or "the generated text"
    if samples is not None:
        return f"an epoch is {samples * options.seq_len:,} tokens of {text}"
    if options.tokenizer is not None:
        return "the cost of an epoch is not known: how many tokens the text has is up to the tokenizer"
    return f"the cost of an epoch is not known: {text} is not on this computer"
