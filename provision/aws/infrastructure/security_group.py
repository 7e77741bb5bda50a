"""The cluster's security group, with exactly the requested rules; and its key pair."""

from collections.abc import Sequence
from functools import partial

from provision.aws import requests
from provision.aws.api import Api, Item
from provision.aws.infrastructure.find_or_create import Listing, ResourceMaker, lowest, named
from provision.aws.requests import Request
from provision.errors import Exists, Gone
from provision.records import CloudCluster
from provision.rented import tags

RULE_GONE = "InvalidPermission.NotFound"


def ensure_group(maker: ResourceMaker, vpc: str, groups: Listing, *, efa: bool) -> str:
    """Find or create the cluster's security group in the VPC, which admits SSH only from the requested ranges."""

    def in_vpc(items: Sequence[Item]) -> Item | None:
        return lowest([item for item in items if item.get("VpcId") == vpc], "GroupId")

    group = maker.ensure(
        "security-group",
        groups,
        pick=in_vpc,
        field="GroupId",
        create=lambda _: maker.create(
            "create_security_group", requests.security_group(maker.cluster, vpc), None, "GroupId"
        ),
    )
    # A group that no list had is new, and admits nothing.
    item = named(groups.known, "GroupId", group) or {}
    rules = requests.rules_in(maker.cluster, group)
    have = single_rules(item.get("IpPermissions", []))
    out = single_rules(item.get("IpPermissionsEgress", []))
    _authorize(maker, "authorize_security_group_ingress", group, [r for r in rules if r not in have])
    if efa:
        # EFA's own traffic needs a rule that names the group, not one for addresses.
        group_rules = [requests.group_rule(group)]
        _authorize(maker, "authorize_security_group_egress", group, [r for r in group_rules if r not in out])
    if surplus := [rule for rule in have if rule not in rules]:
        revoke = partial(maker.api.call, "revoke_security_group_ingress", again=True, GroupId=group)
        try:
            revoke(IpPermissions=list(surplus))
        except Gone as error:
            if error.code != RULE_GONE:
                raise
            # One missing rule keeps AWS from revoking any: another process was faster, or our own reply was lost.
            for rule in surplus:
                try:
                    revoke(IpPermissions=[rule])
                except Gone as each:
                    if each.code != RULE_GONE:
                        raise
    return group


def _authorize(maker: ResourceMaker, operation: str, group: str, rules: Sequence[Request]) -> None:
    if not rules:
        return
    allow = partial(maker.api.call, operation, again=True, settle=True, GroupId=group)
    try:
        allow(IpPermissions=list(rules))
    except Exists:
        # One existing rule keeps AWS from adding any of them.
        for rule in rules:
            try:
                allow(IpPermissions=[rule])
            except Exists:
                continue


def single_rules(permissions: Sequence[Item]) -> list[Request]:
    """Return a group's rules as one request a rule: AWS joins rules of the same ports."""
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


def ssh_cidrs(api: Api, cluster: CloudCluster) -> tuple[str, ...]:
    """Return the address ranges that the cluster's groups admit to SSH."""
    groups = api.pages(
        "describe_security_groups", "SecurityGroups", Filters=requests.tagged(tags.CLUSTER_ID, cluster.id)
    )
    rules = [rule for group in groups for rule in single_rules(group.get("IpPermissions", []))]
    sources = [
        source
        for rule in rules
        if rule.get("FromPort") == cluster.ssh_port
        for source in (*rule.get("IpRanges", ()), *rule.get("Ipv6Ranges", ()))
    ]
    return tuple(str(source.get("CidrIp") or source["CidrIpv6"]) for source in sources)


def ensure_key(maker: ResourceMaker, public_key: str, keys: Listing) -> str:
    """Find or create the cluster's key pair. Returns its name.

    It may have the key of another computer that uses the cluster: machines take the key of their user-data, too.
    """
    name = requests.name_of(maker.cluster)
    return maker.ensure(
        "key-pair",
        keys,
        pick=lambda items: named(items, "KeyName", name),
        field="KeyName",
        create=lambda _: maker.create(
            "import_key_pair", requests.key_pair(maker.cluster, public_key), None, "KeyName"
        ),
    )
