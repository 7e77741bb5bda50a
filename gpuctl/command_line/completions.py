"""Values that the shell offers: names of clusters, runs, nodes, providers, shapes.

A person waits for it with a finger on the key: only what is on this computer is looked at, and nothing is imported
before it is needed. What can't be read offers nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NAMED = 100
"""Of the latest runs, as many are offered by name."""
Offer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _offer(known: Callable[[click.Context], Iterable[tuple[str, str]]]) -> Offer:
    """Return the function that click calls for completions. `known`: the values, each with a description or none."""

    def begin_so(
        context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from inventories.errors import InventoryError

        with suppress(InventoryError, OSError):
            return [
                CompletionItem(value, help=about or None)
                for value, about in known(context)
                if value.startswith(incomplete)
            ]
        return []

    return begin_so


@_offer
def clusters(_context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the names of all clusters."""
    from inventories.disk.store import Store

    for folder in Store.default().clusters():
        yield folder.name, ""


@_offer
def runs(_context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the runs of all clusters, the latest first, and the names of the latest: there may be thousands."""
    import json

    from inventories.disk.store import Store

    for at, folder in enumerate(reversed(Store.default().runs())):
        yield folder.id, ""
        if at < NAMED:
            with suppress(OSError, ValueError, LookupError, TypeError):
                if name := json.loads(folder.run_path.read_bytes())["options"]["name"]:
                    yield name, folder.id


@_offer
def nodes(context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the names of the cluster's machines."""
    from inventories.disk.store import Store
    from inventories.specs.job_file import cluster_of, find

    job = find()
    name = _value_of(context, "cluster") or (cluster_of(job) if job else None) or "default"
    for machine in Store.default().cluster(name).load().machines:
        yield machine.name, f"rank {machine.rank}"


@_offer
def tasks(_context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the tasks that the nearest fabfile defines. The file is read, and not run."""
    import ast
    from pathlib import Path

    current = Path.cwd()
    for folder in (current, *current.parents):
        for path in (folder / "fabfile.py", folder / "fabfile" / "__init__.py"):
            if path.is_file():
                with suppress(SyntaxError, ValueError):
                    for node in ast.parse(path.read_bytes()).body:
                        if isinstance(node, ast.FunctionDef) and any(map(_is_task, node.decorator_list)):
                            about = (ast.get_docstring(node) or "").partition("\n")[0]
                            yield node.name.strip("_").replace("_", "-"), about
                return


def _is_task(decorator: Any) -> bool:  # noqa: ANN401 - a node of the syntax tree, whose module is imported late
    """Return whether a decorator is `@task`, `@task(…)` or `@fabric.task`."""
    named = getattr(decorator, "func", decorator)
    return "task" in (getattr(named, "id", None), getattr(named, "attr", None))


@_offer
def providers(_context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the providers of this build."""
    from provision.clouds import about, names

    for name in names():
        yield name, about(name)


@_offer
def clouds(_context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the providers that rent machines."""
    from provision.clouds import RENTED, about

    for name in RENTED:
        yield name, about(name)


@_offer
def shapes(context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the known shapes, or only the shapes of the provider on the line."""
    from provision.pricing.catalog import SHAPES

    for shape in SHAPES.values():
        if _value_of(context, "provider") in (None, shape.provider):
            yield shape.name, f"{shape.gpus} x {shape.gpu}"


def _value_of(context: click.Context | None, option: str) -> Any:  # noqa: ANN401 - as the option has it
    """Return the value of an option on the line, after the command's name or before it. None: not typed."""
    while context is not None:
        if context.params.get(option):
            return context.params[option]
        context = context.parent
    return None
