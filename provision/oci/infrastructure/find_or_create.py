"""Resources of a network for `Ensure`: found by tag, or created, after one read of all kinds."""

from collections.abc import Callable, Sequence

from inventories.threads import run_all, values
from provision.errors import Blocked, Gone
from provision.oci.api import Api, Json
from provision.oci.resources.resource_types import KINDS, is_live, list_kind, tags_of
from provision.rented import tags
from provision.waiting import poll

READY_TIMEOUT_S = 120.0


class ExistingResources:
    """The existing resources by one read of all kinds; later searches of a kind read it again."""

    def __init__(self, api: Api, kinds: Sequence[str]) -> None:
        self._api = api
        lists = values(run_all(lambda kind: list_kind(api, kind), kinds))
        self._first = dict(zip(kinds, lists, strict=True))
        self._latest = {view["id"]: view for views in lists for view in views}

    def views(self, kind: str) -> list[Json]:
        """Return our live resources of that kind by the first read, the lowest id first."""
        return _usable(self._first[kind])

    def latest(self, part_id: str) -> Json | None:
        """Return the latest view of a resource."""
        return self._latest.get(part_id)

    def finder(self, kind: str, fits: Callable[[Json], bool]) -> Callable[[], str | None]:
        """Return a search for `Ensure`: the lowest id of the resources that fit, as all commands choose it."""
        first = True

        def find() -> str | None:
            nonlocal first
            views = self._first[kind] if first and kind in self._first else list_kind(self._api, kind)
            first = False
            self._latest.update((view["id"], view) for view in views)
            return next((str(view["id"]) for view in _usable(views) if fits(view)), None)

        return find

    def creator(self, kind: str, body: Json) -> Callable[[str], str]:
        """Return a function for `Ensure` that creates a resource."""

        def create(token: str) -> str:
            view = self._api.settled(
                lambda: self._api.call(KINDS[kind].operation("create"), body, opc_retry_token=token)
            )
            self._latest[view["id"]] = view
            return str(view["id"])

        return create

    def wait_ready(self, kind: str, part_id: str) -> Json:
        """Wait until a resource can be used, and return its view. Raises Gone, and Blocked at the deadline."""
        for passed_s in poll(self._api.clock, READY_TIMEOUT_S, first_s=0.1):
            if passed_s or part_id not in self._latest:
                self._latest[part_id] = self._api.call(KINDS[kind].operation("get"), part_id)
            view = self._latest[part_id]
            if view.get("lifecycleState") in ("AVAILABLE", "ACTIVE"):
                return view
            if not is_live(view):
                raise Gone(f"The {kind} {part_id} is being deleted. Run the command again.", code="Deleted")
        raise Blocked(
            f"The {kind} {part_id} was not ready after {READY_TIMEOUT_S:.0f} s. Run the command again.",
            code="NotReady",
        )


def _usable(views: Sequence[Json]) -> list[Json]:
    ours = [view for view in views if tags.is_ours(tags_of(view)) and is_live(view)]
    return sorted(ours, key=lambda view: str(view["id"]))
