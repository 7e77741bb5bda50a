"""State of the cloud for the control interface."""

from typing import Any

from tests.fakes.oci.store import ENDED, Cloud

_RESOURCES = (
    "vcn",
    "subnet",
    "internetgateway",
    "natgateway",
    "servicegateway",
    "routetable",
    "securitylist",
    "dhcpoptions",
    "networksecuritygroup",
    "vnic",
    "bootvolume",
    "computecluster",
    "instanceconfiguration",
    "instancepool",
    "autoscalingconfiguration",
    "consolehistory",
    "appcatalogsubscription",
    "okecluster",
    "nodepool",
    "loadbalancer",
    "blockvolume",
)


def snapshot(cloud: Cloud) -> dict[str, Any]:
    """Return all instances, also ended ones, and all other resources that have not ended."""
    with cloud.lock:
        cloud.timers.run_due()
        instances = [
            {
                "id": instance.id,
                "state": instance.state,
                "tags": instance.view["freeformTags"],
                "shape": instance.view["shape"],
                "place": f"{instance.view['availabilityDomain']}/{instance.view['faultDomain']}",
                "token": instance.own["token"],
                "launched_at": instance.own["launched_at"],
                "ended_at": instance.own["ended_at"],
            }
            for instance in cloud.all("instance")
        ]
        resources = [
            {
                "kind": kind,
                "id": resource.id,
                "tags": resource.view.get("freeformTags", {}),
                "state": resource.state,
            }
            for kind in _RESOURCES
            for resource in cloud.all(kind)
            if resource.state not in ENDED
        ]
    return {"instances": instances, "resources": resources}
