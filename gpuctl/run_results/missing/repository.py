"""A rank that asked git, on a node that has the project's files and no repository: where the commit is written."""

import re

from inventories.runs.run import Commit, FirstError
from remote.shared.constants import COMMIT_VARIABLE, DIRTY_VARIABLE

_ASKED_GIT = re.compile(
    r"not a git repository|Command '(?:\['git'|git ).* returned non-zero exit status 12[78]"
    r"|No such file or directory: '(?:\S*/)?git'|InvalidGitRepositoryError|NotGitRepository|Bad git executable"
    r"|GitError: Repository not found|unable to detect version for"
)
"""How subprocess, GitPython, dulwich, pygit2 and setuptools-scm say that git gave no answer."""


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
