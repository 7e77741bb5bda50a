"""Advice on a login, a variable, a keyboard, another launcher's argument or a repository that a rank lacked."""

import os
import re

from inventories.runs.commit import Commit
from inventories.runs.result import FirstError
from remote.shared.constants import COMMIT_VARIABLE, DIRTY_VARIABLE

_LOGINS = (
    (
        re.compile(r"(?i)\bwandb\b.*\b(api_?key not configured|no api key configured)|\bcall wandb\.login\b"),
        ("WANDB_API_KEY",),
    ),
    (
        re.compile(
            r"gated repo|LocalTokenNotFoundError|(huggingface-cli|hf auth) login|huggingface_hub\.login"
            r"|huggingface.*\b401\b|\b401\b.*huggingface"
        ),
        ("HF_TOKEN",),
    ),
    (
        re.compile(r"NoCredentialsError|Unable to locate credentials"),
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ),
)
"""How libraries say that no login was found, and the variables from which they take it."""
_NO_VARIABLE = re.compile(r"\bKeyError: '(?P<name>[A-Z][A-Z0-9_]+)'")
_OF_TORCHRUN = {
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
    "PMI_RANK": "RANK",
    "PMI_SIZE": "WORLD_SIZE",
}
"""Variables of Slurm and MPI, and torchrun's own of the same meaning."""
_NO_KEYBOARD = re.compile(r"\bEOFError: EOF when reading a line|\bGetPassWarning\b")
_LOCAL_RANK = re.compile(r"arguments are required: .*(?P<option>--local[-_]rank)\b")
_RAY_RUNS = "When connecting to an existing cluster, num_cpus and num_gpus must not be provided"
_NO_GROUP = "Default process group has not been initialized"
_ASKED_GIT = re.compile(
    r"not a git repository|Command '(?:\['git'|git ).* returned non-zero exit status 12[78]"
    r"|No such file or directory: '(?:\S*/)?git'|InvalidGitRepositoryError|NotGitRepository|Bad git executable"
    r"|GitError: Repository not found|unable to detect version for"
)
"""How subprocess, GitPython, dulwich, pygit2 and setuptools-scm say that git gave no answer."""


def how_to_set(error: FirstError) -> str:
    """Return the sentence on a setting that the rank lacked; empty if it failed for another reason."""
    words = f"{error.detail}\n{error.message}"
    for pattern, names in _LOGINS:
        if pattern.search(words):
            options = " ".join(f"--env {name}" for name in names)
            return (
                f"The nodes have no login of yours. Set {' and '.join(names)} in your shell, and add {options}: "
                "the ranks get the value, and no log shows it"
            )
    if (variable := _NO_VARIABLE.search(words)) and (name := variable["name"]) in _OF_TORCHRUN:
        return f"{name} is not torchrun's. The same number is in {_OF_TORCHRUN[name]}"
    if variable and name in os.environ:
        return f"The variable {name} is set here, and not on the nodes: add --env {name}"
    if _NO_KEYBOARD.search(words):
        return "The script asks a question, and ranks have no keyboard: give it the answer as an option, or in a file"
    if option := _LOCAL_RANK.search(words):
        return (
            f"torchrun gives this number in a variable. Let the script begin with it: {option['option']} with "
            'default=int(os.environ["LOCAL_RANK"]), and not required'
        )
    if _RAY_RUNS in words:
        return "gpuctl has started Ray on all nodes: leave num_cpus and num_gpus out of ray.init()"
    if _NO_GROUP in words:
        return (
            "The script did not call torch.distributed.init_process_group. If it calls it only with --local_rank, "
            'let it take int(os.environ["LOCAL_RANK"]) instead: torchrun gives the number in that variable'
        )
    return ""


def how_to_know_commit(error: FirstError, commit: Commit | None) -> str:
    """The sentence for a rank that failed as it asked git; empty where it failed for another reason."""
    if not _ASKED_GIT.search(f"{error.detail}\n{error.message}"):
        return ""
    not_sent = "The nodes have the files of the project, and not its .git: git can't answer there."
    if commit is None:
        return f"{not_sent} Here, too, the project has no commit"
    return (
        f'{not_sent} The commit is in the variable {COMMIT_VARIABLE} (os.environ["{COMMIT_VARIABLE}"] in Python); '
        f"{DIRTY_VARIABLE} is 1 if files differ from that commit, else 0"
    )
