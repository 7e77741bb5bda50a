"""Values of a line of metrics: step, epoch and loss under the names that scripts and libraries give them.

Any script writes these lines: nothing here raises on their content.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias

Line: TypeAlias = Mapping[str, Any]
Kind: TypeAlias = Literal["step", "epoch", "loss", "usual", "other"]

EVENTS = ("start", "epoch", "end", "failed", "allreduce")
"""Values of `event` in lines of the built-in job."""
DEPTH = 4
"""Mappings in mappings that are read."""
_BEFORE = r"(?:.*/)?_?(?:(?:global|train(?:ing|er)?|current|optimizer)_)*"
_STEP = re.compile(
    _BEFORE + r"(?:(?:time|env_|num_)?(?:steps?|updates?)|iter(?:ation)?s?|it|batch(?:_idx|_index)?)"
)
_EPOCH = re.compile(_BEFORE + r"epoch(?:_idx)?")
_NO_LOSS = re.compile(r"scal|weight|coef|lossless|stop|patience|best|min_|max_")
"""In names with `loss` of something else, such as `loss_scale` of mixed precision."""
_HELD_OUT = re.compile(
    r"(?:^|[^a-z])(?:val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?|dev|held_?out)(?:[^a-z]|loss|$)"
)
"""In names of a loss on other data than the training's; `value_loss` is no such name."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_USUAL = re.compile(
    r"samples|accuracy|max_steps|(?:local_)?rank|world_size"
    r"|(?:.*_)?(?:time|timestamp|runtime|elapsed|eta|seconds|secs|s|ms|per_s|per_sec|per_second)"
)
"""Names that have a meaning of their own, or judge nothing."""


def flat(line: Line, prefix: str = "", depth: int = DEPTH) -> Iterator[tuple[str, object]]:
    """Yield the names and values of a line; in `{"train": {"loss": 1}}` the name is `train/loss`."""
    for name, value in line.items():
        if isinstance(value, dict) and depth:  # faster than Mapping
            yield from flat(value, f"{prefix}{name}/", depth - 1)
        else:
            yield f"{prefix}{name}", value


def plain(name: str) -> str:
    """Return a name in small letters with `_` between words: `Train/valLoss` is `train/val_loss`."""
    return re.sub(r"[- ]", "_", _CAMEL.sub("_", name)).lower().replace(".", "/")


@lru_cache(maxsize=4096)
def kind_of(name: str) -> Kind:
    """Return the meaning of a name; `usual` is one with another meaning than that of a measured value."""
    known = plain(name)
    if _STEP.fullmatch(known):
        return "step"
    if _EPOCH.fullmatch(known):
        return "epoch"
    if "loss" in known and not _NO_LOSS.search(known):
        return "loss"
    last = known.rpartition("/")[2].strip("_")
    return "usual" if _USUAL.fullmatch(last) else "other"


def number(value: object) -> float | None:
    """Return a finite number as it is, anything else as `None`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an int beyond every float
        return None


def whole(value: object) -> int | None:
    """An integer of a size that counts something, else `None`."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


def words(value: object) -> str | None:
    """A text that says something, else `None`."""
    return value if isinstance(value, str) and value else None


def inner(value: object) -> Line:
    """A mapping, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def number_in(value: object) -> float | None:
    """Return the number that a value is or holds: as text, or alone in a list. NaN counts as a number.

    Returns:
        `None` if the value holds no number, or several.
    """
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("tensor("):  # str() of a tensor
            text = text.removeprefix("tensor(").partition(",")[0].strip("[]) ")
        try:
            return float(text)
        except ValueError:
            return None
    return value if isinstance(value, float) else number(value)


def step_of(line: Line) -> float | None:
    """Return a line's step, iteration or batch."""
    return _place(line, "step")


def epoch_of(line: Line) -> float | None:
    """Return a line's epoch, which may be a fraction."""
    return _place(line, "epoch")


def _place(line: Line, kind: Literal["step", "epoch"]) -> float | None:
    if (usual := number(line.get(kind))) is not None:
        return usual
    values = _values(line)
    places = (number(number_in(values[name])) for name in _names(tuple(values), kind))
    return next((place for place in places if place is not None), None)


def _values(line: Line) -> Mapping[str, object]:
    """Return the values of a line by their names, also values in mappings."""
    return dict(flat(line)) if any(isinstance(value, Mapping) for value in line.values()) else line


@lru_cache(maxsize=4096)
def _names(names: tuple[str, ...], kind: Kind) -> tuple[str, ...]:
    """Return the names of a kind. Lines of one file mostly have the same names: they are sorted once.

    A batch is counted within its epoch, a global step over the whole run: global steps come first, batches last.
    """
    of_kind = [name for name in names if kind_of(name) == kind]
    if kind in ("step", "epoch"):
        of_kind.sort(key=lambda name: ("batch" in name.lower(), "global" not in name.lower()))
    return tuple(of_kind)


def losses_of(line: Line) -> dict[str, float]:
    """Return the losses of a line by their names. If all are null, they are NaN: people must see it."""
    values = _values(line)
    names = _names(tuple(values), "loss")
    losses = {name: loss for name in names if (loss := number_in(values[name])) is not None}
    return losses or {name: math.nan for name in names if values[name] is None}


def loss_name(counts: Mapping[str, int]) -> str | None:
    """Return the name of the training loss among names of losses, with the number of lines that have each.

    Of losses on held-out data, if all are such.
    """
    return min(counts, key=lambda name: (*_rank(name), -counts[name], len(name), name), default=None)


@lru_cache(maxsize=4096)
def _rank(name: str) -> tuple[bool, ...]:
    known = plain(name)
    return is_held_out(name), known != "loss", "train" not in known, "total" not in known


def is_held_out(name: str) -> bool:
    """Return whether a loss is one on other data than the training's."""
    return bool(_HELD_OUT.search(plain(name)))


def loss_of(line: Line) -> float | None:
    """Return a line's training loss."""
    losses = losses_of(line)
    name = loss_name(dict.fromkeys(losses, 1))
    return None if name is None or is_held_out(name) else losses[name]


def others_of(line: Line, loss: str | None) -> dict[str, float]:
    """Return the measured values of a line except `loss`, by their names, such as `reward` or `val_loss`.

    A null value is NaN: the previous value is not the last one.
    """
    values = _values(line)
    numbers = {
        name: math.nan if values[name] is None else number_in(values[name])
        for kind in ("loss", "other")
        for name in _names(tuple(values), kind)
        if name != loss
    }
    return {name: value for name, value in numbers.items() if value is not None}


def unusable(line: Line) -> str:
    """Return why step, epoch or loss of a line on no event are not used: `its "loss" is true`. Empty: all are."""
    values = list(flat(line))
    numbers = [name for name, value in values if value is None or number_in(value) is not None]
    usable = {kind_of(name) for name in numbers}
    for name, value in values:
        if (kind := kind_of(name)) in ("step", "epoch", "loss") and kind not in usable:
            return f'its "{name}" is {_described(value)}'
    return "" if numbers else "it holds no number"


def _described(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int):
        return "a number that is too large"
    return f'the text "{value}"' if isinstance(value, str) else "an object"
