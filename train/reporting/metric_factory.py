"""Build metrics from their names: torchmetrics' metrics, and the accuracy."""

import difflib
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from train.errors import BadEnvironment, BadOptions
from train.torchvision_import import import_torchvision

SETTINGS: dict[str, tuple[str, dict[str, object]]] = {
    "accuracy": ("accuracy", {"average": "micro"}),
    "top5": ("accuracy", {"average": "micro", "top_k": 5}),
    "f1": ("f1_score", {"average": "macro"}),
    "eer": ("eer", {"average": "macro"}),
    "logauc": ("logauc", {"average": "macro"}),
}
"""Metrics whose settings differ from torchmetrics' own, by name."""

CHECKED_FROM = {"accuracy": 2, "f1": 2, "top5": 5}
"""Minimum classes of metrics that are known to be a single number."""


BUILT_IN = "accuracy"
"""The default metric. Only other metrics need torchmetrics, which takes seconds to import."""


class Accuracy:
    """Count the samples whose largest logit is that of their label, with the methods of a torchmetrics metric."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        self._right = torch.zeros((), dtype=torch.int64, device=self._device)
        self._samples = torch.zeros((), dtype=torch.int64, device=self._device)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: logits [b, classes], labels [b]."""
        self._right = self._right + (logits.argmax(1) == labels).sum()
        self._samples = self._samples + len(labels)

    @property
    def metric_state(self) -> dict[str, Tensor]:
        """The sums, for `merge_state`."""
        return {"right": self._right, "samples": self._samples}

    def merge_state(self, state: dict[str, Tensor]) -> None:
        """Add the sums of another instance."""
        self._right = self._right + state["right"]
        self._samples = self._samples + state["samples"]

    def compute(self) -> float:
        """Return the fraction, 0 .. 1; NaN without a sample."""
        return float(self._right / self._samples)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric and its input."""

    name: str
    metric: Any
    of_probabilities: bool
    """Whether the metric takes probabilities, not logits. torchmetrics would guess for each batch."""


def build_metric(name: str, classes: int, device: torch.device) -> Metric:
    """Build a metric. Raises BadOptions, before training, for a metric that is not a single number."""
    if name == BUILT_IN and classes >= CHECKED_FROM[name]:
        return Metric(name=name, metric=Accuracy(device), of_probabilities=False)
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
        raise BadOptions(f"The metric {name} needs more than a name. {_all(library)}") from error
    except ValueError as error:
        raise BadOptions(f"The metric {name} does not fit {classes} classes ({error}).") from error
    if not _is_one_number(trial, classes):
        raise BadOptions(f"The metric {name} is more than one number. {_all(library)}")
    return Metric(
        name=name,
        # Validating each batch's labels would wait for the device.
        metric=kind(num_classes=classes, sync_on_compute=False, validate_args=False, **settings).to(device),
        of_probabilities=not issubclass(
            kind, (library.MulticlassStatScores, library.MulticlassConfusionMatrix)
        ),
    )


def _is_one_number(metric: Any, classes: int) -> bool:  # noqa: ANN401
    """Try the metric on a sample of each class."""
    metric.update(torch.eye(classes), torch.arange(classes))
    value = metric.compute()
    return isinstance(value, Tensor) and value.numel() == 1


def _kinds(library: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return torchmetrics' multiclass metrics, by the names of its functions without `multiclass_`."""
    from torchmetrics.functional import classification as functions

    prefix = "multiclass_"
    names = [name.removeprefix(prefix) for name in functions.__all__ if name.startswith(prefix)]
    classes = {name.lower(): getattr(library, name) for name in library.__all__}
    # multiclass_matthews_corrcoef is MulticlassMatthewsCorrCoef.
    keys = {name: "multiclass" + name.replace("_", "") for name in names}
    return {name: classes[key] for name, key in keys.items() if key in classes}


def _choices(library: Any) -> list[str]:  # noqa: ANN401
    """Return every name that works for some number of classes."""
    kinds = _kinds(library)
    names = {name for name, (plain, _) in SETTINGS.items() if plain in kinds}
    for name, kind in kinds.items():
        settings = SETTINGS.get(name, (name, {}))[1]
        try:
            metric = kind(num_classes=2, **settings)
        except TypeError:
            continue
        if _is_one_number(metric, 2):
            names.add(name)
    return sorted(names)


def _all(library: Any) -> str:  # noqa: ANN401
    return f"Metrics that can be named: {', '.join(_choices(library))}."


def _torchmetrics() -> Any:  # noqa: ANN401
    """Import `torchmetrics.classification`. Raises BadEnvironment where it can't be imported."""
    if find_spec("torchvision") is not None:
        import_torchvision()  # if installed, torchmetrics imports it, and fails where that import fails
    try:
        from torchmetrics import classification
    except ModuleNotFoundError as error:
        raise missing_package(error.name) from error
    return classification


def missing_package(package: str | None) -> BadEnvironment:
    """Return the error for a missing package of the metrics."""
    return BadEnvironment(
        f"{sys.executable} has no package {package}, which metrics need. Install it: {sys.executable} -m pip "
        "install torchmetrics; or train with --metrics accuracy."
    )
