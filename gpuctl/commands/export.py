"""`gpuctl export`: the trained weights of a run as one file."""

from pathlib import Path

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import common_options


@click.command()
@common_options
@click.argument("run", required=False, shell_complete=completions.runs)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="File to write: .safetensors, or .pt for torch.load. It is replaced if it is there.",
)
def command(app: App, run: str | None, output: Path) -> None:
    """Write the weights of a run of the built-in job to one file: those of its newest whole checkpoint.

    \b
    gpuctl export -o model.safetensors         the latest run
    gpuctl export 20261121-0546 -o model.pt    for torch.load(…, weights_only=True)

    Without RUN it is the latest; the end of a run's id is enough. The names are the bare model's, whatever
    the strategy and the number of ranks: parts that several nodes have are brought here and put together. It works
    during a run as well. torch has to be installed here, and safetensors for such a file.
    """
    from gpuctl.workflow.runs.export import export
    from inventories.text import human_bytes, plural

    done = export(app, run, output)
    for problem in done.left_out:
        app.output.say(f"note: left out: {problem}")
    if app.options.json:
        app.output.json(done)
    else:
        app.output.say(
            f"wrote {done.file}: {plural(done.tensors, 'tensor')}, {done.parameters:,} parameters, "
            f"{human_bytes(done.bytes)}, from {done.checkpoint} of run {done.run}"
        )
