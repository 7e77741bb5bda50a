"""Creation of a resource once, whatever crashed before: the journal has the intent, the cloud's list the tag.

Most of AWS's create calls take no token, so after a crash between the call and its reply only a tag shows the
resource. OCI's calls take a token, which is used again.
"""

import secrets
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any

from inventories.disk.journal import Journal
from provision.errors import CloudError, TokenSpent, Unclear
from provision.waiting import Clock, Say, first_result, quiet

TOKEN_LIFE_S = 20 * 3600.0
"""OCI forgets a token after 24 hours."""


@dataclass
class Ensure:
    """Find or create a resource, with a journal of the cluster and one of the shared network."""

    cluster_journal: Journal
    shared_journal: Journal
    _: KW_ONLY
    clock: Clock
    consistency_s: float
    say: Say = quiet
    """Takes a line of progress, for resources that take minutes."""

    def __call__(
        self,
        kind: str,
        *,
        find: Callable[[], str | None],
        create: Callable[[str], str],
        shared: bool = False,
    ) -> str:
        """Return the id of the resource: found, or created.

        Args:
            kind: Name of the resource, as in `subnet us-east-1a`.
            find: Searches the cloud's list, by tag.
            create: Takes a token, which is on the disk by then, and returns the new id. After Unclear, `find` is
                called until it has a result or the cloud's list has settled.
            shared: The resource belongs to the network of all clusters, not to this cluster.
        """
        journal = self.shared_journal if shared else self.cluster_journal
        resource_id = find()
        last = _last_entries(journal).get(kind)
        begun = last is not None and last["event"] == "making"
        if resource_id is not None:
            if begun:
                journal.append("made", kind=kind, id=resource_id)
            return resource_id
        if last is not None and _age_s(last) < self.consistency_s:
            # The resource may exist: the list lags behind.
            resource_id = first_result(self.clock, find, self.consistency_s - _age_s(last))
        if resource_id is None:
            again = last is not None and begun and _age_s(last) <= TOKEN_LIFE_S
            token = str(last["token"]) if last is not None and again else secrets.token_hex(16)
            resource_id = self._make(journal, kind, token, find, create)
        journal.append("made", kind=kind, id=resource_id)
        return resource_id

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
            # The resource may exist: a second one is made only when the list has had time to show the first.
            resource_id = first_result(self.clock, find, self.consistency_s)
            return resource_id if resource_id is not None else create(token)


def recent_makings(journal: Journal, within_s: float) -> list[tuple[str | None, float]]:
    """Return id and age of the resources that lists may not have yet. `None`: the id is not known."""
    entries = [(entry.get("id"), _age_s(entry)) for entry in _last_entries(journal).values()]
    return [(made and str(made), age_s) for made, age_s in entries if age_s < within_s]


def all_gone(journal: Journal) -> None:
    """Note that all resources of the journal are removed, so that no command waits for them."""
    if _last_entries(journal):
        journal.append("gone")


def _last_entries(journal: Journal) -> dict[str, dict[str, Any]]:
    """Return the last entry of each kind of resource that may exist."""
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
