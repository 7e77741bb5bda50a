"""The cluster's network security group, with exactly the requested rules.

The call that adds rules takes no token, so after a lost reply the list decides, not a repetition.
"""

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Any

from inventories.errors import InvalidInput
from provision.errors import Gone, Unclear
from provision.oci import requests
from provision.oci.api import Api, Json
from provision.oci.infrastructure.find_or_create import ResourceMaker
from provision.oci.resources.resource_types import is_live, list_kind, tags_of
from provision.records import CloudCluster
from provision.rented import tags

MAX_PER_CALL = 25
ROUNDS = 5

_OPTIONS = ("tcpOptions", "udpOptions", "icmpOptions")


def ensure_group(maker: ResourceMaker, vcn_id: str, ssh_cidrs: Sequence[str]) -> str:
    """Find or create the cluster's NSG, and correct its rules. Returns its OCID."""
    body = requests.nsg(maker.cluster, vcn_id)
    nsg_id = maker.ensure("nsg", f"nsg of {vcn_id}", body, fits=lambda view: view["vcnId"] == vcn_id)
    maker.wait_ready("nsg", nsg_id)
    mend(maker.api, nsg_id, requests.nsg_rules(nsg_id, ssh_cidrs, maker.cluster.ssh_port))
    return nsg_id


def allowed_cidrs(api: Api, cluster: CloudCluster, port: int) -> tuple[str, ...] | None:
    """Return the address ranges that the cluster's group admits to a port. `None`: no group yet."""
    for view in list_kind(api, "nsg"):
        if tags_of(view).get(tags.CLUSTER_ID) == cluster.id and is_live(view):
            rules = api.list_all("network.list_network_security_group_security_rules", view["id"])
            ranges = {"min": port, "max": port}
            return tuple(
                rule["source"]
                for rule in rules
                if (rule.get("tcpOptions") or {}).get("destinationPortRange") == ranges
            )
    return None


def ssh_cidrs(cluster: CloudCluster) -> list[str]:
    """Return the IPv4 ranges: OCI's networks have no IPv6 addresses by default."""
    ipv4 = [cidr for cidr in cluster.ssh_cidrs if ipaddress.ip_network(cidr).version == 4]
    if cluster.ssh_cidrs and not ipv4:
        raise InvalidInput(
            f"SSH is to come from {', '.join(cluster.ssh_cidrs)}, and the network on OCI has IPv4 only. Give "
            "the IPv4 range that you come from with --ssh-cidr."
        )
    return ipv4


def changes(needed: Sequence[Json], existing: Sequence[Mapping[str, Any]]) -> tuple[list[Json], list[str]]:
    """Return the rules to add, and the ids of the rules to remove: unrequested ones, and duplicates."""
    keys = {_key(rule): rule for rule in needed}
    present: set[str] = set()
    remove: list[str] = []
    for rule in existing:
        key = _key(rule)
        if key not in keys or key in present or rule.get("isValid") is False:
            remove.append(str(rule["id"]))
        else:
            present.add(key)
    return [rule for key, rule in keys.items() if key not in present], remove


def mend(api: Api, nsg_id: str, needed: Sequence[Json]) -> None:
    """Add missing rules and remove unrequested ones. Idempotent."""
    for last in (*[False] * (ROUNDS - 1), True):
        existing = api.list_all("network.list_network_security_group_security_rules", nsg_id)
        add, remove = changes(needed, existing)
        try:
            for some in _chunks(add):
                body = {"securityRules": some}
                _change(api, "add", nsg_id, body)
            for ids in _chunks(remove):
                removal = {"securityRuleIds": ids}
                _change(api, "remove", nsg_id, removal)
            return
        except (Unclear, Gone):
            if last:
                raise


def _change(api: Api, verb: str, nsg_id: str, body: Json) -> None:
    operation = f"network.{verb}_network_security_group_security_rules"
    api.settled(lambda: api.call(operation, nsg_id, body))


def _key(rule: Mapping[str, Any]) -> str:
    """Return a text that distinguishes rules, whatever defaults the service has filled in."""
    side = "source" if rule["direction"] == "INGRESS" else "destination"
    parts = [
        rule["direction"],
        rule["protocol"],
        rule.get(side),
        rule.get(f"{side}Type") or "CIDR_BLOCK",
        bool(rule.get("isStateless")),
        *(_set_options(rule.get(name)) for name in _OPTIONS),
    ]
    return json.dumps(parts, sort_keys=True)


def _set_options(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _set_options(item) for key, item in value.items() if item is not None}
    return value


def _chunks(items: Sequence[Any]) -> list[list[Any]]:
    return [list(items[at : at + MAX_PER_CALL]) for at in range(0, len(items), MAX_PER_CALL)]
