"""The known shapes that a user means: by a shape's name, its beginning, or a GPU's name."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuctl.errors import Usage
from inventories.text import nearest, plural
from provision.clouds import Shape
from provision.pricing.catalog import SHAPES, provider_by_name

MOST_PROPOSED = 6


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of a search for shapes."""

    names: frozenset[str]
    """Of shapes."""
    notes: tuple[str, ...] = ()
    """Notes for the user, a sentence each."""
    exact: bool = False
    """Whether every word was the whole name of a shape."""


def find(words: Sequence[str]) -> Found:
    """Return the shapes that the words mean, all together. Raises Usage for a word that is like no shape."""
    results = [_by_word(word) for word in words]
    return Found(
        names=frozenset().union(*(result.names for result in results)),
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
        exact=all(result.exact for result in results),
    )


def written(name: str) -> str:
    """Return a shape's name as its cloud writes it: for known shapes, case does not count."""
    folded = name.strip().casefold()
    return next((shape for shape in ("local", *SHAPES) if shape.casefold() == folded), name)


def proposals(word: str, provider: str | None) -> str:
    """Return a sentence on shapes like `word`, which names no shape. `provider`: its shapes come first.

    Empty: no shape and no GPU is like it.
    """
    try:
        names = find([word]).names
    except Usage:
        return ""
    gpu = next((gpu for gpu in known_gpus() if gpu.casefold() == word.partition(":")[0].casefold()), None)
    similar = [shape for shape in SHAPES.values() if shape.name in names]
    shapes = [shape for shape in similar if gpu in (None, shape.gpu)]
    if not shapes:  # as A10:8, which only its relative A10G has
        gpu, shapes = None, similar
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
    """Return the shapes of a word as `_by_name`; of `A10:2` the shapes with two GPUs a machine."""
    name, colon, count = word.strip().rpartition(":")
    if not colon or not count.isdecimal():
        return _by_name(word)
    result = _by_name(name)
    shapes = [SHAPES[shape] for shape in result.names]
    fitting = frozenset(shape.name for shape in shapes if shape.gpus == int(count))
    if not fitting:
        raise Usage(nothing(shapes, int(count)))
    several = len({SHAPES[shape].gpu for shape in fitting}) > 1
    return Found(names=fitting, notes=result.notes if several else ())


def _by_name(word: str) -> Found:
    """Return the shape of that name; else the shapes of that GPU; else shapes whose names hold it.

    Names that begin so come before names that hold it elsewhere.
    """
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


def by_gpu(gpu: str) -> Found:
    """Return the shapes with the GPU of that name, in any case, and with its relatives.

    The A10G is listed with the A10. Without a GPU of that name, GPUs that begin so. Raises Usage for an unknown name.
    """
    known = known_gpus()
    folded = gpu.strip().casefold()
    exact = [gpu for gpu in known if gpu.casefold() == folded]
    begin = [gpu for gpu in known if folded and gpu.casefold().startswith(folded)]
    if not begin:
        near = nearest(gpu, known, limit=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise Usage(f"No shape has a GPU called {gpu!r}{hint} Known are {', '.join(known)}.")
    if not exact:
        return Found(
            names=with_gpus(begin), notes=(f"No GPU is called {gpu}; shown are {', '.join(begin)}.",)
        )
    # A letter makes a variant, a digit another GPU: A10 and A10G, but not A100.
    relatives = [gpu for gpu in begin if gpu[len(folded) :][:1].isalpha()]
    notes = []
    for relative in relatives:
        providers = sorted({shape.provider.upper() for shape in SHAPES.values() if shape.gpu == relative})
        notes.append(
            f"{relative} is another GPU than {exact[0]}, {' and '.join(providers)}'s; its shapes are listed, too."
        )
    return Found(names=with_gpus([*exact, *relatives]), notes=tuple(notes))


def with_gpus(gpus: Sequence[str]) -> frozenset[str]:
    """Names of the shapes that have one of these GPUs."""
    return frozenset(name for name, shape in SHAPES.items() if shape.gpu in gpus)


def known_gpus() -> list[str]:
    """The names of all GPUs."""
    return sorted({shape.gpu for shape in SHAPES.values()})


def nothing(shapes: Sequence[Shape], gpus: int | None) -> str:
    """Return the sentence on an empty search. `shapes`: the shapes before the numbers were compared."""
    counts = sorted({shape.gpus for shape in shapes})
    if gpus is not None and counts and gpus not in counts:
        *some, last = map(str, counts)
        existing = f"{', '.join(some)} or {last}" if some else last
        return f"None of these shapes has {gpus} GPUs a machine: they have {existing}."
    return "No shape that gpuctl knows is like that."
