"""The training loss."""

from torch import Tensor
from torch.nn.functional import cross_entropy

NOT_COUNTED = -100
"""The label of a sample that adds nothing to the loss."""


def mean_loss(
    logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, labels_in_all: int | None = None
) -> Tensor:
    """Return the mean loss of logits [b, classes] for labels [b], or of [b, n, classes] for [b, n].

    `labels_in_all`: the labels of the whole batch; with it, returns these labels' share of the batch's mean.
    """
    loss = cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=NOT_COUNTED,
        reduction="mean" if labels_in_all is None else "sum",
        label_smoothing=label_smoothing,
    )
    return loss if labels_in_all is None else loss / labels_in_all
