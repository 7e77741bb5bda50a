"""The table of commands and of the global options, and the overview made of them.

`gpuctl --help` prints it without importing anything else; `cli` and `options` use the same tables, so that the
overview can't promise what isn't there. This module imports nothing, on purpose.
"""

SECTIONS = (
    (
        "Cluster",
        (
            ("up", "Create the cluster's machines and prepare them. Safe to repeat."),
            ("status", "Show the machines, their real state, price and age."),
            ("clusters", "List every cluster: state, machines, price, cost so far, age, runs."),
            ("cost", "Show what clusters and runs cost, by day, also of removed clusters."),
            ("config", "Show or set limits on money, and defaults of new clusters."),
            ("keep", "Keep the machines of an unused cluster for a time (up --idle)."),
            ("adopt", "Take over a cluster that another computer made."),
            ("key", "Take a cluster to another computer, in an encrypted file."),
            ("down", "Remove everything of the cluster."),
            ("clean", "Free disks, here and on the nodes: old runs, environments, wheels, code."),
            (
                "doctor",
                "Check credentials, permissions, quota, keys; with --cluster: machines and network.",
            ),
            ("reap", "Find gpuctl's clusters in your cloud accounts, and remove them."),
            ("shapes", "List machine shapes: GPUs, networks, prices."),
            ("advise", "Say which machines and strategy a model fits on, how fast, for how much."),
        ),
    ),
    (
        "Training",
        (
            ("train", "Run a script, a module or the built-in job on the cluster."),
            ("queue", "Queue runs on the cluster, which go on while this computer is off."),
            ("init", "Write a gpuctl.yaml for this project: what is run, and what it needs."),
            ("logs", "Show a run's logs, or follow them."),
            ("why", "Say why a run makes no progress: which rank the others wait for."),
            ("stop", "Stop a run on every node."),
            ("runs", "List the runs."),
            ("results", "Show one run's results, or compare several."),
            ("report", "Write a report of runs: one HTML file."),
            ("export", "Write the trained weights of a run to one file."),
            ("manifests", "Write a job as Kubernetes' own objects, to apply without gpuctl."),
            ("tune", "Search for hyperparameters, with Ray Tune."),
            ("bench", "Run the built-in job on several layouts: scaling and cost."),
        ),
    ),
    (
        "Machines",
        (
            ("exec", "Run a command on every node, or on one."),
            ("fab", "Run tasks of your fabfile.py on the nodes, with Fabric."),
            ("ssh", "Open a shell on a node."),
            ("push", "Copy files to the nodes."),
            ("pull", "Copy files from the nodes."),
            ("top", "Show how busy the nodes are: GPUs, CPUs, memory, network, live."),
            ("ray", "Show the cluster's Ray, open its dashboard, or stop it."),
            ("ssh-config", "Print an OpenSSH configuration, so that plain ssh works."),
        ),
    ),
    (
        "Shell",
        (("completion", "Print the completion script for bash, zsh or fish."),),
    ),
)
"""(section, ((command's name, its help in one line), …)), …"""

COMMANDS = {name: help_line for _, commands in SECTIONS for name, help_line in commands}
"""Command's name → its help in one line."""

HIDDEN = ("eks-token", "oke-token")
"""Commands that other programs call, by files that gpuctl wrote."""

GLOBAL_OPTIONS = (
    (("--cluster",), "NAME", "Name of the cluster (default: that of gpuctl.yaml, or default)."),
    (("--json",), "", "Print one JSON document on stdout and nothing else."),
    (("-y", "--yes"), "", "Answer every question with yes, but accept no terms."),
    (("-v", "--verbose"), "", "Print more, and the traceback of an error."),
    (("--no-color",), "", "Print no colour."),
)
"""(names, what the value is called or empty for a switch, help in one line), …"""

QUICK_START = (
    ("gpuctl up --provider local --count 2", "two hosts on this machine: no account, no GPU"),
    ("gpuctl train --mode torchrun", "the built-in job, or your own: train my.py --lr 0.1"),
    ("gpuctl results", "timings, losses, cost"),
    ("gpuctl down", "nothing left"),
)

EXIT_STATUSES = (
    ("0", "done"),
    ("1", "failed"),
    ("2", "wrong usage or input"),
    ("3", "no capacity, or the account's quota forbids it"),
    ("4", "partly done, something needs attention"),
    ("130", "interrupted"),
)

FILES = (
    ("clusters/NAME/", "inventory, keys, known hosts, journal"),
    ("runs/ID/", "logs, metrics, results, artifacts, small checkpoints"),
    ("config.yaml", "limits on money, defaults of new clusters"),
    ("ledger.jsonl", "prices of rented clusters over time"),
)


def module_of(command: str) -> str:
    """The module whose attribute `command` is the command: `ssh-config` → `gpuctl.commands.ssh_config`."""
    return "gpuctl.commands." + command.replace("-", "_")


def text() -> str:
    """The overview that `gpuctl --help` prints, without a newline at its end."""
    options = (
        *((f"{', '.join(names)} {value}".rstrip(), help_line) for names, value, help_line in GLOBAL_OPTIONS),
        ("--version", "Show the version."),
        ("-h, --help", "Show help, also of a command."),
    )
    lines = [
        "Usage: gpuctl [OPTIONS] COMMAND [ARGS]...",
        "",
        "Rent GPU machines, train on them, bring the results back, leave nothing running.",
        "",
        "Quick start:",
        *_rows(QUICK_START),
    ]
    for section, commands in SECTIONS:
        lines += ["", f"{section}:", *_rows(commands, width=10)]
    lines += [
        "",
        "Options, before or after the command's name:",
        *_rows(options),
        "  GPUCTL_JSON=1 in the environment is --json for every command.",
        "",
        "Exit status:",
        *_rows(EXIT_STATUSES, width=10),
        "",
        "Files are under $GPUCTL_HOME (default ~/.gpuctl):",
        *_rows(FILES),
        "",
        "gpuctl COMMAND --help says more about a command.",
    ]
    return "\n".join(lines)


def _rows(rows: tuple[tuple[str, str], ...], width: int = 0) -> list[str]:
    """Two aligned columns, indented."""
    width = max(width, max(len(left) for left, _ in rows))
    return [f"  {left:<{width}}  {right}" for left, right in rows]
