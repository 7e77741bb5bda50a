"""The commit of the files that were sent."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The commit of a repository of which files were sent."""

    sha: str
    dirty: bool
    """Whether sent files differ from the commit, also untracked files."""
