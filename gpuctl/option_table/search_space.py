"""The hyperparameters of `gpuctl tune`: as they are typed, and as the nodes get them. Pure."""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuctl.errors import Usage
from inventories.text import did_you_mean, nearest

Kind = Literal["uniform", "loguniform", "randint", "choice", "grid"]
FORMS = {
    "uniform": "uniform(0.1,0.9)",
    "loguniform": "loguniform(1e-4,1e-1)",
    "randint": "randint(1,8)",
    "choice": "choice(sgd,adam)",
    "grid": "grid(0.1,0.01)",
}
LISTS = ("choice", "grid")
"""Kinds that list their values."""
DEFAULT_TRIALS = 8
MAX_TRIALS = 10_000
_WRITTEN = re.compile(r"(?P<name>[\w-]+)=(?P<kind>\w+)\((?P<values>.*)\)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Param:
    """A hyperparameter and where its values are drawn from."""

    name: str
    kind: Kind
    values: tuple[float | int | str, ...]
    """The lower and the upper bound (randint never gives the upper one), or the values of choice and grid."""

    @property
    def words(self) -> tuple[str, str]:
        """The option as it is typed."""
        return "--param", f"{self.name}={self.kind}({','.join(map(str, self.values))})"

    def document(self) -> dict[str, Any]:
        """Return the form for the nodes."""
        return {"kind": self.kind, "values": list(self.values)}


def parse_params(words: Sequence[str]) -> tuple[Param, ...]:
    """The params of a command line. Raises Usage with the form that was meant."""
    params = tuple(parse_param(word) for word in words)
    names = [param.name for param in params]
    for name in names:
        if names.count(name) > 1:
            raise Usage(f"--param {name} is given twice.")
    return params


def grid_points(params: Sequence[Param]) -> int:
    """Return the number of combinations of all grids' values; 1 without a grid."""
    return math.prod(len(param.values) for param in params if param.kind == "grid")


def trials_of(params: Sequence[Param], trials: int | None) -> int:
    """Return the number of all trials: `trials` (default: 8; with a grid 1) for each point of the grid.

    Raises Usage above MAX_TRIALS.
    """
    grid = any(param.kind == "grid" for param in params)
    total = grid_points(params) * (trials or (1 if grid else DEFAULT_TRIALS))
    if total > MAX_TRIALS:
        raise Usage(
            f"The grid and --trials make {total:,} trials; {MAX_TRIALS:,} are possible. List fewer values."
        )
    return total


def parse_param(word: str) -> Param:
    """Read a param such as `lr=loguniform(1e-4,1e-1)`. Raises Usage."""
    written = _WRITTEN.fullmatch(word.replace(" ", ""))
    if written is None:
        raise Usage(f"--param {word!r} is not understood. {_meant(word)}")
    name, kind = written["name"], written["kind"]
    if kind not in FORMS:
        hint = did_you_mean(kind, FORMS)
        raise Usage(
            f"--param {name}: there is no {kind!r}{hint or '.'} There are {', '.join(FORMS.values())}."
        )
    texts = [text for text in written["values"].split(",") if text]
    if kind in LISTS:
        if not texts:
            raise Usage(f"--param {name}: {kind} needs at least one value, as in {name}={FORMS[kind]}.")
        values = tuple(dict.fromkeys(map(_number, texts))) if kind == "grid" else map(_number, texts)
        return Param(name=name, kind=kind, values=tuple(values))  # type: ignore[arg-type]  # one of LISTS
    bounds = [_number(text) for text in texts]
    if len(bounds) != 2 or any(isinstance(bound, str) for bound in bounds):
        raise Usage(f"--param {name}: {kind} takes two numbers. Write it like {name}={FORMS[kind]}.")
    low, high = bounds
    assert not isinstance(low, str)
    assert not isinstance(high, str)
    if not low < high:
        raise Usage(f"--param {name}: {low:g} is not below {high:g}.")
    if kind == "loguniform" and low <= 0:
        raise Usage(f"--param {name}: loguniform begins above 0; uniform may begin at {low:g}.")
    if kind == "randint" and not (isinstance(low, int) and isinstance(high, int)):
        raise Usage(
            f"--param {name}: randint takes whole numbers. For others there is uniform({low:g},{high:g})."
        )
    return Param(name=name, kind=kind, values=(low, high))  # type: ignore[arg-type]  # one of FORMS


def _meant(word: str) -> str:
    """Return the sentence on how a param is typed: values alone are a list, and a form has brackets."""
    name, equals, values = word.replace(" ", "").partition("=")
    if not (equals and values and re.fullmatch(r"[\w-]+", name, re.ASCII)):
        return f"Write it like lr={FORMS['loguniform']}, in quotes."
    kind = re.match(r"[a-z]*", values)[0]  # type: ignore[index]  # it matches the empty text, too
    form = FORMS.get(kind) or FORMS.get(next(iter(nearest(kind, FORMS, limit=1, cutoff=0.7)), ""))
    if form is not None:
        return f"Write it like this: --param {shlex.quote(f'{name}={form}')}"
    listed = [text for text in values.strip("[](){}").split(",") if text]
    if not listed or set("()") & set("".join(listed)):
        return f"Write it like {name}={FORMS['loguniform']}, in quotes."
    return f"A list is: {shlex.join(Param(name=name, kind='grid', values=tuple(listed)).words)}"


def _number(text: str) -> float | int | str:
    """A number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
