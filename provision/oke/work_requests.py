"""Work requests of OKE: what became of a change after OKE had taken it."""

from provision.errors import CloudError
from provision.oci.api import Api, Json

ENDED_BADLY = ("FAILED", "CANCELED")


def errors_of(api: Api, request: str) -> list[Json]:
    """Why it failed: `code` and `message` of each. Empty: it may still go well, or nothing tells."""
    try:
        if api.hint("container.get_work_request", request)["status"] not in ENDED_BADLY:
            return []
        told = api.list_all("container.list_work_request_errors", api.compartment, request)
    except CloudError:
        return []
    return told or [{"code": "", "message": "it gives no reason"}]


def newest_errors(api: Api, pool: str) -> list[Json]:
    """Those of the node pool's last change, by its OCID."""
    try:
        found = api.listed("container.list_work_requests", resource_id=pool, resource_type="NODEPOOL")
    except CloudError:
        return []
    newest = max(found, key=lambda one: str(one.get("timeAccepted") or ""), default=None)
    return [] if newest is None else errors_of(api, newest["id"])
