"""Readers of option values, with one sentence for a value that can't be used."""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path


def whole_number(at_least: int, at_most: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a reader of whole numbers in that range."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not at_least <= value <= at_most:
            raise _unusable(text, f"a whole number from {at_least} to {at_most}")
        return value

    return read


def number(
    *, at_most: float, above: float | None = None, at_least: float | None = None
) -> Callable[[str], float]:
    """Return a reader of numbers in that range."""
    lower_bound = f"above {above:g}" if above is not None else f"from {at_least:g}"

    def read(text: str) -> float:
        value = _float(text)
        low_enough = value > above if above is not None else value >= (at_least or 0.0)
        if not (low_enough and value <= at_most):  # also refuses nan
            raise _unusable(text, f"a number {lower_bound}, at most {at_most:g}")
        return value

    return read


def fraction(text: str) -> float:
    """Read a fraction."""
    value = _float(text)
    if not 0 <= value < 1:
        raise _unusable(text, "a fraction from 0, below 1")
    return value


def synthetic_sizes(text: str) -> tuple[int, ...]:
    """Read the sizes of a synthetic dataset."""
    sizes = [int(word) if word.isdecimal() else 0 for word in text.split(",")]
    if len(sizes) != 5 or min(sizes) < 1:
        raise _unusable(text, "five whole numbers, N,CHANNELS,HEIGHT,WIDTH,CLASSES, such as 10000,3,32,32,10")
    return tuple(sizes)


def names(text: str) -> tuple[str, ...]:
    """Read different names, separated by commas."""
    values = tuple(word.strip() for word in text.split(","))
    if not all(values) or len(set(values)) < len(values):
        raise _unusable(text, "different names, separated by commas")
    return values


def wrap_policy(text: str) -> str:
    """Read a wrap policy, which chooses the parts of a network that are sharded separately."""
    size = text.removeprefix("size:")
    sized = text != size and size.isdecimal() and int(size) > 0
    if sized or all(name.isidentifier() for name in text.split(",")):
        return text
    raise _unusable(text, "transformer, size:N such as size:100000, or names of classes, separated by commas")


def deepspeed_config(text: str) -> str:
    """Read a file of DeepSpeed's configuration, or the configuration itself, as JSON in one line."""
    try:
        config = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} can't be read: {error.strerror}.") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no JSON: {error}.") from None
    if not isinstance(config, dict):
        raise _unusable(text, "a JSON object, as DeepSpeed's documentation has it")
    return json.dumps(config, separators=(",", ":"))


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _unusable(text: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r} can't be used: give {expected}.")
