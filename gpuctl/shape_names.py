"""Which of the known shapes a person means: by a shape's name, or its beginning, or by a GPU's name."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuctl.errors import Usage
from inventories.text import nearest, plural
from provision.clouds import Shape
from provision.pricing.catalog import SHAPES, provider_by_name

MOST_PROPOSED = 6


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found."""

    names: frozenset[str]
    """Of shapes."""
    notes: tuple[str, ...] = ()
    """What a person should know of it, a sentence each."""
    exact: bool = False
    """Whether every word was the whole name of a shape."""


def find(words: Sequence[str]) -> Found:
    """The shapes that the words mean, all together. Raises Usage for a word that is like none of them."""
    found = [_by_word(word) for word in words]
    return Found(
        names=frozenset().union(*(one.names for one in found)),
        notes=tuple(dict.fromkeys(note for one in found for note in one.notes)),
        exact=all(one.exact for one in found),
    )


def written(name: str) -> str:
    """A shape's name as its cloud writes it: case does not count for those that are known."""
    folded = name.strip().casefold()
    return next((shape for shape in ("local", *SHAPES) if shape.casefold() == folded), name)


def proposals(word: str, provider: str | None) -> str:
    """What `word` may mean, which is no shape's name, in a sentence. `provider`: whose are to be named first.

    Empty where it is like no shape and no GPU.
    """
    try:
        names = find([word]).names
    except Usage:
        return ""
    gpu = next((gpu for gpu in known_gpus() if gpu.casefold() == word.partition(":")[0].casefold()), None)
    shapes = [shape for shape in SHAPES.values() if shape.name in names and gpu in (None, shape.gpu)]
    shapes = [shape for shape in shapes if shape.provider == provider] or shapes
    some = ", ".join(
        f"{shape.name} ({plural(shape.gpus, 'GPU')})" if gpu else f"{shape.name} ({shape.gpus} x {shape.gpu})"
        for shape in shapes[:MOST_PROPOSED]
    )
    more = f", …; `gpuctl shapes {word}` lists all" if len(shapes) > MOST_PROPOSED else ""
    return (
        f"{gpu} is a GPU. Name a shape that has it, as in --shape {shapes[0].name}: {some}{more}."
        if gpu
        else f"No provider has a shape '{word}'. Like it: {some}{more}."
    )


def _by_word(word: str) -> Found:
    """As `_by_name`, of `A10:2` those with two GPUs a machine."""
    name, colon, count = word.strip().rpartition(":")
    if not colon or not count.isdecimal():
        return _by_name(word)
    found = _by_name(name)
    shapes = [SHAPES[one] for one in found.names]
    fitting = frozenset(shape.name for shape in shapes if shape.gpus == int(count))
    if not fitting:
        raise Usage(nothing(shapes, int(count)))
    several = len({SHAPES[one].gpu for one in fitting}) > 1
    return Found(names=fitting, notes=found.notes if several else ())


def _by_name(word: str) -> Found:
    """The shape of that name; else the shapes of a GPU; else those whose names begin so, or have it in them."""
    folded = word.strip().casefold()
    if not folded:
        raise Usage("A shape's name can't be empty. `gpuctl shapes` lists all.")
    whole = [name for name in SHAPES if name.casefold() == folded]
    if whole:
        return Found(names=frozenset(whole), exact=True)
    if any(shape.gpu.casefold() == folded for shape in SHAPES.values()):
        return by_gpu(word)
    begin = [name for name in SHAPES if name.casefold().startswith(folded)]
    names = begin or [name for name in SHAPES if folded in name.casefold()]
    if names:
        return Found(names=frozenset(names))
    near = nearest(word, [*SHAPES, *known_gpus()])
    hint = f" The nearest are {', '.join(near)}." if near else ""
    provider = provider_by_name(word)
    if provider is not None:
        raise Usage(
            f"gpuctl knows no shape {word!r}.{hint} {provider.upper()} may have it all the same: "
            f"gpuctl up --shape {word} --dry-run"
        )
    raise Usage(f"No shape and no GPU is called {word!r}.{hint} `gpuctl shapes` lists all.")


def by_gpu(wanted: str) -> Found:
    """The shapes with the GPU of that name, in any case, and with its relatives: the A10G is listed with the A10.

    Where there is none of that name, those whose names begin so. Raises Usage for a name that no GPU has.
    """
    known = known_gpus()
    folded = wanted.strip().casefold()
    exact = [gpu for gpu in known if gpu.casefold() == folded]
    begin = [gpu for gpu in known if folded and gpu.casefold().startswith(folded)]
    if not begin:
        near = nearest(wanted, known, limit=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise Usage(f"No shape has a GPU called {wanted!r}{hint} Known are {', '.join(known)}.")
    if not exact:
        return Found(
            names=with_gpus(begin), notes=(f"No GPU is called {wanted}; shown are {', '.join(begin)}.",)
        )
    # A letter makes a variant, a digit another GPU: A10 and A10G, but not A100.
    relatives = [gpu for gpu in begin if gpu[len(folded) :][:1].isalpha()]
    return Found(
        names=with_gpus([*exact, *relatives]), notes=tuple(_note(one, exact[0]) for one in relatives)
    )


def _note(relative: str, gpu: str) -> str:
    providers = sorted({shape.provider.upper() for shape in SHAPES.values() if shape.gpu == relative})
    return f"{relative} is another GPU than {gpu}, {' and '.join(providers)}'s; its shapes are listed, too."


def with_gpus(gpus: Sequence[str]) -> frozenset[str]:
    """Names of the shapes that have one of these GPUs."""
    return frozenset(name for name, shape in SHAPES.items() if shape.gpu in gpus)


def known_gpus() -> list[str]:
    """The names of all GPUs."""
    return sorted({shape.gpu for shape in SHAPES.values()})


def nothing(shapes: Sequence[Shape], gpus: int | None) -> str:
    """The sentence where a search left nothing. `shapes`: what it had found before the numbers were looked at."""
    counts = sorted({shape.gpus for shape in shapes})
    if gpus is not None and counts and gpus not in counts:
        *some, last = map(str, counts)
        there = f"{', '.join(some)} or {last}" if some else last
        return f"None of these shapes has {gpus} GPUs a machine: they have {there}."
    return "No shape that gpuctl knows is like that."
