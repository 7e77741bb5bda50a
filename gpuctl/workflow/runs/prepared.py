"""The nodes of a run, ready for its launch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.checks.gpu_use import Expected
    from remote.facts import Facts
    from remote.files.earlier import EarlierFiles


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The nodes of a run, ready for its launch."""

    facts: Mapping[str, "Facts"]
    """With the interpreters of the ranks and, for environments, their packages."""
    code: Mapping[str, str]
    """The folder on each node in which the script runs. Empty: nothing was sent, as the preflight refuses."""
    roots: Mapping[str, str]
    """The project's folder on each node, which contains `code`. Empty likewise."""
    earlier: Mapping[str, "EarlierFiles"] = field(default_factory=dict)
    """Files of earlier runs in that folder on each node. Empty: not examined."""
    expected: "Expected | None" = None
    """The machines' GPUs by their shapes. `None`: not known."""
