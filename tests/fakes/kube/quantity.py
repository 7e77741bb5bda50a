"""Quantities of Kubernetes: `500m`, `16Gi`."""

from fractions import Fraction
from math import ceil

UNITS = {"m": Fraction(1, 1000)}
UNITS |= {unit: Fraction(1000) ** (power + 1) for power, unit in enumerate("kMGTPE")}
UNITS |= {f"{unit}i": Fraction(1024) ** (power + 1) for power, unit in enumerate("KMGTPE")}


def quantity(text: str | int) -> Fraction:
    """Parse a quantity. Raises ValueError."""
    words = str(text)
    unit = next((item for item in sorted(UNITS, key=len, reverse=True) if words.endswith(item)), "")
    return Fraction(words.removesuffix(unit)) * (UNITS[unit] if unit else 1)


def whole(text: str | int) -> int:
    """Convert a quantity to a whole number, rounded up, as Kubernetes does."""
    return ceil(quantity(text))
