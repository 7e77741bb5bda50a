"""Finding and creating the resources of a network, for `Ensure`: by tag, with one look at all kinds to begin with."""

from collections.abc import Callable, Sequence

from provision.errors import Blocked, Gone
from provision.oci.api import Api, Json
from provision.oci.resources.resource_types import KINDS, is_live, list_kind, tags_of
from provision.parallel import run_all, values
from provision.rented import tags
from provision.waiting import PollWaits

READY_TIMEOUT_S = 120.0


class ExistingResources:
    """What there is, as one look at the beginning told it; each kind is looked at anew when asked again."""

    def __init__(self, api: Api, kinds: Sequence[str]) -> None:
        self._api = api
        found = values(run_all(lambda kind: list_kind(api, kind), kinds))
        self._first = dict(zip(kinds, found, strict=True))
        self._seen = {view["id"]: view for views in found for view in views}

    def views(self, kind: str) -> list[Json]:
        """What of that kind is ours and stays, as it was at the beginning; the lowest id first."""
        return _usable(self._first[kind])

    def seen(self, part_id: str) -> Json | None:
        """A resource as it was seen last."""
        return self._seen.get(part_id)

    def finder(self, kind: str, wanted: Callable[[Json], bool]) -> Callable[[], str | None]:
        """For `Ensure`: the id of the one that is wanted, of several the lowest, as all commands take it."""
        first = True

        def find() -> str | None:
            nonlocal first
            views = self._first[kind] if first and kind in self._first else list_kind(self._api, kind)
            first = False
            self._seen.update((view["id"], view) for view in views)
            return next((str(view["id"]) for view in _usable(views) if wanted(view)), None)

        return find

    def creator(self, kind: str, body: Json) -> Callable[[str], str]:
        """For `Ensure`: make one."""

        def create(token: str) -> str:
            view = self._api.settled(
                lambda: self._api.call(KINDS[kind].operation("create"), body, opc_retry_token=token)
            )
            self._seen[view["id"]] = view
            return str(view["id"])

        return create

    def wait_ready(self, kind: str, part_id: str) -> Json:
        """The resource, once it can be built upon. Raises Gone, and Blocked at the deadline."""
        deadline = self._api.clock.now() + READY_TIMEOUT_S
        waits = PollWaits(first_s=0.1)
        view = self._seen.get(part_id)
        while view is None or view.get("lifecycleState") not in ("AVAILABLE", "ACTIVE"):
            if view is not None and not is_live(view):
                raise Gone(f"The {kind} {part_id} is being deleted. Run the command again.", code="Deleted")
            if self._api.clock.now() > deadline:
                raise Blocked(
                    f"The {kind} {part_id} was not ready after {READY_TIMEOUT_S:.0f} s. Run the command again.",
                    code="NotReady",
                )
            if view is not None:
                self._api.clock.sleep(waits.next())
            view = self._api.call(KINDS[kind].operation("get"), part_id)
            self._seen[part_id] = view
        return view


def _usable(views: Sequence[Json]) -> list[Json]:
    ours = [view for view in views if tags.is_ours(tags_of(view)) and is_live(view)]
    return sorted(ours, key=lambda view: str(view["id"]))
