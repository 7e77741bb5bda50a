"""Networks through the SDK: the parts that a VCN brings, the order of deletions, the limits of rules."""

import pytest
from oci.core import models
from oci.pagination import list_call_get_all_results as every

GROUP_RULES = models.AddNetworkSecurityGroupSecurityRulesDetails
WORLD = "0.0.0.0/0"
pytest_plugins = ["tests.fakes.oci.fixtures"]


def tcp(**fields):
    ports = models.PortRange(min=22, max=22)
    options = models.TcpOptions(destination_port_range=ports)
    return models.AddSecurityRuleDetails(protocol="6", tcp_options=options, **fields)


def test_vcn_creates_and_deletes_its_default_resources(world, refused):
    vcn = world.vcn(dns_label="train", freeform_tags={"gpuctl": "1"})
    assert vcn.lifecycle_state == "PROVISIONING"
    assert world.until(lambda: world.network.get_vcn(vcn.id).data, "AVAILABLE").freeform_tags == {
        "gpuctl": "1"
    }
    rules = world.network.get_security_list(vcn.default_security_list_id).data.ingress_security_rules
    assert (rules[0].source, rules[0].tcp_options.destination_port_range.min) == (WORLD, 22)
    result = refused(409, "Conflict", world.network.delete_route_table, vcn.default_route_table_id)
    assert "default" in result
    world.network.delete_vcn(vcn.id)
    world.until_gone(lambda: world.network.get_vcn(vcn.id))
    world.until_gone(lambda: world.network.get_security_list(vcn.default_security_list_id))


def test_network_deletion_is_refused_out_of_order(world, refused):
    net = world.network
    vcn = world.vcn()
    gateway = world.gateway(vcn)
    route = models.RouteRule(destination=WORLD, network_entity_id=gateway.id)
    table = net.create_route_table(
        models.CreateRouteTableDetails(compartment_id=world.compartment, vcn_id=vcn.id, route_rules=[route])
    ).data
    rules = models.CreateSecurityListDetails(
        compartment_id=world.compartment,
        vcn_id=vcn.id,
        ingress_security_rules=[],
        egress_security_rules=[models.EgressSecurityRule(protocol="all", destination=WORLD)],
    )
    own_list = net.create_security_list(rules).data
    subnet = world.subnet(vcn, route_table_id=table.id, security_list_ids=[own_list.id])
    group = world.group(vcn)
    instance = world.running(subnet, vnic={"nsg_ids": [group.id]})
    vnic = every(net.list_network_security_group_vnics, group.id).data[0].vnic_id

    assert vnic in refused(409, "Conflict", net.delete_subnet, subnet.id)
    assert "vnics attached" in refused(409, "IncorrectState", net.delete_network_security_group, group.id)
    assert gateway.id in refused(409, "Conflict", net.delete_internet_gateway, gateway.id)
    assert subnet.id in refused(409, "Conflict", net.delete_route_table, table.id)
    assert subnet.id in refused(409, "Conflict", net.delete_security_list, own_list.id)
    assert "Subnet" in refused(409, "IncorrectState", net.delete_vcn, vcn.id)

    world.settings(terminate_s=4)
    world.compute.terminate_instance(instance.id)
    world.until(lambda: world.compute.get_instance(instance.id).data, "TERMINATED")
    refused(409, "Conflict", net.delete_subnet, subnet.id)  # the VNIC lingers
    world.until_gone(lambda: net.get_vnic(vnic))
    net.delete_subnet(subnet.id)
    assert net.get_subnet(subnet.id).data.lifecycle_state in ("TERMINATING", "TERMINATED")
    world.until_gone(lambda: net.get_subnet(subnet.id))
    net.delete_network_security_group(group.id)
    net.update_route_table(table.id, models.UpdateRouteTableDetails(route_rules=[]))
    net.delete_internet_gateway(gateway.id)
    world.until_gone(lambda: net.get_internet_gateway(gateway.id))
    assert "Route Table" in refused(409, "IncorrectState", net.delete_vcn, vcn.id)
    net.delete_route_table(table.id)
    net.delete_security_list(own_list.id)
    world.until_gone(lambda: net.get_route_table(table.id))
    world.until_gone(lambda: net.get_security_list(own_list.id))
    world.until_gone(lambda: net.get_network_security_group(group.id))
    net.delete_vcn(vcn.id)
    world.until_gone(lambda: net.get_vcn(vcn.id))
    assert [entry for entry in world.control.state()["resources"] if entry["kind"] != "bootvolume"] == []


def test_create_subnet_refuses_ranges_outside_or_overlapping(world, refused):
    vcn = world.vcn()
    first = world.subnet(vcn)
    assert first.id in refused(400, "InvalidParameter", world.subnet, vcn, "10.0.0.0/22")
    assert "not in" in refused(400, "InvalidParameter", world.subnet, vcn, "10.1.0.0/24")
    assert "CIDR" in refused(400, "InvalidParameter", world.subnet, vcn, "10.0.2.1/24")
    assert "dnsLabel" in refused(400, "InvalidParameter", world.subnet, vcn, "10.0.2.0/24", dns_label="a")
    other = world.vcn("10.9.0.0/16")
    refused(
        400, "InvalidParameter", world.subnet, vcn, "10.0.2.0/24", route_table_id=other.default_route_table_id
    )
    assert first.route_table_id == vcn.default_route_table_id
    assert first.security_list_ids == [vcn.default_security_list_id]


def test_nsg_rules_are_added_and_removed(world, refused):
    net, vcn = world.network, world.vcn()
    group, peers = world.group(vcn), world.group(vcn)
    rules = [
        tcp(direction="INGRESS", source="192.0.2.1/32", source_type="CIDR_BLOCK"),
        tcp(direction="INGRESS", source=peers.id, source_type="NETWORK_SECURITY_GROUP"),
        models.AddSecurityRuleDetails(direction="EGRESS", protocol="all", destination=WORLD),
    ]
    for _ in range(2):  # no token: they add up
        added = net.add_network_security_group_security_rules(
            group.id, GROUP_RULES(security_rules=rules)
        ).data
    listed = every(net.list_network_security_group_security_rules, group.id).data
    assert [rule.id for rule in listed][3:] == [rule.id for rule in added.security_rules]
    ingress = every(net.list_network_security_group_security_rules, group.id, direction="INGRESS").data
    assert {rule.source for rule in ingress} == {"192.0.2.1/32", peers.id}
    net.delete_network_security_group(peers.id)
    listed = every(net.list_network_security_group_security_rules, group.id).data
    assert [rule.is_valid for rule in listed] == [True, False, True] * 2
    remove = models.RemoveNetworkSecurityGroupSecurityRulesDetails(
        security_rule_ids=[rule.id for rule in listed[1:]]
    )
    net.remove_network_security_group_security_rules(group.id, remove)
    left = every(net.list_network_security_group_security_rules, group.id).data
    assert [rule.id for rule in left] == [listed[0].id]
    refused(
        404, "NotAuthorizedOrNotFound", net.remove_network_security_group_security_rules, group.id, remove
    )


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"direction": "INGRESS"}, "source is required"),
        ({"direction": "INGRESS", "source": WORLD, "destination": WORLD}, "destination must not"),
        ({"direction": "EGRESS", "destination": "10.0.0.1/8"}, "no valid CIDR"),
    ],
)
def test_nsg_refuses_and_names_an_invalid_rule(world, refused, rule, words):
    group = world.group(world.vcn())
    details = GROUP_RULES(security_rules=[tcp(direction="EGRESS", destination=WORLD), tcp(**rule)])
    code = "MissingParameter" if "required" in words else "InvalidParameter"
    result = refused(400, code, world.network.add_network_security_group_security_rules, group.id, details)
    assert "securityRules[1]" in result
    assert words in result
    assert every(world.network.list_network_security_group_security_rules, group.id).data == []


def test_nsg_refuses_tcp_options_of_another_protocol(world, refused):
    group = world.group(world.vcn())
    wrong = tcp(direction="INGRESS", source=WORLD)
    wrong.protocol = "17"
    result = refused(
        400,
        "InvalidParameter",
        world.network.add_network_security_group_security_rules,
        group.id,
        GROUP_RULES(security_rules=[wrong]),
    )
    assert "securityRules[0].tcpOptions" in result


def test_missing_resource_answers_404(world, refused):
    missing = "ocid1.vcn.oc1.eu-frankfurt-1.aaaa"
    refused(404, "NotAuthorizedOrNotFound", world.network.get_vcn, missing)
    refused(404, "NotAuthorizedOrNotFound", world.network.delete_vcn, missing)
    refused(404, "NotAuthorizedOrNotFound", world.network.list_vcns, "ocid1.compartment.oc1..other")
