"""Epoch, step and training loss in a line of a script's log, as scripts and libraries usually print them.

The same on both sides: tables, and the notices of a node.

All are guesses. Any program may have written the line: nothing here raises on its content.
"""

import re
from typing import NamedTuple, Optional, Tuple

LINE_LENGTH = 1000
"""Characters of a line that are read."""
HELD_OUT = re.compile(r"val|eval|test|dev", re.IGNORECASE)
"""In names of losses on other data than the training's."""
_OF_HELD_OUT = re.compile(r"(?:^|[:\])])\s*(?:val|eval|test)", re.IGNORECASE)
"""In what comes before the loss or the step: the line is about held-out data."""

_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf)(?![\w%])"
_LOSS = re.compile(
    r"(?<![a-z])((?:[a-z]{1,20}[ _/.-])?)loss(?: is)?[\"'\])]{0,2}[ \t]*[:=|]?[ \t]*(?:tensor\(|['\"])?"
    + _NUMBER,
    re.IGNORECASE,
)
_TOTAL = r"(?:[ \t]{0,2}(?:/|of)[ \t]{0,2}(\d{1,12})(?![\w.]))?"
_EPOCH = re.compile(r"\bepoch\W{0,4}(\d{1,9})" + _TOTAL, re.IGNORECASE)
_STEP = re.compile(
    r"(?:\b|\b(?:global|train)_)(?:step|iter|iteration|batch)\W{0,4}(\d{1,12})" + _TOTAL, re.IGNORECASE
)
_IN_EPOCH = re.compile(
    r"\bepoch\W{0,4}\d{1,9}\]?[ \t]{0,2}\[[ \t]{0,9}(\d{1,12})/(\d{1,12})\]", re.IGNORECASE
)
"""`Epoch: [1][ 10/500]`: steps of the epoch."""
_BAR = re.compile(r"^([^|]{0,100}?)[ \t]*\d{1,3}%\|[^|]{0,400}\|[ \t]*(\d{1,12})/(\d{1,12}) \[[\d:]+<")
"""A bar of tqdm: its name, its count, and its total."""
_OF_TRAINING = re.compile(r"epoch|train|step|iter|batch", re.IGNORECASE)


class LogLine(NamedTuple):
    """Values of a line. `None`: the line does not have it."""

    epoch: Optional[int] = None
    epochs: Optional[int] = None
    step: Optional[int] = None
    steps: Optional[int] = None
    """The total next to the step: of the epoch if the line has one, else of the run or of an epoch."""
    loss: Optional[float] = None

    @classmethod
    def of(cls, text: str) -> "LogLine":
        """Read a line."""
        text = text[:LINE_LENGTH]
        epoch = _EPOCH.search(text)
        step, steps = _step_in(text)
        return cls(
            epoch=_number(epoch and epoch[1]),
            epochs=_number(epoch and epoch[2]),
            step=step,
            steps=steps,
            loss=_loss_in(text),
        )


def _step_in(text: str) -> Tuple[Optional[int], Optional[int]]:
    """Return the training's step, and the total next to it. A bar with another name, such as `Map`, has none."""
    if match := _STEP.search(text) or _IN_EPOCH.search(text):
        if _OF_HELD_OUT.search(text[: match.start()]):
            return None, None
        return int(match[1]), _number(match[2])
    bar = _BAR.match(text)
    if bar is None or (bar[1].strip() and not _OF_TRAINING.search(bar[1])) or HELD_OUT.match(bar[1].strip()):
        return None, None
    return int(bar[2]), int(bar[3])


def _loss_in(text: str) -> Optional[float]:
    """Return the first loss in a line that is not of held-out data."""
    match = next((match for match in _LOSS.finditer(text) if not HELD_OUT.match(match[1])), None)
    if match is None:
        return None
    trained = match[1].lower().startswith("train")
    return float(match[2]) if trained or not _OF_HELD_OUT.search(text[: match.start()]) else None


def _number(digits: Optional[str]) -> Optional[int]:
    return int(digits) if digits else None
