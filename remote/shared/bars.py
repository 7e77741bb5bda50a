"""Bars of text, the same on both sides."""

import math
from typing import Sequence

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Return a bar a value, from the lowest to the highest; a blank for a value that is no number."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high - low) / (len(BARS) - 1) or 1.0
    return "".join(BARS[round((value - low) / step)] if math.isfinite(value) else " " for value in values)
