"""The cluster's security group, with exactly the rules asked for."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from provision.aws import requests
from provision.aws.api import Item
from provision.aws.infrastructure.find_or_create import Read, ResourceMaker, lowest, named
from provision.aws.requests import Request
from provision.errors import Exists, Gone
from provision.records import CloudCluster
from provision.rented.interface import Ensure

RULE_GONE = "InvalidPermission.NotFound"


def ensure_group(
    maker: ResourceMaker,
    cluster: CloudCluster,
    vpc: str,
    ensure: Ensure,
    known: Sequence[Item],
    *,
    read: Read,
    efa: bool,
) -> str:
    """The cluster's security group in the VPC; SSH comes in from nowhere else than it is asked for."""

    def in_vpc(items: Sequence[Item]) -> Item | None:
        return lowest([item for item in items if item.get("VpcId") == vpc], "GroupId")

    seen = list(known)

    def read_again() -> list[Any]:
        seen[:] = read()
        return list(seen)

    group = maker.ensure(
        "security-group",
        ensure,
        known,
        read=read_again,
        pick=in_vpc,
        field="GroupId",
        create=lambda _: maker.create(
            "create_security_group", requests.security_group(cluster, vpc), None, "GroupId"
        ),
    )
    # One that was never seen has just been made, and lets nothing in.
    _mend_rules(maker, group, named(seen, "GroupId", group) or {}, cluster, efa=efa)
    return group


def _mend_rules(maker: ResourceMaker, group: str, item: Item, cluster: CloudCluster, *, efa: bool) -> None:
    """Add what is missing first, then revoke what is too much."""
    wanted = requests.rules_in(cluster, group)
    have = single_rules(item.get("IpPermissions", []))
    out = single_rules(item.get("IpPermissionsEgress", []))
    _authorize(maker, "authorize_security_group_ingress", group, [r for r in wanted if r not in have])
    if efa:
        # EFA's own traffic is let out by a rule that names the group, not by one for addresses.
        own = [requests.group_rule(group)]
        _authorize(maker, "authorize_security_group_egress", group, [r for r in own if r not in out])
    if surplus := [rule for rule in have if rule not in wanted]:
        _revoke(maker, group, surplus)


def _authorize(maker: ResourceMaker, operation: str, group: str, rules: Sequence[Request]) -> None:
    if not rules:
        return
    allow = partial(maker.api.call, operation, again=True, settle=True, GroupId=group)
    try:
        allow(IpPermissions=list(rules))
    except Exists:
        # One that is there already keeps AWS from adding any of them.
        for rule in rules:
            try:
                allow(IpPermissions=[rule])
            except Exists:
                continue


def _revoke(maker: ResourceMaker, group: str, rules: Sequence[Request]) -> None:
    revoke = partial(maker.api.call, "revoke_security_group_ingress", again=True, GroupId=group)
    try:
        revoke(IpPermissions=list(rules))
    except Gone as error:
        if error.code != RULE_GONE:
            raise
        # One that is gone keeps AWS from revoking any: somebody was faster, or our own reply was lost.
        for rule in rules:
            try:
                revoke(IpPermissions=[rule])
            except Gone as each:
                if each.code != RULE_GONE:
                    raise


def single_rules(permissions: Sequence[Item]) -> list[Request]:
    """What AWS says of a group's rules, as one request a rule: it joins those of the same ports."""
    rules: list[Request] = []
    for permission in permissions:
        ports = {key: permission[key] for key in ("IpProtocol", "FromPort", "ToPort") if key in permission}
        for key, field in (
            ("IpRanges", "CidrIp"),
            ("Ipv6Ranges", "CidrIpv6"),
            ("UserIdGroupPairs", "GroupId"),
            ("PrefixListIds", "PrefixListId"),
        ):
            rules += [ports | {key: [{field: source[field]}]} for source in permission.get(key) or []]
    return rules
