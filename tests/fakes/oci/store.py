"""Store the cloud's resources of all kinds, their states and the times at which they change.

Families of operations work only on this store. A single lock protects it, which a request holds while it is
performed.
"""

import base64
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

from tests.fakes.control import Control, Settings
from tests.fakes.hosts import HostsLike
from tests.fakes.oci.account import Account
from tests.fakes.oci.api import View
from tests.fakes.oci.errors import incorrect_state, not_found
from tests.fakes.oci.timers import Action, Timers

PART_SHARE = 0.1
"""Parts of a network come and go in this share of the time of a machine."""

ENDED = ("TERMINATED", "DELETED")


@dataclass(eq=False, kw_only=True)
class Resource:
    """A resource with an OCID: `view` is the API's view, `own` is hidden state."""

    kind: str
    number: int
    view: View
    visible_at: float
    own: dict[str, Any] = field(default_factory=dict)
    version: int = 0

    @property
    def id(self) -> str:
        """Return the OCID."""
        return str(self.view["id"])

    @property
    def state(self) -> str:
        """Return the lifecycle state; a resource without a state counts as available."""
        return str(self.view.get("lifecycleState", "AVAILABLE"))

    @property
    def etag(self) -> str:
        """Changes with each change."""
        return f"{self.number:08x}{self.version:04x}"

    @property
    def live(self) -> bool:
        """Return whether the resource neither has ended nor is ending."""
        return self.state not in (*ENDED, "TERMINATING", "DELETING")


def now() -> str:
    """Return the time in the API's format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Cloud:
    """The account's resources in its region."""

    def __init__(self, account: Account, control: Control, hosts: HostsLike | None = None) -> None:
        self.account = account
        self.control = control
        self.hosts = hosts
        self.lock = threading.RLock()
        self.timers = Timers(self.lock)
        self._kinds: dict[str, dict[str, Resource]] = {}
        self._ids: dict[str, Resource] = {}
        self._numbers = count(1)
        self._public = count()

    @property
    def settings(self) -> Settings:
        """Return the current settings; times are in simulated seconds."""
        return self.control.settings

    def reset(self) -> None:
        """Back to an empty account."""
        with self.lock:
            self.timers.clear()
            self._kinds.clear()
            self._ids.clear()
        if self.hosts:
            self.hosts.stop_all()

    # Look-ups

    def get(self, kind: str, identifier: str | None, what: str | None = None) -> Resource:
        """Return the resource of that kind and id. Raises the service's ambiguous 404."""
        result = self._kinds.get(kind, {}).get(identifier or "")
        if result is None:
            raise not_found(what) if what else not_found()
        return result

    def any(self, identifier: str) -> Resource | None:
        """Return the resource of that id, of any kind."""
        return self._ids.get(identifier)

    def all(self, kind: str) -> list[Resource]:
        """Return the resources of a kind, oldest first, also new ones that lists do not show yet."""
        return list(self._kinds.get(kind, {}).values())

    def where(self, kind: str, **fields: Any) -> Iterator[Resource]:
        """Iterate over the resources of a kind that have not ended and whose view has these values."""
        for resource in self.all(kind):
            if resource.state not in ENDED and all(resource.view.get(k) == v for k, v in fields.items()):
                yield resource

    def rows(self, kind: str) -> Iterable[tuple[int, View]]:
        """Return the rows of a list of that kind."""
        moment = time.monotonic()
        return [(r.number, r.view) for r in self.all(kind) if r.visible_at <= moment]

    def public_address(self) -> str:
        """Return an unroutable address of the documentation range."""
        return f"203.0.113.{1 + next(self._public) % 254}"

    # Making and changing

    def ocid(self, kind: str) -> str:
        """Return a new, unique OCID."""
        return f"ocid1.{kind}.oc1.{self.account.region}.{_unique()}"

    def add(
        self,
        kind: str,
        view: View,
        *,
        state: str | None = None,
        own: dict[str, Any] | None = None,
    ) -> Resource:
        """Add a new resource; its view leaves out fields without a value."""
        identifier = view.get("id") or self.ocid(kind)
        full = {"id": identifier, **view, "timeCreated": now()}
        if state:
            full["lifecycleState"] = state
        resource = Resource(
            kind=kind,
            number=next(self._numbers),
            view={name: value for name, value in full.items() if value is not None},
            visible_at=time.monotonic() + self.control.real_s(self.settings.list_lag_s),
            own=own or {},
        )
        self._kinds.setdefault(kind, {})[identifier] = resource
        self._ids[identifier] = resource
        return resource

    def change(self, resource: Resource, **fields: Any) -> None:
        """Set fields; the view is replaced, so that a response already on its way does not change."""
        resource.view = {**resource.view, **fields}
        resource.version += 1

    def become(self, resource: Resource, state: str) -> None:
        """Enter a state."""
        self.change(resource, lifecycleState=state)

    def forget(self, resource: Resource) -> None:
        """Remove the resource: the API answers 404 from now on."""
        self._kinds[resource.kind].pop(resource.id, None)
        self._ids.pop(resource.id, None)

    # Time

    def later(self, simulated_s: float, action: Action) -> None:
        """Schedule an action under the lock."""
        self.timers.after(self.control.real_s(simulated_s), action)

    def rise(self, resource: Resource, state: str = "AVAILABLE") -> None:
        """Let a new part of a network or the like become ready soon."""

        def ready() -> None:
            if resource.state == "PROVISIONING":
                self.become(resource, state)

        self.later(self.settings.launch_s * PART_SHARE, ready)

    def fall(self, resource: Resource, *, state: str = "TERMINATED", by: str = "TERMINATING") -> None:
        """Delete a part: it shows as being deleted for a moment, and is then gone."""
        self.become(resource, by)
        delay_s = self.settings.terminate_s * PART_SHARE

        def end() -> None:
            self.become(resource, state)
            self.later(delay_s, lambda: self.forget(resource))

        self.later(delay_s, end)


def must_be_live(resource: Resource, what: str) -> None:
    """Refuse to work on a resource that is ending or has ended."""
    if not resource.live:
        raise incorrect_state(f"{what} {resource.id} is in state {resource.state}.")


def _unique() -> str:
    return "aaaaaaaa" + base64.b32encode(secrets.token_bytes(32)).decode().lower().rstrip("=")
