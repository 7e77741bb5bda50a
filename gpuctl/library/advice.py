"""What `advise` accepts, and what is made of it, for the library and for the command line."""

import math
import re
from collections.abc import Sequence
from typing import TypedDict

from gpuctl.errors import Usage
from gpuctl.option_table.values import refuse_unknown, several
from gpuctl.workflow.jobs.advise import AdviseRequest
from provision.clouds import CLOUDS

UNITS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
MOST_COUNT = 1024


class AdviseOptions(TypedDict, total=False):
    """The options of `gpuctl advise`, named as on the command line."""

    shapes: Sequence[str]
    """Names of shapes or GPUs, or their beginnings. Default: all that have a price."""
    counts: Sequence[int | str]
    """Numbers of machines. Default: 1, 2, 4 and 8."""
    provider: str | None
    """Only shapes of this provider."""
    region: str | None
    """Of the prices."""
    batch_tokens: float | str | None
    """Tokens of a step of all ranks together, about: a number, or `0.5M`."""
    tokens: float | str | None
    """To train on in all: a number, or `20B`."""
    check: bool
    """Have torch, where it is installed here, count the memory of the first row, too, and tell `progress`."""


def advise_request(words: Sequence[str], options: AdviseOptions) -> AdviseRequest:
    """What these options ask for; `words`: the built-in job's options. Raises Usage for what can't be."""
    refuse_unknown("advise", options, AdviseOptions)
    provider = options.get("provider")
    if provider not in (None, *CLOUDS):
        raise Usage(f"--provider {provider} is not possible: give {' or '.join(CLOUDS)}.")
    return AdviseRequest(
        words=tuple(words),
        shapes=tuple(several("shapes", options.get("shapes", ()))),
        counts=tuple(dict.fromkeys(map(_count, several("counts", options.get("counts", ()))))),
        provider=provider,
        region=options.get("region"),
        batch_tokens=_tokens("--batch-tokens", options.get("batch_tokens")),
        tokens=_tokens("--tokens", options.get("tokens")),
        check=options.get("check", False),
    )


def _tokens(option: str, given: float | str | None) -> float | None:
    """Read a number of tokens: `500000`, `0.5M`, `20B`."""
    if given is None:
        return None
    read = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\+?\d+)?)([KMBGT]?)", str(given), re.IGNORECASE)
    number = float(read[1]) * UNITS[read[2].upper()] if read else 0.0
    if not 1 <= number < math.inf:
        raise Usage(f"{option}: {given!r} is no number of tokens: give one such as 500000, 0.5M or 20B.")
    return number


def _count(given: int | str) -> int:
    text = str(given)
    if not text.isdecimal() or not 1 <= int(text) <= MOST_COUNT:
        raise Usage(f"--count: {text!r} is no number of machines from 1 to {MOST_COUNT}, such as 1,2,4.")
    return int(text)
