"""Making a part of a cloud once, whatever crashed before: the intent is written first, the tag found again.

Most of AWS's create calls take no token, so a crash between the call and its reply leaves a part of which
only its tag tells. OCI's take one, which is used again.
"""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from inventories.disk.store import Journal
from provision.errors import CloudError, TokenSpent, Unclear
from provision.waiting import Clock, PollWaits, Say, quiet

TOKEN_LIFE_S = 20 * 3600.0
"""OCI forgets a token after 24 hours."""


class JournaledEnsure:
    """`provision.rented.interface.Ensure` with a journal of the cluster and one of the shared network."""

    def __init__(
        self, own: Journal, shared: Journal, *, clock: Clock, consistency_s: float, say: Say = quiet
    ) -> None:
        self.say = say
        self._own = own
        self._shared = shared
        self._clock = clock
        self._consistency_s = consistency_s

    def __call__(
        self,
        kind: str,
        *,
        find: Callable[[], str | None],
        create: Callable[[str], str],
        shared: bool = False,
    ) -> str:
        """As `Ensure` says."""
        journal = self._shared if shared else self._own
        found = find()
        last = _last_entries(journal).get(kind)
        begun = last is not None and last["event"] == "making"
        if found is not None:
            if begun:
                journal.append("made", kind=kind, id=found)
            return found
        if last is not None and _age_s(last) < self._consistency_s:
            # It may be there, or is: the list lags behind.
            found = self._await(find, self._consistency_s - _age_s(last))
        if found is None:
            again = last is not None and begun and _age_s(last) <= TOKEN_LIFE_S
            token = str(last["token"]) if last is not None and again else secrets.token_hex(16)
            found = self._make(journal, kind, token, find, create)
        journal.append("made", kind=kind, id=found)
        return found

    def _make(
        self,
        journal: Journal,
        kind: str,
        token: str,
        find: Callable[[], str | None],
        create: Callable[[str], str],
    ) -> str:
        journal.append("making", kind=kind, token=token)
        try:
            return create(token)
        except TokenSpent:
            token = secrets.token_hex(16)
            journal.append("making", kind=kind, token=token)
            return create(token)
        except CloudError as error:
            if not isinstance(error, Unclear):
                journal.append("refused", kind=kind, token=token)
                raise
            # It may be there: a second one is made only when the list has had time to show the first.
            found = self._await(find, self._consistency_s)
            return found if found is not None else create(token)

    def _await(self, find: Callable[[], str | None], seconds: float) -> str | None:
        deadline = self._clock.now() + seconds
        waits = PollWaits()
        while self._clock.now() < deadline:
            self._clock.sleep(min(waits.next(), max(0.0, deadline - self._clock.now())))
            found = find()
            if found is not None:
                return found
        return None


def recent_makings(journal: Journal, within_s: float) -> list[tuple[str | None, float]]:
    """What was begun or made so lately that lists may lack it: its id, None where that is not known, and its age."""
    found = [(entry.get("id"), _age_s(entry)) for entry in _last_entries(journal).values()]
    return [(made and str(made), age_s) for made, age_s in found if age_s < within_s]


def all_gone(journal: Journal) -> None:
    """Note that everything that the journal tells of has been removed: nobody has to wait for it any more."""
    if _last_entries(journal):
        journal.append("gone")


def _last_entries(journal: Journal) -> dict[str, dict[str, Any]]:
    """The last entry of each kind of resource that may be there."""
    last: dict[str, dict[str, Any]] = {}
    for entry in journal.read():
        if entry["event"] == "gone":
            last.clear()
        elif entry["event"] in ("making", "made"):
            last[str(entry["kind"])] = entry
        elif entry["event"] == "refused":
            last.pop(str(entry["kind"]), None)
    return last


def _age_s(entry: dict[str, Any]) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(str(entry["at"]))).total_seconds()
