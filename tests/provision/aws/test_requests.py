"""The requests to AWS, compared as they are, and what decides about them."""

import json
from typing import Any

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from inventories.errors import InvalidInput
from provision.aws import instances, preview, quotas, requests, shapes
from provision.aws.images import lookup
from provision.aws.infrastructure import security_group
from provision.records import Infrastructure, NewMachine, Offer, Zone
from tests.provision.aws.building import USER_DATA, a_cluster

GROUND = Infrastructure(ids={"vpc": "vpc-1", "subnet": "subnet-1", "security_group": "sg-1", "key": "a-key"})
ZONE = Zone(name="us-east-1b")
ONE_EFA = {"efa_cards": [0], "first_card_interfaces": 15}
NO_EFA = {"efa_cards": [], "first_card_interfaces": 4}
P4D = {"efa_cards": [0, 1, 2, 3], "first_card_interfaces": 15}
P6_B300 = {"efa_cards": list(range(1, 17)), "first_card_interfaces": 4}


def an_offer(shape: str = "g5.12xlarge", **facts: Any) -> Offer:
    return Offer(
        shape=shape,
        gpus=4,
        image_id="ami-1",
        image_name="Deep Learning Base AMI",
        user="ubuntu",
        disk_gb=200,
        zones=(ZONE,),
        hourly_usd=5.672,
        facts={"root_device": "/dev/sda1", "other_devices": [], "placement_group": True, **ONE_EFA, **facts},
    )


def machines(*ranks: int) -> list[NewMachine]:
    return [NewMachine(name=f"demo-{rank}", rank=rank, user_data=USER_DATA) for rank in ranks]


def pairs(**tags: str) -> list[dict[str, str]]:
    return [{"Key": key.replace("_", "-"), "Value": value} for key, value in tags.items()]


def test_run_instances_request_is_exact() -> None:
    cluster = a_cluster(image="Deep Learning *", expires_at="2026-11-21T13:00:00Z")
    infrastructure = Infrastructure(ids={**GROUND.ids, "placement_group": "a-group"})
    tags = pairs(
        gpuctl="demo",
        gpuctl_cluster_id="a1b2c3d4e5f60718",
        gpuctl_owner="somebody@somewhere",
        gpuctl_expires="2026-11-21T13:00:00Z",
        gpuctl_launch="token",
        gpuctl_ranks="0-1,3",
        gpuctl_image="Deep Learning *",
        Name="demo",
    )
    kinds = ("instance", "volume", "network-interface")
    assert requests.run_instances(cluster, an_offer(), infrastructure, ZONE, "token", machines(0, 1, 3)) == {
        "ImageId": "ami-1",
        "InstanceType": "g5.12xlarge",
        "MinCount": 3,
        "MaxCount": 3,
        "ClientToken": "token",
        "KeyName": "a-key",
        "Placement": {"AvailabilityZone": "us-east-1b", "GroupName": "a-group"},
        "NetworkInterfaces": [
            {
                "NetworkCardIndex": 0,
                "DeviceIndex": 0,
                "InterfaceType": "efa",
                "SubnetId": "subnet-1",
                "Groups": ["sg-1"],
                "DeleteOnTermination": True,
                "AssociatePublicIpAddress": True,
            }
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                    "VolumeSize": 200,
                },
            }
        ],
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
        },
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in kinds],
        "UserData": USER_DATA,
    }


def test_run_instances_for_spot_is_one_time_and_tags_the_request() -> None:
    cluster = a_cluster(spot=True)
    request = requests.run_instances(cluster, an_offer(), GROUND, ZONE, "token", machines(0))
    assert request["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }
    assert [entry["ResourceType"] for entry in request["TagSpecifications"]] == [
        "instance",
        "volume",
        "network-interface",
        "spot-instances-request",
    ]


def test_run_instances_of_one_machine_tags_its_own_name() -> None:
    request = requests.run_instances(a_cluster(), an_offer(), GROUND, ZONE, "token", machines(3))
    tags = request["TagSpecifications"][0]["Tags"]
    assert tags[-1] == {"Key": "Name", "Value": "demo-3"}
    assert {"Key": "gpuctl-ranks", "Value": "3"} in tags


def test_run_instances_deletes_image_disks_on_termination() -> None:
    offer = an_offer(other_devices=["/dev/sdb"])
    request = requests.run_instances(a_cluster(), offer, GROUND, ZONE, "token", machines(0))
    assert request["BlockDeviceMappings"][1] == {
        "DeviceName": "/dev/sdb",
        "Ebs": {"VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True},
    }


def test_run_instances_truncates_a_long_image_tag() -> None:
    cluster = a_cluster(image="/aws/service/" + "x" * 300)
    request = requests.run_instances(cluster, an_offer(), GROUND, ZONE, "token", machines(0))
    (image,) = [t for t in request["TagSpecifications"][0]["Tags"] if t["Key"] == "gpuctl-image"]
    assert len(image["Value"]) == requests.MAX_TAG_VALUE


def card(index: int, device: int, kind: str | None = None) -> dict[str, Any]:
    zone = {"NetworkCardIndex": index, "DeviceIndex": device}
    return zone | ({"InterfaceType": kind} if kind else {})


@pytest.mark.parametrize(
    ("facts", "public", "expected"),
    [
        (NO_EFA, True, [card(0, 0)]),
        (NO_EFA, False, [card(0, 0)]),
        (ONE_EFA, True, [card(0, 0, "efa")]),
        (ONE_EFA, False, [card(0, 0, "efa")]),
        # With a public address there can be only one interface.
        (P4D, True, [card(0, 0, "efa")]),
        (P6_B300, True, [card(0, 0)]),
        (
            P4D,
            False,
            [card(0, 0), card(0, 1, "efa-only"), *(card(index, 0, "efa-only") for index in (1, 2, 3))],
        ),
        (P6_B300, False, [card(0, 0), *(card(index, 0, "efa-only") for index in range(1, 17))]),
        (
            {"efa_cards": [0, 1], "first_card_interfaces": 1},
            False,
            [card(0, 0, "efa"), card(1, 0, "efa-only")],
        ),
    ],
)
def test_efa_layout_returns_interfaces_per_network_card(
    facts: dict[str, Any], public: bool, expected: list[dict[str, Any]]
) -> None:
    assert requests.efa_layout(facts, public=public) == expected


def test_run_instances_sets_public_ip_only_on_the_first_interface() -> None:
    cluster = a_cluster("p4d.24xlarge", public_ip=False, subnet_id="subnet-1")
    request = requests.run_instances(
        cluster, an_offer("p4d.24xlarge", **P4D), GROUND, ZONE, "token", machines(0)
    )
    first, *rest = request["NetworkInterfaces"]
    assert first["AssociatePublicIpAddress"] is False
    assert all("AssociatePublicIpAddress" not in interface for interface in rest)
    assert all(interface["Groups"] == ["sg-1"] for interface in rest)


def test_subnet_cidr_gives_each_zone_a_free_range() -> None:
    assert requests.subnet_cidr("us-east-1a", ()) == "10.77.0.0/20"
    assert requests.subnet_cidr("us-east-1f", ()) == "10.77.80.0/20"
    assert requests.subnet_cidr("us-east-1a", ["10.77.0.0/20"]) == "10.77.16.0/20"
    everything = [f"10.77.{16 * block}.0/20" for block in range(16)]
    assert requests.subnet_cidr("us-east-1a", everything) == "10.77.0.0/20"
    assert requests.subnet_cidr("us-east-1a", (), private=True) == "10.77.128.0/20"
    assert requests.subnet_cidr("us-east-1b", ["10.77.144.0/20"], private=True) == "10.77.160.0/20"


def test_single_rules_splits_aws_rules_into_single_sources() -> None:
    cluster = a_cluster(ssh_cidrs=("198.51.100.7/32", "2001:db8::1/128"), ssh_port=2222)
    expected = requests.rules_in(cluster, "sg-1")
    assert expected == [
        {"IpProtocol": "tcp", "FromPort": 2222, "ToPort": 2222, "IpRanges": [{"CidrIp": "198.51.100.7/32"}]},
        {
            "IpProtocol": "tcp",
            "FromPort": 2222,
            "ToPort": 2222,
            "Ipv6Ranges": [{"CidrIpv6": "2001:db8::1/128"}],
        },
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]},
    ]
    described: list[dict[str, Any]] = [
        {
            "IpProtocol": "tcp",
            "FromPort": 2222,
            "ToPort": 2222,
            "IpRanges": [{"CidrIp": "198.51.100.7/32", "Description": "mine"}],
            "Ipv6Ranges": [{"CidrIpv6": "2001:db8::1/128"}],
            "UserIdGroupPairs": [],
            "PrefixListIds": [],
        },
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1", "UserId": "123456789012"}]},
    ]
    assert security_group.single_rules(described) == expected


def valid(operation: str, request: dict[str, Any]) -> None:
    """Check a request against botocore's description of EC2."""
    model = ServiceModel(Loader().load_service_model("ec2", "service-2"), "ec2")
    shape = model.operation_model(operation).input_shape
    assert shape
    report = ParamValidator().validate(request, shape)
    assert not report.has_errors(), report.generate_report()


def test_preview_shows_valid_requests_without_user_data() -> None:
    cluster = a_cluster(spot=True)
    shown = preview.preview(cluster, an_offer(), machines(0, 1), ()).requests
    assert [request.operation for request in shown] == [
        "CreateVpc",
        "CreateInternetGateway",
        "AttachInternetGateway",
        "CreateRouteTable",
        "CreateRoute",
        "CreateSubnet",
        "AssociateRouteTable",
        "CreateSecurityGroup",
        "AuthorizeSecurityGroupIngress",
        "AuthorizeSecurityGroupEgress",
        "ImportKeyPair",
        "CreatePlacementGroup",
        "RunInstances",
    ]
    for request in shown:
        body = json.loads(json.dumps(dict(request.body)))
        if request.operation == "ImportKeyPair":
            body["PublicKeyMaterial"] = body["PublicKeyMaterial"].encode()
        valid(request.operation, body)
    launch = shown[-1].body
    assert (launch["MinCount"], launch["MaxCount"], launch["UserData"]) == (2, 2, "<user-data>")


def test_preview_in_an_existing_subnet_creates_no_network() -> None:
    cluster = a_cluster(subnet_id="subnet-9")
    facts: dict[str, Any] = {
        "subnet": {"vpc": "vpc-9", "zone": "us-east-1b"},
        "placement_group": False,
        **NO_EFA,
    }
    shown = preview.preview(cluster, an_offer(**facts), machines(0), ()).requests
    assert [request.operation for request in shown] == [
        "CreateSecurityGroup",
        "AuthorizeSecurityGroupIngress",
        "ImportKeyPair",
        "RunInstances",
    ]
    assert shown[0].body["VpcId"] == "vpc-9"
    assert shown[-1].body["NetworkInterfaces"][0]["SubnetId"] == "subnet-9"


PRIVATE_NETWORK = [
    "CreateVpc",
    "CreateInternetGateway",
    "AttachInternetGateway",
    "CreateRouteTable",
    "CreateRoute",
    "CreateSubnet",
    "AssociateRouteTable",
    "AllocateAddress",
    "CreateNatGateway",
    "CreateRouteTable",
    "CreateSubnet",
    "AssociateRouteTable",
    "CreateVpcEndpoint",
    "CreateRoute",
]


def test_preview_of_a_private_network_shows_valid_requests() -> None:
    cluster = a_cluster("p4d.24xlarge", public_ip=False)
    shown = preview.preview(cluster, an_offer("p4d.24xlarge", **P4D), machines(0, 1), ()).requests
    assert [request.operation for request in shown][: len(PRIVATE_NETWORK)] == PRIVATE_NETWORK
    for request in shown:
        body = dict(request.body)
        if request.operation == "ImportKeyPair":
            body["PublicKeyMaterial"] = body["PublicKeyMaterial"].encode()
        valid(request.operation, body)
    interfaces = shown[-1].body["NetworkInterfaces"]
    assert {interface["SubnetId"] for interface in interfaces} == {"<private subnet>"}
    kinds = [interface.get("InterfaceType", "interface") for interface in interfaces]
    assert kinds == ["interface"] + ["efa-only"] * 4


NETWORK_TAGS = {"gpuctl": "@network", "gpuctl-owner": "somebody@somewhere", "gpuctl-tier": "private"}


def private_tags(kind: str, name: str) -> list[dict[str, Any]]:
    tags = [{"Key": key, "Value": value} for key, value in {**NETWORK_TAGS, "Name": name}.items()]
    return [{"ResourceType": kind, "Tags": tags}]


def test_private_network_requests_are_exact() -> None:
    cluster = a_cluster(public_ip=False)
    assert requests.elastic_ip(cluster) == {
        "Domain": "vpc",
        "TagSpecifications": private_tags("elastic-ip", "gpuctl private"),
    }
    assert requests.nat_gateway(cluster, "subnet-1", "eipalloc-1", "token") == {
        "SubnetId": "subnet-1",
        "AllocationId": "eipalloc-1",
        "ClientToken": "token",
        "TagSpecifications": private_tags("natgateway", "gpuctl private"),
    }
    assert requests.s3_endpoint(cluster, "vpc-1", "rtb-1", "token") == {
        "VpcEndpointType": "Gateway",
        "VpcId": "vpc-1",
        "ServiceName": "com.amazonaws.us-east-1.s3",
        "RouteTableIds": ["rtb-1"],
        "ClientToken": "token",
        "TagSpecifications": private_tags("vpc-endpoint", "gpuctl private"),
    }
    assert requests.subnet(cluster, "vpc-1", "us-east-1b", "10.77.144.0/20", private=True) == {
        "VpcId": "vpc-1",
        "AvailabilityZone": "us-east-1b",
        "CidrBlock": "10.77.144.0/20",
        "TagSpecifications": private_tags("subnet", "gpuctl private us-east-1b"),
    }
    assert requests.default_route("rtb-1", requests.gateway_field("nat-1", private=True)) == {
        "RouteTableId": "rtb-1",
        "DestinationCidrBlock": "0.0.0.0/0",
        "NatGatewayId": "nat-1",
    }
    assert requests.cluster_tags(cluster)["gpuctl-tier"] == "private"


def test_cluster_tags_mark_only_our_private_subnets_as_private() -> None:
    for cluster in (a_cluster(), a_cluster(public_ip=False, subnet_id="subnet-1")):
        assert "gpuctl-tier" not in requests.cluster_tags(cluster)


def test_preview_notes_warn_of_unused_efa_and_nat_price() -> None:
    offer = an_offer("p4d.24xlarge", **P4D)
    (efa,) = preview.notes(a_cluster("p4d.24xlarge"), offer)
    assert efa.startswith("1 of the 4 EFA interfaces of p4d.24xlarge will be used")
    assert "--no-public-ip" in efa
    assert preview.notes(a_cluster("p4d.24xlarge", public_ip=False, subnet_id="subnet-1"), offer) == ()
    (nat,) = preview.notes(a_cluster("p4d.24xlarge", public_ip=False), offer)
    assert "NAT gateway" in nat
    assert "$0.045 an hour" in nat
    assert preview.outline(a_cluster("p4d.24xlarge", public_ip=False)).notes == (nat,)


def test_efa_cards_lists_cards_that_support_efa() -> None:
    cards = [{"NetworkCardIndex": index, "MaximumNetworkInterfaces": 2} for index in range(3)]
    network = {"EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": 3}, "NetworkCards": cards}
    assert shapes.efa_cards(network) == [0, 1, 2]
    assert shapes.efa_cards(network | {"EfaInfo": {"MaximumEfaInterfaces": 2}}) == [1, 2]
    named = [card | {"InterfaceTypes": ["interface", "efa"][: 1 + bool(i)]} for i, card in enumerate(cards)]
    assert shapes.efa_cards(network | {"NetworkCards": named}) == [1, 2]
    assert shapes.efa_cards({"EfaSupported": False}) == []
    assert shapes.efa_cards({}) == []


def test_dearest_now_returns_the_latest_price_of_the_dearest_zone() -> None:
    history = [
        {"AvailabilityZone": zone, "SpotPrice": price, "Timestamp": at}
        for zone, price, at in (("a", "2.1", 2), ("a", "9.9", 1), ("b", "2.3", 2), ("c", "5.0", 2))
    ]
    assert shapes.dearest_now(history, {"a", "b"}) == 2.3
    assert shapes.dearest_now(history, {"a", "d"}) is None, "any of them may be the one"
    assert shapes.dearest_now([], set()) is None


def test_in_order_puts_available_zones_first() -> None:
    states = {"b": "available", "a": "impaired", "c": "available", "d": "unavailable"}
    assert shapes.in_order(["a", "b", "c", "d", "local-1"], states) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("text", "parameter", "name"),
    [
        ("/aws/service/x/ami-id", "/aws/service/x/ami-id", None),
        ("resolve:ssm:/aws/service/x", "/aws/service/x", None),
        ("ssm:my-parameter", "my-parameter", None),
        ("my image", None, "my image"),
    ],
)
def test_source_of_distinguishes_ssm_parameters_from_image_names(
    text: str, parameter: str | None, name: str | None
) -> None:
    assert lookup.source_of(text) == lookup.Source(parameter=parameter, name=name)


def test_nvidia_gpus_counts_only_nvidia_gpus() -> None:
    amd = {"GpuInfo": {"Gpus": [{"Name": "Radeon Pro V520", "Manufacturer": "AMD", "Count": 2}]}}
    t4 = {"GpuInfo": {"Gpus": [{"Name": "T4", "Manufacturer": "NVIDIA", "Count": 4}]}}
    assert [(shapes.gpus(item), shapes.nvidia_gpus(item)) for item in (amd, t4, {})] == [
        (2, 0),
        (4, 4),
        (0, 0),
    ]


def test_default_images_depend_on_architecture_and_driver() -> None:
    deep = lookup.with_driver("x86_64")
    assert deep.parameter == (
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    )
    assert deep.owners == ("amazon",)
    assert "arm64" in (lookup.with_driver("arm64").parameter or "")
    assert lookup.plain("arm64").owners == (lookup.CANONICAL,)


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("Deep Learning Base Proprietary Nvidia Driver AMI (Amazon Linux 2) Version 71.6", 1),
        ("amzn2-ami-kernel-5.10-hvm-2.0.20260601.0-x86_64-gp2", 1),
        ("Deep Learning Base OSS Nvidia Driver GPU AMI (Amazon Linux 2023) 20260701", 0),
        ("al2023-ami-2023.9.20260629.0-kernel-6.1-x86_64", 0),
        ("Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20260701", 0),
    ],
)
def test_boot_commands_install_python38_only_on_amazon_linux_2(name: str, commands: int) -> None:
    report = lookup.boot_commands({"ImageId": "ami-1", "Name": name})
    assert ["python3.8" in command for command in report] == [True] * commands


def test_newest_prefers_the_exact_image_name() -> None:
    old = {"ImageId": "ami-1", "Name": "mine", "CreationDate": "2026-01-01"}
    new = {"ImageId": "ami-2", "Name": "mine too", "CreationDate": "2026-02-01"}
    assert lookup.newest([old, new], "mine") == old
    assert lookup.newest([old, new], "m*") == new
    assert lookup.newest([], "mine") is None


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20260701", "ubuntu"),
        ("Deep Learning Base Proprietary Nvidia Driver AMI (Amazon Linux 2) Version 71.6", "ec2-user"),
        ("al2023-ami-2023.9.20260629.0-kernel-6.1-x86_64", "ec2-user"),
        ("debian-12-amd64-20260101", "admin"),
        ("something of my own", "ubuntu"),
    ],
)
def test_user_of_returns_the_login_user_of_an_image(name: str, user: str) -> None:
    assert lookup.user_of({"Name": name}) == user


def test_disk_gb_defaults_to_200_and_refuses_less_than_the_image() -> None:
    image = {
        "ImageId": "ami-1",
        "RootDeviceName": "/dev/xvda",
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 75}},
            {"DeviceName": "/dev/xvdb", "Ebs": {"VolumeSize": 500}},
            {"DeviceName": "/dev/xvdc", "VirtualName": "ephemeral0"},
        ],
    }
    assert lookup.disk_gb(image, None) == 200
    assert lookup.disk_gb(image, 100) == 100
    with pytest.raises(InvalidInput, match="Give --disk-gb 75 or more"):
        lookup.disk_gb(image, 50)
    image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] = 300  # type: ignore[index]
    assert lookup.disk_gb(image, None) == 300
    assert lookup.facts(image) == {
        "root_device": "/dev/xvda",
        "other_devices": ["/dev/xvdb"],
        "other_disks_gb": 500,
    }


@pytest.mark.parametrize(
    ("shape", "code", "spot_code"),
    [
        ("g5.12xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("gr6.4xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("p4d.24xlarge", "L-417A185B", "L-7212CCBC"),
        ("p5en.48xlarge", "L-417A185B", "L-C4BD4855"),
        ("p6-b200.48xlarge", "L-417A185B", None),
        ("t3.micro", "L-1216C47A", "L-34B43A08"),
        ("x2idn.large", None, None),
    ],
)
def test_quota_of_returns_the_documented_code_of_a_shape(
    shape: str, code: str | None, spot_code: str | None
) -> None:
    result = [quota and quota[0] for quota in (quotas.quota_of(shape, spot=spot) for spot in (False, True))]
    assert result == [code, spot_code]


def test_instance_with_invalid_tags_is_read_without_rank() -> None:
    from datetime import UTC, datetime

    item = {
        "InstanceId": "i-1",
        "State": {"Name": "shutting-down"},
        "InstanceType": "g5.xlarge",
        "LaunchTime": datetime(2026, 11, 21, 9, 0, tzinfo=UTC),
        "AmiLaunchIndex": 7,
        "Tags": [{"Key": "gpuctl", "Value": ""}, {"Key": "gpuctl-ranks", "Value": "0-x"}],
        "StateReason": {
            "Code": "Client.UserInitiatedShutdown",
            "Message": "Client.UserInitiatedShutdown: User initiated shutdown",
        },
    }
    instance = instances.read(item)
    assert (instance.rank, instance.state, instance.alive) == (None, "ending", False)
    assert instance.reason == "Client.UserInitiatedShutdown: User initiated shutdown"
    assert instance.launched_at == "2026-11-21T09:00:00+00:00"
