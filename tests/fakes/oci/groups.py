"""Network security groups, their rules and the VNICs in them."""

import itertools

from tests.fakes.oci.api import Handler, Reply, Request, View, page, shown
from tests.fakes.oci.common import getter, in_compartment, lister, named
from tests.fakes.oci.errors import incorrect_state, invalid, not_found
from tests.fakes.oci.rules import MAX_GROUP_RULES, check_group_rule
from tests.fakes.oci.store import Cloud, Resource, must_be_live, now

KIND = "networksecuritygroup"
MAX_A_CALL = 25
_numbers = itertools.count(1)
"""Of rules: no two have the same id."""


def create(cloud: Cloud, request: Request) -> Reply:
    """CreateNetworkSecurityGroup: without rules."""
    body = request.body
    in_compartment(cloud, body)
    vcn = cloud.get("vcn", body["vcnId"])
    must_be_live(vcn, "The VCN")
    view = {**named(body, KIND, len(cloud.all(KIND)) + 1), "vcnId": vcn.id}
    group = cloud.add(KIND, view, state="PROVISIONING", own={"rules": {}, "rules_made": 0})
    cloud.rise(group)
    return shown(group, made=True)


def delete(cloud: Cloud, request: Request) -> Reply:
    """DeleteNetworkSecurityGroup: refused while a VNIC is in it; rules that name it become invalid."""
    group = _live(cloud, request)
    if any(members(cloud, group)):
        raise incorrect_state(
            f"NetworkSecurityGroup {group.id} cannot be deleted since it still has vnics attached to it."
        )
    for other in cloud.where(KIND, vcnId=group.view["vcnId"]):
        for rule in _rules(other).values():
            if group.id in (rule.get("source"), rule.get("destination")):
                _keep(other, {**rule, "isValid": False})
    cloud.fall(group)
    return Reply(status=204)


def add_rules(cloud: Cloud, request: Request) -> Reply:
    """AddNetworkSecurityGroupSecurityRules: all or nothing; without a token, a repetition adds the rules again."""
    group = _live(cloud, request)
    query = _asked(request)
    if len(_rules(group)) + len(query) > MAX_GROUP_RULES:
        raise invalid(f"{group.id} would have more than {MAX_GROUP_RULES} rules")
    added = [
        {"id": f"{next(_numbers):06X}", "timeCreated": now(), **rule}
        for rule in _checked(cloud, group, query)
    ]
    for rule in added:
        _keep(group, rule)
    return Reply(body={"securityRules": added})


def remove_rules(cloud: Cloud, request: Request) -> Reply:
    """RemoveNetworkSecurityGroupSecurityRules: all or nothing."""
    group = _live(cloud, request)
    identifiers = request.body.get("securityRuleIds") or []
    for identifier in identifiers:
        _known(group, identifier)
    for identifier in identifiers:
        group.own["rules"].pop(identifier)
    return Reply(status=204)


def list_rules(cloud: Cloud, request: Request) -> Reply:
    """ListNetworkSecurityGroupSecurityRules."""
    group = cloud.get(KIND, request.target)
    return page(request, group.own["rules"].values(), size=cloud.settings.page_size)


def list_vnics(cloud: Cloud, request: Request) -> Reply:
    """ListNetworkSecurityGroupVnics."""
    group = cloud.get(KIND, request.target)
    rows = [
        (
            vnic.number,
            {
                "vnicId": vnic.id,
                "resourceId": vnic.own.get("instance"),
                "timeAssociated": vnic.view["timeCreated"],
            },
        )
        for vnic in members(cloud, group)
    ]
    return page(request, rows, size=cloud.settings.page_size)


def members(cloud: Cloud, group: Resource) -> list[Resource]:
    """Return the VNICs in a group."""
    return [vnic for vnic in cloud.where("vnic") if group.id in vnic.view.get("nsgIds", ())]


def _live(cloud: Cloud, request: Request) -> Resource:
    group = cloud.get(KIND, request.target)
    must_be_live(group, "NetworkSecurityGroup")
    return group


def _rules(group: Resource) -> dict[str, View]:
    return {identifier: rule for identifier, (_, rule) in group.own["rules"].items()}


def _keep(group: Resource, rule: View) -> None:
    """Numbers rules in the order in which they came, for pages that do not shift."""
    rules, identifier = group.own["rules"], rule["id"]
    group.own["rules_made"] += identifier not in rules
    number = rules[identifier][0] if identifier in rules else group.own["rules_made"]
    rules[identifier] = (number, rule)


def _asked(request: Request) -> list[View]:
    rules: list[View] = request.body.get("securityRules") or []
    if len(rules) > MAX_A_CALL:
        raise invalid(f"securityRules has {len(rules)} rules; at most {MAX_A_CALL} are allowed in a call")
    return rules


def _checked(cloud: Cloud, group: Resource, rules: list[View]) -> list[View]:
    vcn = group.view["vcnId"]
    return [check_group_rule(cloud, vcn, rule, f"securityRules[{at}]") for at, rule in enumerate(rules)]


def _known(group: Resource, identifier: str) -> None:
    if identifier not in _rules(group):
        raise not_found()


HANDLERS: dict[str, Handler] = {
    "CreateNetworkSecurityGroup": create,
    "GetNetworkSecurityGroup": getter(KIND),
    "ListNetworkSecurityGroups": lister(KIND),
    "DeleteNetworkSecurityGroup": delete,
    "AddNetworkSecurityGroupSecurityRules": add_rules,
    "RemoveNetworkSecurityGroupSecurityRules": remove_rules,
    "ListNetworkSecurityGroupSecurityRules": list_rules,
    "ListNetworkSecurityGroupVnics": list_vnics,
}
