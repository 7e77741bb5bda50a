"""Find out a job's samples and their number, as far as this computer knows. Imports nothing heavy."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from train.data.sentences import generated_text
from train.options import DatasetName, Options

VOCABULARY_OF_BYTES = 257
VOCABULARY_OF_GPT2 = 50_257
CLASSES_OF_IMAGENET = 1000
HELD_OUT, HELD_OUT_OF_TEXT = 0.2, 0.1
"""Default fraction of held-out samples, for a dataset without validation samples."""
ImageShape = tuple[int, int, int]
IMAGES: Mapping[DatasetName, tuple[ImageShape, int, int, bool]] = {
    "digits": ((1, 8, 8), 10, 1_797, False),
    "mnist": ((1, 28, 28), 10, 60_000, True),
    "cifar10": ((3, 32, 32), 10, 50_000, True),
}
"""Shape, classes, training images, and whether the dataset has validation images."""
SUFFIXES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True, kw_only=True)
class Data:
    """The samples that a job trains on."""

    classes: int
    """Classes of images; number of tokens of text."""
    shape: ImageShape | None = None
    """Channels, height and width of an image. `None`: text."""
    training: int | None
    """Samples to train on. `None`: not known."""
    assumed: tuple[str, ...] = ()
    """Assumptions, a clause each."""
    epoch: str
    """The meaning of an epoch, or why it is not known, in a clause."""


def data_of(options: Options) -> Data:
    """Return the known facts of the samples that the options name."""
    if options.is_text:
        vocabulary, assumed = _vocabulary(options)
        samples = _training_sequences(options)
        epoch = _epoch_of_text(options, samples)
        return Data(classes=vocabulary, training=samples, assumed=assumed, epoch=epoch)
    if options.dataset == "folder":
        return _folder(options)
    if options.dataset == "synthetic":
        count, *shape, classes = options.synthetic
        known = (shape[0], shape[1], shape[2]), classes, count, True
    else:
        known = IMAGES[options.dataset]
    size, classes, count, has_validation = known
    training = _without_held_out(options, count, has_validation=has_validation)
    return Data(classes=classes, shape=size, training=training, epoch=_epoch_of_images(options, training))


def _folder(options: Options) -> Data:
    """Inspect a folder of images, if it is on this computer."""
    size = (3, options.image_size, options.image_size)
    folder = None if options.data_dir is None else Path(options.data_dir).expanduser()
    if folder is None or not (folder / "train").is_dir():
        where = f"the images in {options.data_dir or 'the data folder'} are not on this computer"
        return Data(
            classes=CLASSES_OF_IMAGENET,
            shape=size,
            training=None,
            assumed=(f"{where}: {CLASSES_OF_IMAGENET:,} classes are assumed",),
            epoch=f"the cost of an epoch is not known: {where}",
        )
    classes = [path for path in (folder / "train").iterdir() if path.is_dir() and path.name[0] != "."]
    count = sum(file.suffix.lower() in SUFFIXES for part in classes for file in part.iterdir())
    has_validation = any((folder / name).is_dir() for name in ("val", "test"))
    training = _without_held_out(options, count, has_validation=has_validation)
    epoch = _epoch_of_images(options, training)
    return Data(classes=len(classes), shape=size, training=training, epoch=epoch)


def _without_held_out(options: Options, count: int, *, has_validation: bool) -> int:
    """Return how many of `count` images are for training. `has_validation`: other images are for validation."""
    held_out = options.validation if options.validation is not None else 0.0 if has_validation else HELD_OUT
    return count - round(held_out * count)


def _epoch_of_images(options: Options, samples: int) -> str:
    where = options.data_dir if options.dataset == "folder" else f"--dataset {options.dataset}"
    return f"an epoch is {samples:,} images of {where}"


def _vocabulary(options: Options) -> tuple[int, tuple[str, ...]]:
    """Return the number of tokens, and any assumption."""
    if options.tokenizer is None:
        return VOCABULARY_OF_BYTES, ()
    try:
        known = json.loads(Path(options.tokenizer).expanduser().read_text())
        # It maps tokens to numbers, or lists them in the order of their numbers.
        vocabulary = known["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        added = [token["id"] for token in known.get("added_tokens", ())]
        return max(map(int, [*ids, *added])) + 1, ()
    except (OSError, ValueError, KeyError, TypeError):
        return VOCABULARY_OF_GPT2, (
            f"the tokenizer {options.tokenizer} can't be read on this computer: {VOCABULARY_OF_GPT2:,} tokens are "
            "assumed, as GPT-2 has",
        )


def _text_bytes(options: Options) -> int | None:
    """Return the size of the text. `None`: it is not on this computer."""
    if options.data_dir is None:
        return len(generated_text().encode())
    path = Path(options.data_dir).expanduser()
    try:
        files = [path] if path.is_file() else list(path.rglob("*.txt"))
        return sum(file.stat().st_size for file in files) if files else None
    except OSError:
        return None


def _training_sequences(options: Options) -> int | None:
    """Return the number of training sequences. `None`: the text, or its number of tokens, is not known here."""
    size = _text_bytes(options)
    if size is None or options.tokenizer is not None:
        return None
    samples = size // options.seq_len
    held_out = HELD_OUT_OF_TEXT if options.validation is None else options.validation
    return samples - max(1, round(held_out * samples))


def _epoch_of_text(options: Options, samples: int | None) -> str:
    """Return the meaning of an epoch, or why it is not known."""
    text = options.data_dir or "the generated text"
    if samples is not None:
        return f"an epoch is {samples * options.seq_len:,} tokens of {text}"
    if options.tokenizer is not None:
        return "the cost of an epoch is not known: how many tokens the text has is up to the tokenizer"
    return f"the cost of an epoch is not known: {text} is not on this computer"
