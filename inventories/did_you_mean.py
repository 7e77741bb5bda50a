"""The nearest of the allowed words to what a person wrote."""

import difflib
from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str], *, limit: int = 3, cutoff: float = 0.6) -> list[str]:
    """The choices most like `word`, best first, then in their own order; case does not count.

    `cutoff` is the least likeness, 0 .. 1. At most `limit` choices; none where nothing is like it.
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
