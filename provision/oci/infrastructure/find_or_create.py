"""Resources of one cluster or of its network: found by their tags, or created."""

from collections.abc import Callable, Sequence

from inventories.threads import run_all, values
from provision.errors import Blocked, Gone
from provision.oci.api import Api, Json
from provision.oci.resources.resource_types import KINDS, is_live, list_kind, tags_of
from provision.records import CloudCluster
from provision.rented import tags
from provision.rented.find_or_create import Ensure
from provision.waiting import poll

READY_TIMEOUT_S = 120.0


class ResourceMaker:
    """Makes resources through `Ensure`, after one read of some kinds; later searches of a kind read it again."""

    def __init__(self, api: Api, cluster: CloudCluster, ensure: Ensure, kinds: Sequence[str] = ()) -> None:
        self.api = api
        self.cluster = cluster
        self._ensure = ensure
        lists = values(run_all(lambda kind: list_kind(api, kind), kinds))
        self._first = dict(zip(kinds, lists, strict=True))
        self._latest = {view["id"]: view for views in lists for view in views}

    def views(self, kind: str, *, shared: bool) -> list[Json]:
        """Return the live resources of that kind by the first read: of the shared network, or of the cluster."""
        return self._usable(self._first[kind], shared=shared)

    def latest(self, resource_id: str) -> Json | None:
        """Return the latest view of a resource."""
        return self._latest.get(resource_id)

    def ensure(
        self,
        kind: str,
        title: str,
        body: Json,
        *,
        fits: Callable[[Json], bool] = lambda _: True,
        shared: bool = False,
    ) -> str:
        """Return the id of the fitting resource with the lowest id, which every command chooses, or create one."""
        unread = kind in self._first

        def find() -> str | None:
            nonlocal unread
            views = self._first[kind] if unread else list_kind(self.api, kind)
            unread = False
            self._latest.update((view["id"], view) for view in views)
            return next((str(view["id"]) for view in self._usable(views, shared=shared) if fits(view)), None)

        def create(token: str) -> str:
            operation = KINDS[kind].operation("create")
            view: Json = self.api.settled(lambda: self.api.call(operation, body, opc_retry_token=token))
            self._latest[view["id"]] = view
            return str(view["id"])

        return self._ensure(title, find=find, create=create, shared=shared)

    def wait_ready(self, kind: str, resource_id: str) -> str:
        """Wait until a resource can be used, and return its id. Raises Gone, and Blocked at the deadline."""
        for passed_s in poll(self.api.clock, READY_TIMEOUT_S, first_s=0.1):
            if passed_s or resource_id not in self._latest:
                self._latest[resource_id] = self.api.call(KINDS[kind].operation("get"), resource_id)
            view = self._latest[resource_id]
            if view.get("lifecycleState") in ("AVAILABLE", "ACTIVE"):
                return resource_id
            if not is_live(view):
                raise Gone(
                    f"The {kind} {resource_id} is being deleted. Run the command again.", code="Deleted"
                )
        raise Blocked(
            f"The {kind} {resource_id} was not ready after {READY_TIMEOUT_S:.0f} s. Run the command again.",
            code="NotReady",
        )

    def _usable(self, views: Sequence[Json], *, shared: bool) -> list[Json]:
        def is_meant(view: Json) -> bool:
            of = tags_of(view)
            return tags.is_shared(of) if shared else of.get(tags.CLUSTER_ID) == self.cluster.id

        usable = (view for view in views if is_meant(view) and is_live(view))
        return sorted(usable, key=lambda view: str(view["id"]))
