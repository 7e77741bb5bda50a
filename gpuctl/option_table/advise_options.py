"""The options of `gpuctl advise`."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gpuctl.errors import Usage
from inventories.option import option
from provision.clouds import CLOUDS

UNITS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
MAX_COUNT = 1024


def _tokens(value: float | str, *, flag: str) -> float:
    """Read a number of tokens: `500000`, `0.5M`, `20B`."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\+?\d+)?)([KMBGT]?)", str(value), re.IGNORECASE)
    number = float(parts[1]) * UNITS[parts[2].upper()] if parts else 0.0
    if not 1 <= number < math.inf:
        raise Usage(f"{flag}: {value!r} is no number of tokens: give one such as 500000, 0.5M or 20B.")
    return number


def _counts(values: Sequence[int | str]) -> tuple[int, ...]:
    """Read numbers of machines, each of them once."""
    texts = [str(value) for value in values]
    for text in texts:
        if not text.isdecimal() or not 1 <= int(text) <= MAX_COUNT:
            raise Usage(f"--count: {text!r} is no number of machines from 1 to {MAX_COUNT}, such as 1,2,4.")
    return tuple(dict.fromkeys(map(int, texts)))


# fmt: off
@dataclass(frozen=True, kw_only=True)
class AdviseSettings:
    """The options of `gpuctl advise`, as its request has them."""

    batch_tokens: float | None = option(
        "--batch-tokens", kind=str, read=partial(_tokens, flag="--batch-tokens"), annotation="float | str | None",
        metavar="N",
        help="Tokens of a step of all ranks together, about: 500000, 0.5M (default: the job's own batch on each "
        "rank).",
    )
    tokens: float | None = option(
        "--tokens", kind=str, read=partial(_tokens, flag="--tokens"), annotation="float | str | None", metavar="N",
        help="Tokens to train on in all, such as 20B, in whole epochs (default: the --epochs after --, else 10).",
    )
    shapes: tuple[str, ...] = option(
        "--shape", default=(), metavar="S[,S…]", completes="shapes",
        help="Only these shapes, or those of a GPU such as A100 (default: all that have a price). Repeatable.",
    )
    counts: tuple[int, ...] = option(
        "--count", default=(), kind=str, read=_counts, annotation="Sequence[int | str]", metavar="N[,N…]",
        help="Numbers of machines (default: 1,2,4,8; with --cluster: all). Repeatable.",
    )
    provider: str | None = option("--provider", kind=tuple(CLOUDS), help="Only shapes of this provider.")
    region: str | None = option(
        "--region", metavar="R", help="AWS region of the prices (default: us-east-1).",
    )
    check: bool | None = option(
        "--check/--no-check", annotation="bool",
        help="Have torch, where it is installed here, count the memory of the first row, too (default: --check).",
    )
