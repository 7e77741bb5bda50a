"""What people type who know other tools, and how gpuctl has it: a table, and the line typed out. Pure.

Only looked at where a line is wrong: a command or an option of gpuctl's own always means what gpuctl says.
"""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from provision.clouds import Shape

CREATE, TRAIN, REMOVE = "Create machines", "Train on the machines", "Remove all of the cluster"
RUNS, MACHINES, SHELL = "List the runs", "Show the machines", "Open a shell on a node"

COMMANDS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("launch", "create", "provision", "start", "apply", "deploy"), ("up", CREATE)),
    **dict.fromkeys(("resize", "scale"), ("up", "Have more machines")),
    "plan": ("up --dry-run", "Show what would be created"),
    **dict.fromkeys(("run", "submit", "torchrun", "python", "python3"), ("train", TRAIN)),
    **dict.fromkeys(("accelerate", "deepspeed", "srun", "sbatch"), ("train", TRAIN)),
    **dict.fromkeys(("ps", "jobs", "queue", "history", "squeue"), ("runs", RUNS)),
    **dict.fromkeys(("tail", "attach", "follow"), ("logs -f", "Follow a run's logs")),
    **dict.fromkeys(("kill", "cancel", "scancel", "abort"), ("stop", "Stop a run")),
    **dict.fromkeys(("list", "ls"), ("clusters", "List the clusters")),
    **dict.fromkeys(("get", "describe", "show", "info", "nodes"), ("status", MACHINES)),
    **dict.fromkeys(("destroy", "terminate", "delete", "remove", "rm", "teardown"), ("down", REMOVE)),
    **dict.fromkeys(("shell", "bash", "login", "connect"), ("ssh", SHELL)),
    **dict.fromkeys(("upload", "sync", "rsync"), ("push", "Copy files to the nodes")),
    "download": ("pull", "Copy files from the nodes"),
    **dict.fromkeys(("gpus", "offer", "offers", "prices", "show-gpus"), ("shapes", "List shapes and prices")),
    **dict.fromkeys(("check", "diagnose"), ("doctor", "Check what would fail")),
    **dict.fromkeys(("gpustat", "htop", "monitor"), ("top", "Show how busy the nodes are")),
    **dict.fromkeys(("sweep", "search"), ("tune", "Search for hyperparameters")),
    "benchmark": ("bench", "Measure how the job scales"),
    "nvidia-smi": ("exec -- nvidia-smi", "Run it on every node"),
    "dashboard": ("ray dashboard", "Open Ray's dashboard"),
    "version": ("--version", "Show the version"),
    "help": ("--help", "Show help"),
}
"""What is typed → how gpuctl's line begins, and what it does. The arguments are carried over."""

SENTENCES: Mapping[str, str] = {
    **dict.fromkeys(
        ("cp", "scp", "copy"),
        "Copy files to the nodes: gpuctl push FILE; from the nodes: gpuctl pull FILE",
    ),
    "job": "Start a run: gpuctl train my.py; list them: gpuctl runs; follow one: gpuctl logs -f; "
    "end one: gpuctl stop",
    **dict.fromkeys(
        ("fleet", "fleets", "cluster"),
        "Create machines: gpuctl up; list the clusters: gpuctl clusters; remove one: gpuctl down --cluster NAME",
    ),
    **dict.fromkeys(
        ("cost", "costs", "cost-report", "billing"),
        "What clusters cost: gpuctl clusters; what a run cost: gpuctl results; list prices: gpuctl shapes",
    ),
}
"""What is typed → an answer with more than one line of gpuctl's."""

_ALL = ("--all", "-a", "-A")
OPTION_SENTENCES: Mapping[str, Mapping[str, str]] = {
    "down": dict.fromkeys(
        _ALL,
        "gpuctl clusters lists them, gpuctl down --cluster NAME removes one; gpuctl reap removes all that are "
        "rented, also those of others in the account",
    ),
    "stop": dict.fromkeys(_ALL, "gpuctl runs lists them, gpuctl stop RUN ends one"),
}
"""Command → option that it has not got → an answer with more than one line of gpuctl's."""

PIPE = "\0|"
"""Stands for the shell's own `|`, which nobody can type as a word."""
UNKNOWN_TIME = "TIME"
_CLUSTER = dict.fromkeys(("-c", "--name", "--cluster-name"), "--cluster {value}")
_YES = dict.fromkeys(("--auto-approve", "-auto-approve", "--force", "--no-confirm"), "--yes")
_NODES = ("-n", "--num-nodes", "--num_nodes", "--nodes")
_BY_GPUCTL = (
    "--master_addr",
    "--master-addr",
    "--master_port",
    "--master-port",
    "--node_rank",
    "--node-rank",
)
_RENDEZVOUS = (
    "--rdzv_backend",
    "--rdzv-backend",
    "--rdzv_endpoint",
    "--rdzv-endpoint",
    "--rdzv_id",
    "--rdzv-id",
)

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "": dict.fromkeys(("-o", "--output", "--format"), "--json{nothing}"),
    "up": {
        **_CLUSTER,
        **_YES,
        **dict.fromkeys((*_NODES, "--nnodes", "--instances", "--replicas"), "--count {value}"),
        **dict.fromkeys(("--gpus", "--gpu", "--accelerators", "--accelerator"), "--shape {shape}"),
        **dict.fromkeys(("-t", "--type", "--instance-type", "--instance_type"), "--shape {value}"),
        **dict.fromkeys(("--machine-type", "--flavor"), "--shape {value}"),
        **dict.fromkeys(("--cloud", "--infra"), "--provider {value}"),
        **dict.fromkeys(("--use-spot", "--preemptible", "--interruptible"), "--spot"),
        **dict.fromkeys(("--disk-size", "--disk", "--disk_size"), "--disk-gb {value}"),
        **dict.fromkeys(("--image-id", "--ami"), "--image {value}"),
        **dict.fromkeys(("--dryrun", "--plan"), "--dry-run"),
        **dict.fromkeys(
            ("-i", "--idle-minutes-to-autostop", "--autostop"), f"--ttl {UNKNOWN_TIME}{{nothing}}"
        ),
    },
    "train": {
        **_CLUSTER,
        **dict.fromkeys((*_NODES, "--num-workers"), "--nnodes {value}"),
        **dict.fromkeys(("--nproc_per_node", "--nproc", "--gpus-per-node"), "--nproc-per-node {value}"),
        **dict.fromkeys(("--gpus", "--num-gpus", "--num_gpus"), "--nproc-per-node {count}"),
        **dict.fromkeys(("-d", "--detach-run", "--background", "--no-wait"), "--detach"),
        **dict.fromkeys(("--launcher", "--backend"), "--mode {value}"),
        **dict.fromkeys(("-e", "--envs"), "--env {value}"),
        "--max_restarts": "--max-restarts {value}",
        "--dryrun": "--dry-run",
        # The rendezvous is gpuctl's own to choose.
        **dict.fromkeys((*_BY_GPUCTL, *_RENDEZVOUS), "{nothing}"),
        "--standalone": "",
    },
    "down": {**_CLUSTER, **_YES},
    "status": {**_CLUSTER, **dict.fromkeys(("-r", "--refresh"), ""), **dict.fromkeys(("-a", "-A"), "--all")},
    "logs": {
        **_CLUSTER,
        **dict.fromkeys(("--tail", "-n", "--lines"), "{pipe} tail -n {value}"),
        "-F": "--follow",
    },
    "runs": _CLUSTER,
    "top": {**_CLUSTER, **dict.fromkeys(("--once", "--one-shot", "-1", "-b"), "{pipe} cat")},
    "shapes": {"--cloud": "--provider {value}"},
    "reap": _YES,
}
"""Command (empty: all) → option that it has not got → what to write in its place; with `{…}` it takes a value."""

WORDS: Mapping[str, str] = {
    **dict.fromkeys(("up", "down", "status", "runs", "top"), "--cluster {value}"),
}
"""Command → what to write for a word that it does not take."""

UNKNOWN_SHAPE = "SHAPE"
HIDDEN = "…"
"""Stands for a value that may be a secret: what is said ends up in logs."""
_ENV = ("--env", "--envs", "-e")
GLOBAL_WITH_VALUE = ("--cluster",)
"""Options that may stand before the command and take a value."""
OptionsOf: TypeAlias = Callable[[str], tuple[Collection[str], bool]]
"""Of a command of gpuctl's: its options that take a value, and whether what follows its first word is a script's."""


def answer(
    typed: Sequence[str], commands: Collection[str], options_of: OptionsOf, *, refused: str | None
) -> str | None:
    """The sentence for a line that gpuctl refused, with the line to type; None: nothing of it is known here.

    `typed`: all arguments of gpuctl. `commands`: those that gpuctl has. `refused`: the option that its command has
    not got; None: it was a word.
    """
    typed = _without_secrets(typed)
    at = command_at(typed)
    if at is None:
        return None
    before, name, rest = list(typed[:at]), typed[at], list(typed[at + 1 :])
    if name in commands:
        if sentence := OPTION_SENTENCES.get(name, {}).get(refused or ""):
            return f"{name} does not take {refused}. {sentence}"
        changed = _rewritten(name, rest, options_of)
        unknown = list(
            dict.fromkeys(_unknown(name, _own(name, rest, options_of), changed, words=refused is None))
        )
        # Of `-auto-approve` the first letter is what was refused.
        if refused and not any(word.startswith(refused) for word in unknown):
            return None
        if changed == rest or not unknown:
            return None
        missing = ", ".join(unknown)
        return f"{name} does not take {missing}; write: {_line(name, before, changed)}{_where(changed, rest)}"
    if name in SENTENCES:
        return f"gpuctl has no '{name}'. {SENTENCES[name]}"
    if name not in COMMANDS:
        return None
    return f"gpuctl has no '{name}'. {_instead(name, before, rest, options_of)}"


def _instead(name: str, before: list[str], rest: list[str], options_of: OptionsOf) -> str:
    """What to type in place of a command that is not there."""
    begin, what = COMMANDS[name]
    ours = begin.split()[0]
    if ours.startswith("-"):  # `help train`
        return f"{what}: {_line(' '.join([*rest[:1], begin]), before, [])}"
    script: list[str] = []
    if ours == "up":
        rest, script = _parted(rest)
    elif ours == "train":
        rest = rest[1:] if rest[:1] == ["launch"] else rest  # `accelerate launch`
    elif ours in ("status", "clusters"):
        rest = [word for word in rest if word.startswith("--")]  # `get pods`, `ls -l`
    if begin == "logs -f":  # `tail -f`
        rest = [word for word in rest if word not in ("-f", "--follow")]
        words = _rewritten(ours, ["-f", *rest], options_of)[1:]
    else:
        words = _rewritten(ours, rest, options_of)
    sentence = f"{what}: {_line(begin, before, words)}{_where(words, rest)}"
    if not script:
        return sentence
    at = words.index("--cluster") if "--cluster" in words else len(words)
    return f"{sentence}; then train on them: {_line('train', before, [*words[at : at + 2], *script])}"


def _where(words: Sequence[str], typed: Sequence[str]) -> str:
    """Where what is left open is found. `words`: gpuctl's line; `typed`: the line that it stands for."""
    said = ""
    if UNKNOWN_SHAPE in words:
        values = [word.partition("=")[2] if word.startswith("-") else word for word in typed]
        gpu = next((gpu for value in values if (gpu := gpu_of(value))), "")
        said += f" ({f'gpuctl shapes {gpu}'.rstrip()} lists them)"
    if UNKNOWN_TIME in words:
        said += f" ({UNKNOWN_TIME}, such as 4h, is the machines' whole life, idle or not)"
    return said


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """Of a line that both creates machines and runs something there: the two parts."""
    at = next((at for at, word in enumerate(words) if word == "--" or word.endswith(".py")), len(words))
    script = words[at:][words[at : at + 1] == ["--"] :]
    return words[:at], script[script[:1] in (["python"], ["python3"]) :]


def command_at(typed: Sequence[str]) -> int | None:
    """Where the command's name is, behind options of gpuctl itself."""
    at = 0
    while at < len(typed) and typed[at].startswith("-"):
        at += 2 if typed[at] in GLOBAL_WITH_VALUE else 1
    return at if at < len(typed) else None


def _line(begin: str, before: Sequence[str], words: Sequence[str]) -> str:
    return " ".join(["gpuctl", begin, *map(_quoted, [*before, *words])]).rstrip()


def _quoted(word: str) -> str:
    if word == PIPE:
        return "|"
    return shlex.quote(word[: -len(HIDDEN)]) + HIDDEN if word.endswith(f"={HIDDEN}") else shlex.quote(word)


def _without_secrets(words: Sequence[str]) -> list[str]:
    """The words without the values of environment variables, wherever they stand: `--env KEY=…`."""
    found: list[str] = []
    for at, word in enumerate(words):
        option, equals, variable = word.partition("=")
        if at and words[at - 1] in _ENV and equals:
            found.append(f"{option}={HIDDEN}")
        elif option in _ENV and "=" in variable:
            found.append(f"{option}={variable.partition('=')[0]}={HIDDEN}")
        elif option.startswith("-e") and equals:  # `-eKEY=VALUE`
            found.append(f"{option}={HIDDEN}")
        else:
            found.append(word)
    return found


def _own(command: str, words: list[str], options_of: OptionsOf) -> list[str]:
    """The words that are the command's own: those before a script and its arguments."""
    valued, tail = options_of(command)
    table = {**OPTIONS[""], **OPTIONS.get(command, {})}
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, _ = word.partition("=")
        if word in ("-m", "--") or (tail and not word.startswith("-")):
            break
        takes = "{" in table[name] and not equals if name in table and name not in valued else word in valued
        at += 2 if takes else 1
    return words[:at]


def _rewritten(command: str, words: list[str], options_of: OptionsOf) -> list[str]:
    """The words with gpuctl's options in place of others'."""
    valued, _ = options_of(command)
    table = {**OPTIONS[""], **OPTIONS.get(command, {})}
    found: list[str] = []
    own = _own(command, words, options_of)
    words, script = own, words[len(own) :]
    piped: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        at += 1
        if name in table and name not in valued:
            if "{" in table[name] and not equals:
                value = words[at] if at < len(words) else "N"
                at += 1
            written = _filled(table[name], value)
            if written[:1] == [PIPE]:
                piped = written
            else:
                found += written
        elif not word.startswith("-") and command in WORDS:
            own_file = command == "up" and word.endswith((".yaml", ".yml"))
            found += _filled("-f {value}" if own_file else WORDS[command], word)
        else:
            found.append(word)
            if word in valued:
                found += words[at : at + 1]
                at += 1
    # With a pipe, what is followed would show only at its end.
    return [*found, *script, *(piped if not {"-f", "--follow"} & set(found) else ())]


def _filled(template: str, value: str) -> list[str]:
    """The words of a template for a value."""
    shape = shape_of(value) if "{shape}" in template else ""
    count = value.rpartition(":")[2]
    blanks = {"value": value, "shape": shape, "count": count, "pipe": PIPE, "nothing": ""}
    parts = [part.format(**blanks) for part in template.split()]
    return [part for part in parts if part]


def _unknown(command: str, typed: list[str], changed: list[str], *, words: bool) -> list[str]:
    """What had to be changed: options; or `words`, those that are another option's value now."""
    table = {**OPTIONS[""], **OPTIONS.get(command, {})}
    names = [word.partition("=")[0] for word in typed]
    options = [name for name in names if name in table]
    if options or not words:
        return options
    return [f"'{word}'" for word in typed if not word.startswith("-") and word in changed]


def shape_of(gpus: str) -> str:
    """The cheapest shape with these GPUs, as `A10:2` or `A100-80GB:8` names them; `UNKNOWN_SHAPE` where none has."""
    wanted = gpus.strip("{} ").partition(":")[2].strip() or "1"
    fitting = [shape for shape in _with_gpu(gpus) if str(shape.gpus) == wanted]
    cheapest = min(fitting, key=lambda shape: shape.usd_per_hour or float("inf"), default=None)
    return cheapest.name if cheapest else UNKNOWN_SHAPE


def gpu_of(gpus: str) -> str:
    """The GPU of `A10:3` or `a100-80gb` as `gpuctl shapes` names it; empty where no shape has it."""
    return next((shape.gpu for shape in _with_gpu(gpus)), "")


def _with_gpu(gpus: str) -> "list[Shape]":
    """The shapes with the GPU that is named, however many."""
    from provision.pricing.catalog import SHAPES

    name = gpus.strip("{} ").partition(":")[0].casefold()
    return [
        shape
        for shape in SHAPES.values()
        if name in (shape.gpu.casefold(), f"{shape.gpu}-{shape.gpu_memory_gb}gb".casefold())
    ]
