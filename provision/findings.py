"""Findings of `doctor`, and the frame in which a provider's checks run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from inventories.errors import InvalidInput
from inventories.threads import run_all
from provision.errors import ProvisionError, Throttled, Unclear


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check of `doctor`."""

    what: str = ""
    """The subject of the check, in a few words. Empty: `run_checks` sets it."""
    ok: bool | None
    """`None`: the check got no answer."""
    detail: str
    """The state that the check saw."""
    fix: str = ""
    """Whole sentences on what to do. Empty: nothing."""


def refusal(error: ProvisionError | InvalidInput, subject: str = "") -> Finding:
    """Return the finding for an error of a check, which is no answer if another try may succeed."""
    return Finding(
        what=subject, ok=None if isinstance(error, Throttled | Unclear) else False, detail=str(error)
    )


def run_checks(checks: Mapping[str, Callable[[], Finding]]) -> tuple[Finding, ...]:
    """Run checks in parallel, and return a finding for each. Keys are the subjects.

    A check that raises gives a finding without an answer.
    """
    outcomes = run_all(lambda check: check(), list(checks.values()))
    return tuple(
        replace(outcome, what=what)
        if isinstance(outcome, Finding)
        else Finding(what=what, ok=None, detail=f"It could not be found out. {outcome}")
        for what, outcome in zip(checks, outcomes, strict=True)
    )
