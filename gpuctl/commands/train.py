"""`gpuctl train`: run a script, a module or the built-in job on the cluster."""

import os
from pathlib import Path
from typing import Literal

import click
from click.shell_completion import CompletionItem

from gpuctl.errors import Usage
from gpuctl.options import TAIL, App, ScriptCommand, common_options

OURS = frozenset({"--cluster", "--json", "--yes", "--verbose", "--nnodes", "--nproc-per-node", "--detach"})
"""Options that people put at the end, where they are the script's."""


@click.command(cls=ScriptCommand, context_settings=TAIL)
@common_options
@click.option(
    "--mode", type=click.Choice(["torchrun"]), default="torchrun", show_default=True, help="Launcher."
)
@click.option("--nnodes", type=int, metavar="N", help="Nodes that take part (default: all).")
@click.option(
    "--nproc-per-node",
    default="auto",
    metavar="auto|N",
    help="Processes a node (default: one a GPU, else one).",
)
@click.option(
    "--detach", is_flag=True, help="Return when the ranks have started; gpuctl logs -f finds the run."
)
@click.option(
    "--env",
    multiple=True,
    metavar="K=V",
    help="A variable for every rank; K alone: its value here. Repeatable.",
)
@click.option("--python", metavar="PATH", help="Interpreter on the nodes to use as it is.")
@click.option(
    "--pip",
    multiple=True,
    metavar="REQ",
    help="Build an environment of torch and this for the ranks. Repeatable.",
)
@click.option(
    "--requirements",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Install what this file lists (default: the project's uv.lock, requirements.txt or pyproject.toml).",
)
@click.option(
    "--wheels",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of wheels to install from, for nodes with no way out.",
)
@click.option("--skip-preflight", is_flag=True, help="Start even where the preflight would refuse.")
@click.option("--dry-run", is_flag=True, help="Print exactly what would be run and set on each node.")
@click.option("-m", "--module", metavar="MODULE", help="Run a module; what follows is the module's.")
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[SCRIPT] [ARGS]...",
    shell_complete=lambda _context, _parameter, incomplete: [CompletionItem(incomplete, type="file")],
)
def command(
    app: App,
    mode: Literal["torchrun"],
    nnodes: int | None,
    nproc_per_node: str,
    detach: bool,
    env: tuple[str, ...],
    python: str | None,
    pip: tuple[str, ...],
    requirements: Path | None,
    wheels: Path | None,
    skip_preflight: bool,
    dry_run: bool,
    module: str | None,
    words: tuple[str, ...],
) -> int:
    """Run a script, a module or the built-in job on the cluster.

    \b
    gpuctl train                               the built-in job: a small CNN on handwritten digits
    gpuctl train -- --model mlp --epochs 3     … with its own options (-- --help lists them)
    gpuctl train my.py --lr 0.1                your script; what follows it is the script's
    gpuctl train -m pkg.mod --lr 0.1           your module
    gpuctl train --nproc-per-node 2 my.py      two processes on each node

    The current folder is sent to the nodes: what git would track, or all but the usual clutter. A script gets
    torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, ...) and GPUCTL_RUN_ID, GPUCTL_RUN_DIR (what it writes
    to artifacts/ there comes back) and GPUCTL_METRICS (a file for JSON lines such as
    {"step": 10, "loss": 0.4, "samples": 640}). Nothing of gpuctl has to be imported.

    What the project's uv.lock, requirements.txt or pyproject.toml lists is installed by uv into an environment on
    the nodes, once; with --python, or an interpreter in the inventory, that is used as it is.

    Ctrl-C stops the run on every node; a second one leaves it to itself.
    """
    from gpuctl.workflow import dry_run as dry
    from gpuctl.workflow.train import TrainRequest, built_in_help, train

    request = TrainRequest(
        mode=mode,
        nnodes=nnodes,
        nproc_per_node=_nproc(nproc_per_node),
        detach=detach,
        env=dict(_variable(word) for word in env),
        python=python,
        pip=pip,
        requirements=requirements,
        wheels=wheels,
        skip_preflight=skip_preflight,
        module=module,
        words=words,
    )
    if request.built_in and {"-h", "--help"} & set(words):
        return built_in_help()
    if taken := OURS & set(words if module else words[1:]):
        # Many a script passes over what it doesn't know, and would run to its end on another cluster.
        app.output.say(
            f"note: {' '.join(sorted(taken))} after the script is the script's; gpuctl's own go before it"
        )
    if dry_run:
        document = dry.train(app, request)
        if app.options.json:
            app.output.json(document)
        return 0
    result, interrupted = train(app, request)
    if app.options.json:
        app.output.json(result)
    elif result.status == "running":
        app.output.say(f"run {result.run} goes on; gpuctl logs -f {result.run} follows it")
    else:
        from gpuctl.tables import run_table

        app.output.table(run_table(result))
    if interrupted:
        return 130
    return 0 if result.status in ("succeeded", "running") else 1


def _nproc(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise Usage(f"--nproc-per-node {text} is not possible: give auto, or a number from 1 to 1024.")
    return int(text)


def _variable(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not name.replace("_", "a").isalnum() or name[:1].isdigit():
        raise Usage(
            f"--env {word!r} has no valid name: write --env NAME=VALUE, or --env NAME for its value here."
        )
    if equals:
        return name, value
    if name not in os.environ:
        raise Usage(f"--env {name}: there is no such variable here; write --env {name}=VALUE.")
    return name, os.environ[name]
