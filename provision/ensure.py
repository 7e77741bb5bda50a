"""Making a part of a cloud once, whatever crashed before: the intent is written first, the tag found again.

Most of AWS's create calls take no token, so a crash between the call and its reply leaves a part of which
only its tag tells. OCI's take one, which is used again.
"""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from inventories.store import Journal
from provision.clock import Clock
from provision.errors import CloudError, TokenSpent, Unclear
from provision.retry import PollWaits

TOKEN_LIFE_S = 20 * 3600.0
"""OCI forgets a token after 24 hours."""


class JournaledEnsure:
    """`provision.cloud.Ensure` with a journal of the cluster and one of the shared network."""

    def __init__(self, own: Journal, shared: Journal, *, clock: Clock, consistency_s: float) -> None:
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
        found = find()
        if found is not None:
            return found
        journal = self._shared if shared else self._own
        token, age_s = _open_intent(journal, kind)
        if token is not None and age_s < self._consistency_s:
            found = self._await(find, self._consistency_s - age_s)
        if found is None:
            fresh = token is None or age_s > TOKEN_LIFE_S
            found = self._make(journal, kind, secrets.token_hex(16) if fresh else str(token), find, create)
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


def youngest_intent_s(journal: Journal) -> float | None:
    """Age of the last making that was begun and has no end in the journal. None: there is none."""
    kinds = {str(entry["kind"]) for entry in journal.read() if entry["event"] == "making"}
    found = [_open_intent(journal, kind) for kind in kinds]
    return min((age_s for token, age_s in found if token is not None), default=None)


def _open_intent(journal: Journal, kind: str) -> tuple[str | None, float]:
    """The token of a making that was begun and has no end in the journal, and its age in seconds."""
    entries = [entry for entry in journal.read() if entry.get("kind") == kind]
    if not entries or entries[-1]["event"] != "making":
        return None, 0.0
    age = datetime.now(UTC) - datetime.fromisoformat(str(entries[-1]["at"]))
    return str(entries[-1]["token"]), age.total_seconds()
