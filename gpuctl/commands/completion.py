"""`gpuctl completion`: the script that teaches a shell to complete gpuctl's commands and options."""

import click
from click.shell_completion import get_completion_class

from gpuctl.app import App
from gpuctl.command_line.options import no_cluster_options


@click.command()
@no_cluster_options
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(app: App, shell: str) -> None:
    """Print the completion script for bash, zsh or fish.

    \b
    Install it, once:
      bash  gpuctl completion bash > ~/.local/share/bash-completion/completions/gpuctl
            (make the folder first, with mkdir -p; needs the bash-completion package)
            or, without that package, in ~/.bashrc: eval "$(gpuctl completion bash)"
      zsh   in ~/.zshrc, after compinit: eval "$(gpuctl completion zsh)"
      fish  gpuctl completion fish > ~/.config/fish/completions/gpuctl.fish

    \b
    Then start a new shell.
    """
    script = script_for(shell)
    if app.options.json:
        app.output.json({"shell": shell, "script": script})
    else:
        app.output.text(script)


def script_for(shell: str) -> str:
    """The completion script for `bash`, `zsh` or `fish`, as click writes it."""
    from gpuctl.command_line.cli import group

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    completer = completion_class(group, {}, "gpuctl", "_GPUCTL_COMPLETE")
    # source() of bash first runs bash to look at its version; the script itself needs no shell.
    return completer.source_template % completer.source_vars()
