"""Commands and options of other tools, and gpuctl's own. Pure; used for refused command lines only."""

from collections.abc import Collection, Mapping, Sequence

COMMANDS: Mapping[str, str] = {
    "up": "launch create provision start apply deploy resize scale",
    "up --dry-run": "plan",
    "train": "run submit torchrun python python3 accelerate deepspeed srun sbatch job",
    "runs": "ps jobs history",
    "queue ls": "squeue",
    "logs -f": "tail attach follow",
    "stop": "kill cancel scancel abort",
    "clusters": "list ls fleet fleets cluster",
    "cost": "costs cost-report billing",
    "status": "get describe show info nodes",
    "down": "destroy terminate delete remove rm teardown",
    "ssh": "shell bash login connect",
    "push": "upload sync rsync cp scp copy",
    "pull": "download",
    "shapes": "gpus offer offers prices show-gpus",
    "doctor": "check diagnose",
    "top": "gpustat htop monitor",
    "tune": "sweep search",
    "bench": "benchmark",
    "exec -- nvidia-smi": "nvidia-smi",
    "ray dashboard": "dashboard",
    "--version": "version",
    "--help": "help",
}
"""gpuctl's command → commands of other tools."""
OPTIONS: Mapping[str, str] = {
    "--cluster": "-c --name --cluster-name",
    "--yes": "--auto-approve --force --no-confirm",
    "--count": "-n --num-nodes --num_nodes --nodes --nnodes --instances --replicas",
    "--shape": "--gpus --gpu --accelerators --accelerator -t --type --instance-type --machine-type --flavor",
    "--provider": "--cloud --infra",
    "--spot": "--use-spot --preemptible --interruptible",
    "--disk-gb": "--disk-size --disk",
    "--image": "--image-id --ami",
    "--dry-run": "--dryrun --plan",
    "--ttl": "-i --idle-minutes-to-autostop --autostop",
    "--nnodes": "-n --num-nodes --num_nodes --nodes --num-workers",
    "--nproc-per-node": "--nproc --gpus-per-node --gpus --num-gpus --num_gpus",
    "--detach": "-d --detach-run --background --no-wait",
    "--mode": "--launcher --backend",
    "--env": "-e --envs",
    "--all": "-a -A",
    "--follow": "-F",
}
"""gpuctl's option → names of that option in other tools."""


def command_at(typed: Sequence[str]) -> int | None:
    """Return the index of the command's name, after options of gpuctl itself. `None`: no command was typed."""
    at = 0
    while at < len(typed) and typed[at].startswith("-"):
        at += 2 if typed[at] == "--cluster" else 1
    return at if at < len(typed) else None


def answer(
    typed: Sequence[str], commands: Collection[str], options: Collection[str], *, refused: str | None
) -> str | None:
    """Return the sentence on a refused line, without its arguments: these may hold secrets.

    `typed`: all arguments of gpuctl. `commands`: gpuctl's. `options`: those of the typed command. `refused`: the
    option that it does not have. `None`: the line is not another tool's.
    """
    at = command_at(typed)
    if at is None:
        return None
    name = typed[at]
    if name not in commands:
        line = next((line for line, others in COMMANDS.items() if name in others.split()), None)
        return line and f"gpuctl has no '{name}'. Its command for that: gpuctl {line}"
    option = next(
        (ours for ours, others in OPTIONS.items() if ours in options and refused in others.split()), None
    )
    return option and f"{name} does not take {refused}; its option is {option}. See `gpuctl {name} --help`."
