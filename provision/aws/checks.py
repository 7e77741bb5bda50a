"""Checks of `doctor` on AWS. Read-only: dry runs show the permissions."""

import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import environ
from pathlib import Path
from typing import Any

from inventories.errors import InvalidInput
from inventories.threads import run_all
from provision.aws import instances, quotas, requests, shapes
from provision.aws.api import Api, versions
from provision.aws.errors import SCALING_ROLE, key_hint
from provision.aws.requests import filters, tags_in
from provision.aws.resources.resource_types import KINDS, listed
from provision.errors import (
    AccountNotReady,
    CloudError,
    Denied,
    Gone,
    ProvisionError,
    Throttled,
    Unclear,
)
from provision.findings import Finding, refusal, run_checks
from provision.records import CloudCluster, Infrastructure, NewMachine, Offer
from provision.rented import tags

MOST_AHEAD_S = 60.0
"""AWS refuses requests that are more than five minutes off."""

AWS_MANAGED = "alias/aws/ebs"


def check(
    api: Api, cluster: CloudCluster, count: int, offer: Callable[[CloudCluster], Offer]
) -> tuple[Finding, ...]:
    """Return all findings, the plainest first, without checks whose precondition failed."""
    first = (sdk(), _credentials_file())
    identity = _credentials(api)
    if not identity.ok:
        return (*first, identity)
    offered, finding = _offer(cluster, offer)
    checks: dict[str, Callable[[], Finding]] = {
        "clock": lambda: _clock(api),
        "permissions to read": lambda: _reading(api),
        "permissions to change": lambda: _changing(api, cluster, offered),
        "key of disks": lambda: disk_key(api),
    }
    if cluster.subnet_id is None:
        checks["VPCs"] = lambda: _vpcs(api)
    if offered:
        checks[f"quota for {count} {cluster.shape}"] = lambda: _quota(api, cluster, count)
    return (*first, identity, finding, *run_checks(checks))


def sdk() -> Finding:
    """Return the finding on the SDK."""
    return Finding(what="SDK", ok=True, detail=versions())


def _credentials_file() -> Finding:
    path = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
    title = "credentials file"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return Finding(what=title, ok=True, detail=f"There is no '{path}'.")
    if mode & 0o077 and path.stat().st_size:
        detail = f"'{path}' has mode {mode:04o}: others can read it."
        return Finding(what=title, ok=False, detail=detail, fix=f"Run `chmod 600 {path}`.")
    return Finding(what=title, ok=True, detail=f"'{path}' has mode {mode:04o}.")


def _credentials(api: Api) -> Finding:
    try:
        answer = api.call("get_caller_identity", service="sts")
    except (Throttled, Unclear) as error:
        return Finding(what="credentials", ok=None, detail=str(error))
    except CloudError as error:
        return Finding(
            what="credentials",
            ok=False,
            detail=str(error),
            fix="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with `aws configure` or `aws sso login`.",
        )
    return Finding(what="credentials", ok=True, detail=f"{answer['Arn']} in {api.region}.")


def _offer(cluster: CloudCluster, offer: Callable[[CloudCluster], Offer]) -> tuple[Offer | None, Finding]:
    title = "shape and image"
    try:
        offered = offer(cluster)
    except (ProvisionError, InvalidInput) as error:
        return None, refusal(error, title)
    zones = ", ".join(str(zone) for zone in offered.zones)
    detail = f"{offered.shape} ({offered.gpus} GPUs) in {zones}; {offered.image_name} ({offered.image_id})."
    return offered, Finding(what=title, ok=True, detail=detail)


def _clock(api: Api) -> Finding:
    ahead_s = api.ahead_s()
    side = "ahead of" if ahead_s > 0 else "behind"
    detail = f"This computer's clock is {abs(ahead_s):.0f} s {side} AWS's."
    if abs(ahead_s) < MOST_AHEAD_S:
        return Finding(ok=True, detail=detail)
    return Finding(ok=False, detail=detail, fix="Set it, as AWS refuses requests of another time.")


def _reading(api: Api) -> Finding:
    """Return the finding on the lists that `up` and `down` read."""
    lists: list[tuple[str, Callable[[], object]]] = [
        (kind.list, partial(listed, api, kind)) for kind in KINDS.values()
    ]
    lists.append(("describe_instances", partial(instances.listed, api, None)))
    outcomes = run_all(lambda check: check[1](), lists)
    return _permitted([(name, outcome) for (name, _), outcome in zip(lists, outcomes, strict=True)])


def _changing(api: Api, cluster: CloudCluster, offer: Offer | None) -> Finding:
    """Return the finding on a dry run of each call that AWS can try.

    The delete and modify calls use ids that cannot exist. AWS may look for the resource before the permission; then
    only a refusal is an answer.
    """
    calls = _dry_runs(cluster, offer)
    outcomes = run_all(lambda call: _dry_run(api, *call), calls)
    return _permitted([(name, outcome) for (name, _), outcome in zip(calls, outcomes, strict=True)])


def _permitted(outcomes: Sequence[tuple[str, object]]) -> Finding:
    """Return the finding on calls by their outcomes: other errors than Denied show no missing permission."""
    refused = [outcome.named or (_action(name),) for name, outcome in outcomes if isinstance(outcome, Denied)]
    denied = list(dict.fromkeys(action for actions in refused for action in actions))
    not_ready = next((outcome for _, outcome in outcomes if isinstance(outcome, AccountNotReady)), None)
    if not_ready is not None:
        return Finding(ok=False, detail=str(not_ready))
    absent = [_action(name) for name, outcome in outcomes if isinstance(outcome, Gone)]
    unclear = {
        _action(name): str(outcome)
        for name, outcome in outcomes
        if isinstance(outcome, Exception) and not isinstance(outcome, Denied | Gone)
    }
    sentences = [f"Not allowed: {', '.join(denied)}."] if denied else []
    if absent:
        sentences.append(f"Not known of {', '.join(absent)}: there is nothing to try that on.")
    if unclear:
        sentences.append(f"Not found out of {', '.join(unclear)}: {next(iter(unclear.values()))}")
    if not sentences:
        return Finding(ok=True, detail=f"All of {len(outcomes)} calls are allowed.")
    fix = f"Ask whoever runs the account to allow {', '.join(denied)}." if denied else ""
    return Finding(ok=False if denied else None, detail=" ".join(sentences), fix=fix)


def _action(name: str) -> str:
    return "ec2:" + "".join(word.capitalize() for word in name.split("_"))


def _dry_run(api: Api, operation: str, request: Mapping[str, Any]) -> None:
    """Make a dry run of a call. Returns if AWS would have done it."""
    try:
        api.call(operation, again=True, DryRun=True, **request)
    except CloudError as error:
        if error.code == "DryRunOperation":
            return
        raise
    raise CloudError(f"{_action(operation)} in {api.region} was answered as if it were no dry run.")


def _dry_runs(cluster: CloudCluster, offer: Offer | None) -> list[tuple[str, Mapping[str, Any]]]:
    """Return boto3's name and the request of each call, with ids that cannot exist."""
    nothing = "0" * 17
    vpc, subnet, table, gateway = (f"{kind}-{nothing}" for kind in ("vpc", "subnet", "rtb", "igw"))
    group = {"GroupId": f"sg-{nothing}"}
    key = requests.key_pair(cluster, "ssh-ed25519 AAAA")
    placement = requests.placement_group(cluster, nothing)
    vpc_id = offer.facts["subnet"]["vpc"] if offer and "subnet" in offer.facts else vpc
    rules = {"IpPermissions": [requests.ssh_rule("192.0.2.1/32", cluster.ssh_port)]}
    calls: list[tuple[str, Mapping[str, Any]]] = [
        ("import_key_pair", key),
        ("create_placement_group", placement),
        ("create_security_group", requests.security_group(cluster, vpc_id)),
        ("authorize_security_group_ingress", group | rules),
        ("revoke_security_group_ingress", group | rules),
        ("terminate_instances", {"InstanceIds": [f"i-{nothing}"]}),
        ("delete_volume", {"VolumeId": f"vol-{nothing}"}),
        ("delete_network_interface", {"NetworkInterfaceId": f"eni-{nothing}"}),
        ("delete_security_group", group),
        ("delete_key_pair", {"KeyName": key["KeyName"]}),
        ("delete_placement_group", {"GroupName": placement["GroupName"]}),
    ]
    if offer is not None and offer.facts["efa_cards"]:
        calls.append(("authorize_security_group_egress", group | rules))
    if cluster.subnet_id is None:
        attachment = {"InternetGatewayId": gateway, "VpcId": vpc}
        calls += [
            ("create_vpc", requests.vpc(cluster)),
            ("create_internet_gateway", requests.internet_gateway(cluster)),
            ("attach_internet_gateway", attachment),
            ("create_route_table", requests.route_table(cluster, vpc, nothing)),
            ("create_route", requests.default_route(table, requests.gateway_field(gateway))),
            ("create_subnet", requests.subnet(cluster, vpc, f"{cluster.target.region}a", "10.77.0.0/20")),
            ("associate_route_table", {"RouteTableId": table, "SubnetId": subnet}),
            ("delete_subnet", {"SubnetId": subnet}),
            ("delete_route_table", {"RouteTableId": table}),
            ("detach_internet_gateway", attachment),
            ("delete_internet_gateway", {"InternetGatewayId": gateway}),
            ("delete_vpc", {"VpcId": vpc}),
        ]
    if requests.is_private(cluster):
        address, nat, endpoint = (f"{kind}-{nothing}" for kind in ("eipalloc", "nat", "vpce"))
        calls += [
            ("allocate_address", requests.elastic_ip(cluster)),
            ("create_nat_gateway", requests.nat_gateway(cluster, subnet, address, nothing)),
            ("create_vpc_endpoint", requests.s3_endpoint(cluster, vpc, table, nothing)),
            ("modify_vpc_endpoint", {"VpcEndpointId": endpoint, "AddRouteTableIds": [table]}),
            ("delete_vpc_endpoints", {"VpcEndpointIds": [endpoint]}),
            ("delete_nat_gateway", {"NatGatewayId": nat}),
            ("release_address", {"AllocationId": address}),
        ]
    if offer is not None:
        infrastructure = Infrastructure(ids={"subnet": "", "security_group": "", "key": ""})
        machine = NewMachine(name=cluster.name, rank=0, user_data="")
        launch = requests.run_instances(cluster, offer, infrastructure, offer.zones[0], "dry-run", [machine])
        for name in ("NetworkInterfaces", "KeyName", "UserData", "ClientToken", "Placement"):
            del launch[name]
        calls.append(
            ("run_instances", launch | ({"SubnetId": cluster.subnet_id} if cluster.subnet_id else {}))
        )
    return calls


def _vpcs(api: Api) -> Finding:
    """Return the finding on the number of VPCs, of which an account may have few."""
    vpcs = api.pages("describe_vpcs", "Vpcs", Filters=[])
    our_vpcs = [vpc for vpc in vpcs if tags.is_shared(tags_in(vpc))]
    if our_vpcs:
        return Finding(ok=True, detail=f"gpuctl's is {our_vpcs[0]['VpcId']}.")
    limit = quotas.value(api, "vpc", quotas.VPCS_CODE)
    if limit is None:
        return Finding(ok=None, detail=f"{len(vpcs)} in {api.region}; how many there may be is not known.")
    if len(vpcs) < limit:
        return Finding(ok=True, detail=f"{len(vpcs)} of {limit:g} in {api.region}; gpuctl makes one.")
    return Finding(
        ok=False,
        detail=f"There are {len(vpcs)} in {api.region}, which is all that the account may have; gpuctl makes one.",
        fix=f"Remove one, ask for more (quota {quotas.VPCS_CODE}), or give --subnet-id.",
    )


def disk_key(api: Api, *, scaling: bool = False) -> Finding:
    """Return the finding on the key of new disks, which may keep machines from starting.

    gpuctl asks for encrypted disks and names no key, so EBS takes the account's default key, which may be
    customer-managed. AWS starts no machine whose disk has a key that the launching principal may not use: it ends the
    machine with `Client.InternalError`.
    Sources: https://repost.aws/knowledge-center/kms-iam-ec2-permission (the error),
    https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html (for users),
    https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html (for the role).
    `scaling`: Auto Scaling launches the machines, as for EKS, and not the caller.
    """
    key = str(api.call("get_ebs_default_kms_key_id")["KmsKeyId"])
    if key.endswith(AWS_MANAGED):
        return Finding(ok=True, detail=f"EBS encrypts disks with AWS's own key ({AWS_MANAGED}).")
    user = SCALING_ROLE if scaling else "you"
    try:
        described = api.call("describe_key", service="kms", again=True, KeyId=key)["KeyMetadata"]
    except CloudError as error:
        detail = f"EBS encrypts disks with the key {key}, and whether {user} may use it is not known. {error}"
        return Finding(ok=None, detail=detail, fix=key_hint(scaling=scaling))
    if described["KeyManager"] == "AWS":
        return Finding(ok=True, detail=f"EBS encrypts disks with AWS's own key {key}.")
    if described["KeyState"] != "Enabled":
        return Finding(
            ok=False,
            detail=f"EBS encrypts disks with the key {key}, which is {described['KeyState']}: no machine can start.",
            fix="Enable the key in the KMS console, or choose another default key of EBS in the EC2 console.",
        )
    return Finding(
        ok=None,
        detail=f"EBS encrypts disks with the customer-managed key {key}. Whether {user} may use it is not known.",
        fix=key_hint(scaling=scaling),
    )


def _quota(api: Api, cluster: CloudCluster, count: int) -> Finding:
    """Return the finding on the vCPUs of the shape's family: quota, use, and the cluster's need."""
    described = shapes.describe(api, cluster.shape)
    needed = int(described.get("VCpuInfo", {}).get("DefaultVCpus", 0)) * count
    quota = quotas.instance_quota(api, cluster.shape, spot=cluster.spot)
    if quota is None:
        machines = f"spot machines of {cluster.shape}" if cluster.spot else cluster.shape
        return Finding(ok=None, detail=f"AWS documents no quota for {machines}; {needed} vCPUs are needed.")
    if quota.vcpus is None:
        return Finding(
            ok=None,
            detail=f"The value of the quota '{quota.name}' ({quota.code}) is not known; {needed} vCPUs are needed.",
        )
    code = quotas.quota_of(cluster.shape, spot=cluster.spot)
    states = filters(instance_state_name=["pending", "running"])
    reservations = api.pages("describe_instances", "Reservations", Filters=states)
    used = 0
    for machine in (machine for reservation in reservations for machine in reservation["Instances"]):
        spot = machine.get("InstanceLifecycle") == "spot"
        if spot == cluster.spot and quotas.quota_of(machine["InstanceType"], spot=spot) == code:
            options = machine.get("CpuOptions", {})
            used += int(options.get("CoreCount", 0)) * int(options.get("ThreadsPerCore", 1))
    detail = (
        f"'{quota.name}' ({quota.code}) is {quota.vcpus:g} vCPUs in {api.region}, of which {used} are used; "
        f"{needed} are needed."
    )
    if used + needed <= quota.vcpus:
        return Finding(ok=True, detail=detail)
    return Finding(ok=False, detail=detail, fix=f"Ask for more: {quota.link(api.region)}")
