"""From a path to an operation and the function that performs it.

Only operations that are here and in the SDK exist; the SDK's other ones are answered with 501, by name.
"""

from dataclasses import dataclass
from functools import cache

from tests.fakes.oci import (
    agent,
    autoscaling,
    compute,
    identity,
    kubernetes,
    limits,
    network,
    pools,
    storage,
    works,
)
from tests.fakes.oci.api import Handler
from tests.fakes.oci.operations import Operation, operations

_CORE = "/20160918"
_CLIENTS: tuple[tuple[str, str, str, dict[str, Handler]], ...] = (
    ("core", "core/compute_client", _CORE, compute.HANDLERS),
    ("core", "core/virtual_network_client", _CORE, network.HANDLERS),
    ("core", "core/blockstorage_client", _CORE, storage.HANDLERS | kubernetes.VOLUMES),
    ("core", "core/compute_management_client", _CORE, pools.HANDLERS),
    (
        "compute_instance_agent",
        "compute_instance_agent/compute_instance_agent_client",
        "/20180530",
        agent.HANDLERS,
    ),
    ("autoscaling", "autoscaling/auto_scaling_client", "/20181001", autoscaling.HANDLERS),
    (
        "container_engine",
        "container_engine/container_engine_client",
        "/20180222",
        kubernetes.HANDLERS,
    ),
    ("load_balancer", "load_balancer/load_balancer_client", "/20170115", kubernetes.BALANCERS),
    ("identity", "identity/identity_client", _CORE, identity.HANDLERS),
    ("work_requests", "work_requests/work_request_client", _CORE, works.HANDLERS),
    ("limits", "limits/limits_client", "", limits.HANDLERS),
)


@dataclass(frozen=True, kw_only=True)
class Route:
    """An operation that a request means, with the parameters of its path."""

    operation: Operation
    handler: Handler
    path: dict[str, str]


@cache
def _table() -> dict[tuple[str, int, str], list[tuple[Operation, Handler]]]:
    table: dict[tuple[str, int, str], list[tuple[Operation, Handler]]] = {}
    for service, client, base, handlers in _CLIENTS:
        for operation in operations(service, client, base, handlers):
            key = _key(operation.method, operation.path)
            table.setdefault(key, []).append((operation, handlers[operation.name]))
    return table


def _key(method: str, path: str) -> tuple[str, int, str]:
    parts = path.strip("/").split("/")
    return method, len(parts), parts[1] if len(parts) > 1 else ""


def find_route(method: str, path: str) -> Route | None:
    """Return the operation for a path without its query."""
    for operation, handler in _table().get(_key(method, path), ()):
        if result := operation.pattern.match(path):
            return Route(operation=operation, handler=handler, path=result.groupdict())
    return None


def warm_up() -> None:
    """Read the SDK's clients now rather than at the first request."""
    _table()
