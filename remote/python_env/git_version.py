"""The version of a project whose build system takes it from git: worked out here, as the nodes get no history."""

import re
from collections.abc import Iterable
from datetime import date

from inventories.runs.run import Commit
from remote.files.git import Described

UNKNOWN = "0"
"""The version where no commit is known."""
TOOLS = re.compile(
    r"setuptools[-_]scm|use_scm_version|vcs[-_]versioning|hatch[-_]vcs|flit[-_]scm|versioningit|git[-_]versioning"
    r"|dynamic[-_]versioning|\bpbr\b|^\s*source\s*=\s*[\"']scm[\"']",
    re.MULTILINE,
)
"""Traces of what takes a version from git, in the files that say how a project is built."""
VARIABLES = (
    "SETUPTOOLS_SCM_PRETEND_VERSION",  # setuptools-scm, hatch-vcs, flit-scm
    "VCS_VERSIONING_PRETEND_VERSION",
    "PBR_VERSION",
    "PDM_BUILD_SCM_VERSION",
    "POETRY_DYNAMIC_VERSIONING_BYPASS",
    "UV_DYNAMIC_VERSIONING_BYPASS",
)
"""Variables that give these tools a version. versioningit and setuptools-git-versioning have no such variable."""
OF_PROJECT = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{}"
"""The form of the first variable for one project; hatch-vcs does not look for it."""
_TAG = re.compile(
    r"(?:[\w-]+-)?[vV]?(?P<release>\d+(?:\.\d+)*)(?P<rest>[-_.]?(?:a|b|rc|alpha|beta)\.?\d+)?(?:\+.*)?"
)


def is_of_git(texts: Iterable[str]) -> bool:
    """Return whether a project's version comes from git. `texts`: the files that define its build."""
    return any(TOOLS.search(text) for text in texts)


def variables(version: str, names: Iterable[str]) -> dict[str, str]:
    """Return the variables that give a version to the build of projects of these names, and to no other."""
    return {OF_PROJECT.format(re.sub(r"[-_.]+", "_", name).upper()): version for name in names}


def version_of(commit: Commit, described: Described, today: date) -> str:
    """Return the version of a commit as setuptools-scm makes it where nothing else is configured.

    That is the tag's own version, or a development version before the next one.
    """
    tag = _TAG.fullmatch(described.tag)
    release, rest = (tag["release"], tag["rest"] or "") if tag else ("0.0", "")
    if tag and described.distance == 0 and not commit.dirty:
        return release + rest
    # 1.2.3 is followed by 1.2.4, 2.0rc1 by 2.0rc2; without a tag the next version is 0.1.
    upcoming = re.sub(r"\d+$", lambda last: str(int(last[0]) + 1), release + rest)
    local = f"g{commit.sha[:9]}" + (f".d{today:%Y%m%d}" if commit.dirty else "")
    return f"{upcoming}.dev{described.distance}+{local}"
