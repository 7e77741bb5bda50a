"""State of the proxy that moto lacks: resources with tags, scheduled actions, and extra settings."""

import datetime as dt
import heapq
import itertools
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from tests.fakes.aws_proxy.errors import not_found
from tests.fakes.aws_proxy.moto_app import Moto
from tests.fakes.control import Control
from tests.fakes.hosts import HostsLike

Body = dict[str, Any]
Tags = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Extra:
    """Settings that only this fake has."""

    quotas: dict[str, float] = field(default_factory=dict)
    """By quota code; others are at their default."""
    denied: list[str] = field(default_factory=list)
    """Operations, as globs, for which the caller has no permission."""
    vpc_limit: int = 5
    """VPCs in a region, the default one among them."""
    address_limit: int = 5
    """Elastic IPs in a region."""
    nat_ready_s: float = 0.2
    """From the call until a NAT gateway works."""
    nat_gone_s: float = 0.2
    """Delay from the call until the gateway is gone."""
    nat_failure: str = ""
    """`code: message` with which new NAT gateways fail instead of coming up."""
    nat_unavailable_zones: list[str] = field(default_factory=list)
    """Zones in which AWS can create no NAT gateway."""
    reply_page_size: int | None = None
    """Instances in a reply to a request without a page size."""
    use_lag_s: float = 0.0
    """Delay until calls that change something accept a new resource."""
    eks_cluster_s: float = 0.2
    """From the call until a control plane works."""
    eks_cluster_failure: str = ""
    """`code: message` with which new control planes fail."""
    eks_group_failure: str = ""
    """`code: message` with which new node groups fail, whose machines run."""
    eks_drain_s: float = 0.2
    """Delay from the request to end a machine until it begins to end."""
    eks_gone_s: float = 0.2
    """Minimum time in which EKS removes a cluster or a node group."""
    eks_endpoint: str = "https://127.0.0.1:1"
    """The address of all API servers."""
    eks_authority: str = ""
    """Their certificate authority, PEM."""
    ebs_key: str = "alias/aws/ebs"
    """The default key of EBS, in all regions."""
    forget_s: float = 3600.0
    """How long an instance that is gone is still listed."""


@dataclass(kw_only=True, eq=False)
class Thing:
    """A resource of the proxy's own. `body` is boto3's view without its tags."""

    kind: str
    id: str
    region: str
    body: Body
    tags: Tags
    visible_at: float = 0.0
    """In simulated time: lists lack it until then."""
    forgotten: bool = False
    """The cloud does not know it any more; only /_fake/state does."""

    def shown(self) -> Body:
        """Return boto3's view."""
        return self.body | {"Tags": tag_list(self.tags)}


class World:
    """The proxy's whole state. Callers hold `lock`."""

    def __init__(self, control: Control, hosts: HostsLike | None) -> None:
        self.control = control
        self.hosts = hosts
        self.moto = Moto()
        self.lock = threading.RLock()
        self.extra = Extra()
        self.things: dict[str, Thing] = {}
        self.new_in_moto: dict[str, float] = {}
        """Resources of moto's that lists lack as yet, and until when."""
        self.unusable: dict[str, tuple[str, float]] = {}
        """By id: the kind of a resource too new for calls that change something, and until when."""
        self.template_data: dict[str, Body] = {}
        """Of launch templates, by id."""
        self.tokens: dict[tuple[str, ...], Any] = {}
        """By client token: its use."""
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def reset(self) -> None:
        """Restore the initial state."""
        with self.lock:
            if self.hosts:
                self.hosts.stop_all()
            self.moto.reset()
            self.extra = Extra()
            self.things.clear()
            self.new_in_moto.clear()
            self.unusable.clear()
            self.tokens.clear()
            self.template_data.clear()
            self._due.clear()

    def change_extra(self, changes: dict[str, Any]) -> None:
        """Replace some of the settings that only this fake has."""
        self.extra = replace(self.extra, **changes)

    def after(self, simulated_s: float, action: Callable[[], None]) -> None:
        """Schedule an action: the first call of `advance` after that time runs it."""
        heapq.heappush(self._due, (self.control.now() + simulated_s, next(self._numbers), action))

    def advance(self) -> None:
        """Run due actions. Call it before each access to the state."""
        while self._due and self._due[0][0] <= self.control.now():
            heapq.heappop(self._due)[2]()

    def add(self, thing: Thing) -> None:
        """Add a new resource, which lists lack for a while."""
        thing.visible_at = self.control.now() + self.control.settings.list_lag_s
        self.things[thing.id] = thing
        self.note_new(thing.kind, thing.id)

    def note_new(self, kind: str, name: str) -> None:
        """Something was made, by us or by moto."""
        if self.extra.use_lag_s > 0:
            self.unusable[name] = kind, self.control.now() + self.extra.use_lag_s

    def of(self, kind: str, region: str) -> Iterator[Any]:
        """Iterate over the resources of a kind in a region, oldest first."""
        return (
            thing
            for thing in list(self.things.values())
            if (thing.kind, thing.region) == (kind, region) and not thing.forgotten
        )

    def get(self, kind: str, region: str, name: str) -> Any:
        """Return a resource by its id. Raises ApiError if it does not exist."""
        thing = self.things.get(name)
        if thing is None or (thing.kind, thing.region) != (kind, region) or thing.forgotten:
            raise not_found(kind, name)
        return thing

    def visible(self, thing: Thing) -> bool:
        """Return whether lists show the resource."""
        return self.control.now() >= thing.visible_at

    def hidden_in_moto(self) -> set[str]:
        """Resources of moto's that lists lack as yet."""
        now = self.control.now()
        self.new_in_moto = {name: until for name, until in self.new_in_moto.items() if until > now}
        return set(self.new_in_moto)


def extra_names() -> set[str]:
    """Return the settings that only this fake has."""
    return {entry.name for entry in fields(Extra)}


def extra_settings(world: World) -> dict[str, Any]:
    """Return the current extra settings."""
    return asdict(world.extra)


def new_id(prefix: str) -> str:
    """Return an id such as i-0123456789abcdef0."""
    return f"{prefix}-0{secrets.token_hex(8)}"


def utc_now() -> dt.datetime:
    """Return the time without fractions of a second, which EC2 does not show."""
    return dt.datetime.now(dt.UTC).replace(microsecond=0)


def tag_list(tags: Tags) -> list[dict[str, str]]:
    """Convert tags to boto3's form."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tags_for(params: Body, kind: str) -> Tags:
    """Return the tags of a call's TagSpecifications for one kind of resource."""
    return {
        tag["Key"]: tag.get("Value", "")
        for entry in params.get("TagSpecifications", [])
        if entry.get("ResourceType") == kind
        for tag in entry.get("Tags", [])
    }
