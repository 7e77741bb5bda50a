"""Text for people: values, counts, sizes, money, lists, and the nearest of the allowed words."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Foreign:
    """A value with a tag that isn't ours to understand, such as Ansible's `!vault`."""

    tag: str


def shown(value: object) -> str:
    """Return a value in one line, for a message: shortened."""
    import json  # only messages need it, not the options of a command

    if isinstance(value, Foreign):
        return f"a value with the tag {value.tag}"
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=shown)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(word: str, choices: Iterable[str], *, limit: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the choices most like `word`, best first, then in their own order; case does not count.

    `cutoff` is the least likeness, 0 .. 1. At most `limit` choices; an empty list without a similar one.
    """
    folded = word.casefold()
    matcher = difflib.SequenceMatcher(b=folded)
    scored: list[tuple[float, str]] = []
    for choice in dict.fromkeys(choices):
        matcher.set_seq1(choice.casefold())
        scored.append((matcher.ratio(), choice))
    scored.sort(key=lambda item: -item[0])
    return [choice for likeness, choice in scored if likeness >= cutoff][:limit]


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'shape'?` to end a clause with, or an empty text."""
    close = nearest(word, choices, limit=1, cutoff=0.7)
    return f"; did you mean '{close[0]}'?" if close else ""


def human_bytes(count: float) -> str:
    """A size for people: 12 B, 3.4 kB, 5.6 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def dollars(usd: float) -> str:
    """`$1,234.50`; of less than ten cents, two figures: `$0.0042`."""
    if usd == 0 or usd >= 0.0995:
        return f"${usd:,.2f}"
    return f"${usd:.2g}" if usd >= 0.0001 else "< $0.0001"


def plural(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `2 processes`."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def joined(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def first_of(words: Sequence[str], limit: int) -> str:
    """`a, b and 3 more`: the first words, and the number of the others."""
    more = len(words) - limit
    return ", ".join(words[:limit]) + (f" and {more} more" if more > 0 else "")


def listed(words: list[str], limit: int = 4) -> str:
    """`a, b and c`, shortened: `a, b, c and 13 more`."""
    if len(words) > limit:
        return f"{', '.join(words[: limit - 1])} and {len(words) - limit + 1} more"
    return joined(words)
