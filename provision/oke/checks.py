"""What `doctor` looks at for OKE. Nothing is changed."""

from collections.abc import Callable

from inventories.errors import InvalidInput
from provision.errors import Denied, ProvisionError, Throttled, Unclear
from provision.findings import Finding, run_checks
from provision.oci import checks, rights
from provision.oci.api import Api
from provision.oci.resources.resource_types import KUBERNETES_KINDS, list_kind
from provision.oke import offers
from provision.records import CloudCluster


def check(api: Api, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
    """All findings, the plainest first."""
    todo: dict[str, Callable[[], Finding]] = {
        "permissions to read": lambda: _reading(api),
        "permissions to create": lambda: _creating(api),
        f"shape and limits for {count} {cluster.shape}": lambda: _shape(api, cluster, count),
    }
    return (checks.sdk(), *run_checks(todo))


def _reading(api: Api) -> Finding:
    try:
        for kind in KUBERNETES_KINDS:
            list_kind(api, kind)
    except Denied as error:
        return Finding(what="", ok=False, detail=str(error), fix="Ask whoever runs the tenancy to allow it.")
    return Finding(what="", ok=True, detail="Clusters, node pools, load balancers and volumes can be listed.")


def _creating(api: Api) -> Finding:
    """Return the statements that creating and deleting need, as OCI can't be asked for them."""
    statements = checks.statements(api, rights.KUBERNETES)
    return Finding(what="", ok=None, detail=f"OCI can't be asked. A group needs\n{statements}")


def _shape(api: Api, cluster: CloudCluster, count: int) -> Finding:
    try:
        offer = offers.find(api, cluster)
        offers.refuse_over_quota(cluster, offer, count)
    except (ProvisionError, InvalidInput) as error:
        ok = None if isinstance(error, Throttled | Unclear) else False
        return Finding(what="", ok=ok, detail=str(error))
    zones = ", ".join(str(zone) for zone in offer.zones)
    version = offer.facts["version"]
    return Finding(what="", ok=True, detail=f"{offer.gpus} GPUs each, in {zones}; Kubernetes {version}.")
