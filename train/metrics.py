"""What an epoch's samples come to over all ranks: the mean loss, and metrics of torchmetrics by their names.

To import this module imports nothing of torchmetrics, which brings its metrics of sound, text and pictures along and
takes seconds; a manager does once it has a metric to compute, so that the first step is not kept waiting.
"""

import difflib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor

from train.errors import BadEnvironment, BadOptions
from train.vision import torchvision

SETTINGS: dict[str, tuple[str, dict[str, object]]] = {
    "accuracy": ("accuracy", {"average": "micro"}),
    "top5": ("accuracy", {"average": "micro", "top_k": 5}),
    "f1": ("f1_score", {"average": "macro"}),
    "eer": ("eer", {"average": "macro"}),
    "logauc": ("logauc", {"average": "macro"}),
}
"""Names that stand for a metric with other settings than torchmetrics' own."""

SURE_FROM = {"accuracy": 2, "f1": 2, "top5": 5}
"""Names that are known to come to one number, without a look at torchmetrics: from how many classes on."""

HELD_NUMBERS = 2**24
"""Numbers in logits that wait to be counted: 64 MiB of them."""

State = Mapping[str, Tensor | list[Tensor]]
"""What torchmetrics remembers of the samples that a metric has seen, by names of its own."""


class Seen(TypedDict):
    """What some samples come to, in plain data."""

    loss_sum: float
    samples: int
    states: dict[str, State]
    """Of each metric, by its name."""


@dataclass(frozen=True, kw_only=True)
class _Metric:
    """One of torchmetrics, with what it wants to be given."""

    name: str
    metric: Any
    of_probabilities: bool
    """Of probabilities, not logits. torchmetrics would guess which it has, for each batch anew."""


class MetricsManager:
    """The loss and the metrics of one kind of samples: those that are trained on, validation's, or test's.

    Every rank has one, tells it all of its samples once, and computes when the others do. How many samples a rank
    has, even none, and how they come in batches makes no difference to the numbers.
    """

    def __init__(self, names: Sequence[str], classes: int, device: torch.device, *, samples: int = 0) -> None:
        """`names`: those in `SETTINGS`, and those of torchmetrics' `multiclass_` metrics without that beginning.

        `loss` may be named; it is always there. `samples`: about how many this rank tells before it computes. Raises
        BadOptions for a name that is unknown or does not come to one number, and BadEnvironment where torchmetrics is
        not installed.
        """
        self._device = device
        self._classes = classes
        self._names = [name for name in names if name != "loss"]
        if self._names and find_spec("torchmetrics") is None:
            raise _lacking("torchmetrics")
        sure = all(classes >= SURE_FROM.get(name, math.inf) for name in self._names)
        # What has to be counted between two steps is imported before the first one.
        if not sure or samples * classes >= HELD_NUMBERS:
            self._metrics  # noqa: B018 - to build them
        self._loss_sum: Tensor
        self._samples: int
        self._logits: list[Tensor]
        self._labels: list[Tensor]
        self._held: int
        self._earlier: list[Seen]
        self._start_over()

    @cached_property
    def _metrics(self) -> list[_Metric]:
        """Raises as `__init__` does."""
        with torch.inference_mode(mode=False):
            return [_build(name, self._classes, self._device) for name in self._names]

    @torch.inference_mode()
    def update(self, logits: Tensor, labels: Tensor, loss_sum: Tensor) -> None:
        """Take a batch: logits [b, classes], labels [b], and the sum (not the mean) of the samples' losses.

        All are copied, so that the caller may reuse them. Nothing is said to other ranks. The device is not waited
        for, except where `HELD_NUMBERS` are together and have to be counted.
        """
        self._loss_sum = self._loss_sum + loss_sum
        self._samples += len(labels)
        if not self._names:
            return
        # Half precision would tie probabilities that differ.
        wide = torch.promote_types(logits.dtype, torch.float32)
        self._logits.append(logits.to(wide, copy=True))
        self._labels.append(labels.clone())
        self._held += logits.numel()
        if self._held >= HELD_NUMBERS:
            self._count()

    @torch.inference_mode()
    def compute(self) -> dict[str, float]:
        """`loss`, the mean over the samples of all ranks, and each metric under its name; then start over.

        Every rank has to call it, and gets the same numbers to the last bit. Waits for the device, and for the other
        ranks in one exchange. With no sample at all, every number is NaN.
        """
        parts = _of_all_ranks(self.seen())
        samples = sum(part["samples"] for part in parts)
        numbers = {"loss": sum(part["loss_sum"] for part in parts) / samples if samples else math.nan}
        for one in self._metrics:
            known = bool(parts) and all(one.name in part["states"] for part in parts)
            states = (_moved(part["states"][one.name], self._device) for part in parts)
            numbers[one.name] = _number(one.metric, states) if known else math.nan
            one.metric.reset()
        self._start_over()
        return numbers

    @torch.inference_mode()
    def seen(self) -> list[Seen]:
        """What this rank was told since it last computed, on the CPU, for `take_over`. Waits for the device."""
        if not self._samples:
            return list(self._earlier)
        self._count()
        cpu = torch.device("cpu")
        own = Seen(
            loss_sum=float(self._loss_sum),
            samples=self._samples,
            states={one.name: _moved(one.metric.metric_state, cpu) for one in self._metrics},
        )
        return [*self._earlier, own]

    def take_over(self, seen: Sequence[Seen]) -> None:
        """Count in what other managers have seen, of any ranks. Each part is taken over by one rank alone.

        A metric that one of them did not have can't be known, and will be NaN.
        """
        self._earlier = list(seen)

    def _start_over(self) -> None:
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        self._samples = 0
        self._logits, self._labels, self._held = [], [], 0
        self._earlier = []

    def _count(self) -> None:
        """Let torchmetrics see what is held. It waits for the device, which is why it does not see each batch."""
        if not self._held:
            return
        logits, labels = torch.cat(self._logits), torch.cat(self._labels)
        probabilities = logits.softmax(1) if any(one.of_probabilities for one in self._metrics) else logits
        for one in self._metrics:
            one.metric.update(probabilities if one.of_probabilities else logits, labels)
        self._logits, self._labels, self._held = [], [], 0


def _of_all_ranks(seen: list[Seen]) -> list[Seen]:
    """What all ranks have seen, in the order of the ranks; with one rank, its own."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return seen
    parts = [seen] * dist.get_world_size()
    dist.all_gather_object(parts, seen)
    return [part for of_rank in parts for part in of_rank]


def _moved(state: State, device: torch.device) -> State:
    """The state on a device; lists are new ones, which stay when the metric starts over."""
    return {
        name: value.to(device) if isinstance(value, Tensor) else [one.to(device) for one in value]
        for name, value in state.items()
    }


def _number(metric: Any, states: Iterable[State]) -> float:  # noqa: ANN401 - torchmetrics has no types
    """What the metric comes to for the samples of all those states, which replace its own."""
    metric.reset()
    for state in states:
        metric.merge_state(state)
    # The instance's own `compute` would warn that it has seen no sample itself.
    return float(type(metric).compute(metric))


def _build(name: str, classes: int, device: torch.device) -> _Metric:
    """Raises BadOptions, before anything is trained, for a metric that would not come to a number."""
    library = _torchmetrics()
    plain, settings = SETTINGS.get(name, (name, {}))
    kind = _kinds(library).get(plain)
    if kind is None:
        near = difflib.get_close_matches(name, _choices(library), n=1, cutoff=0.5)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise BadOptions(f"There is no metric {name}. {meant}{_all(library)}")
    try:
        trial = kind(num_classes=classes, sync_on_compute=False, **settings)
    except TypeError as error:
        raise BadOptions(
            f"The metric {name} has to be told more than can be said in its name. {_all(library)}"
        ) from error
    except ValueError as error:
        raise BadOptions(f"The metric {name} does not fit {classes} classes ({error}).") from error
    if not _is_one_number(trial, classes):
        raise BadOptions(f"The metric {name} is more than one number. {_all(library)}")
    return _Metric(
        name=name,
        # To look at each batch for labels out of range would be to wait for the device.
        metric=kind(num_classes=classes, sync_on_compute=False, validate_args=False, **settings).to(device),
        of_probabilities=not issubclass(
            kind, (library.MulticlassStatScores, library.MulticlassConfusionMatrix)
        ),
    )


def _is_one_number(metric: Any, classes: int) -> bool:  # noqa: ANN401
    """Found out by a sample of each class."""
    metric.update(torch.eye(classes), torch.arange(classes))
    value = metric.compute()
    return isinstance(value, Tensor) and value.numel() == 1


def _kinds(library: Any) -> dict[str, Any]:  # noqa: ANN401
    """torchmetrics' classes for several classes of samples, by the names of its functions without `multiclass_`."""
    from torchmetrics.functional import classification as functions

    prefix = "multiclass_"
    names = [name.removeprefix(prefix) for name in functions.__all__ if name.startswith(prefix)]
    classes = {name.lower(): getattr(library, name) for name in library.__all__}
    # multiclass_matthews_corrcoef is MulticlassMatthewsCorrCoef.
    keys = {name: "multiclass" + name.replace("_", "") for name in names}
    return {name: classes[key] for name, key in keys.items() if key in classes}


def _choices(library: Any) -> list[str]:  # noqa: ANN401
    """Every name that can be given, whatever the number of classes."""
    kinds = _kinds(library)
    found = {name for name, (plain, _) in SETTINGS.items() if plain in kinds}
    for name, kind in kinds.items():
        settings = SETTINGS.get(name, (name, {}))[1]
        try:
            metric = kind(num_classes=2, **settings)
        except TypeError:
            continue
        if _is_one_number(metric, 2):
            found.add(name)
    return sorted(found)


def _all(library: Any) -> str:  # noqa: ANN401
    return f"Those that can be named: {', '.join(_choices(library))}."


def _torchmetrics() -> Any:  # noqa: ANN401
    """`torchmetrics.classification`. Raises BadEnvironment where it can't be imported."""
    if find_spec("torchvision") is not None:
        torchvision()  # torchmetrics imports it where it is installed, and fails where that fails
    try:
        from torchmetrics import classification
    except ModuleNotFoundError as error:
        raise _lacking(error.name) from error
    return classification


def _lacking(package: str | None) -> BadEnvironment:
    return BadEnvironment(
        f"{sys.executable} has no package {package}, which metrics need. Install it: {sys.executable} -m pip "
        "install torchmetrics; or train with --metrics loss."
    )
