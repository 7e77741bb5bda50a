"""Checks of `doctor`: files and their modes, credentials, clock, permissions, shape, image, limits.

Read-only. OCI does not simulate calls, so the findings show the policy statements that creating resources needs, as
an administrator types them. A test compares them with the calls that a cluster makes.

Sources:
- https://docs.oracle.com/en-us/iaas/Content/Identity/policyreference/corepolicyreference.htm (machines, disks,
  network, pools, autoscaling)
- https://docs.oracle.com/en-us/iaas/Content/Identity/policyreference/iampolicyreference.htm (compartments, tenancies)
- https://docs.oracle.com/en-us/iaas/Content/Identity/policyreference/contengpolicyreference.htm (OKE)
- https://docs.oracle.com/en-us/iaas/Content/General/Concepts/servicelimits.htm (limits)
"""

import stat
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path

import oci

from inventories.errors import InvalidInput
from inventories.threads import run_all
from provision.errors import BadCredentials, CloudError, Denied, ProvisionError
from provision.findings import Finding
from provision.oci import offers
from provision.oci.api import Api
from provision.oci.description import has_autoscaling, may_join_pool
from provision.oci.errors import STOPPED_COUNT, policy_for, statement
from provision.oci.quotas import available, machine_limit, units
from provision.oci.resources.resource_types import KINDS
from provision.records import CloudCluster

MAX_SKEW_S = 300.0
"""OCI refuses requests that are signed with a time further off."""
WORRYING_SKEW_S = 60.0

MACHINES = (
    "manage instance-family in compartment id {compartment}",
    "manage volume-family in compartment id {compartment}",
    "manage compute-clusters in compartment id {compartment}",
    "inspect work-requests in compartment id {compartment}",
    "inspect compartments in tenancy",
)
"""For machines, their disks, the RDMA network of shapes with RDMA, and the reason of a launch that failed."""
SHARED_NETWORK = (*MACHINES, "manage virtual-network-family in compartment id {compartment}")
"""For machines in the network that gpuctl creates."""
GIVEN_SUBNET = (
    *MACHINES,
    "read virtual-network-family in compartment id {compartment}",
    "manage network-security-groups in compartment id {compartment}",
    "use vnics in compartment id {compartment}",
    "use vnics in compartment id {subnet}",
    "use subnets in compartment id {subnet}",
    "manage vcns in compartment id {vcn}",
)
"""For machines in a given subnet: a security group is created in its VCN, which needs rights to both.

Placeholders: the compartments of the cluster, of the subnet and of its VCN.
"""
KUBERNETES = (
    *SHARED_NETWORK,
    "manage cluster-family in compartment id {compartment}",
    "manage load-balancers in compartment id {compartment}",
)
"""For a cluster of provider `oke`, and for load balancers that controllers in it created."""
TIME_LIMIT = (
    "manage compute-management-family in compartment id {compartment}",
    "manage auto-scaling-configurations in compartment id {compartment}",
)
"""For `--ttl`: an instance pool with its configuration, and the schedule that ends its machines."""
TIME_LIMIT_LISTS = (
    "management.list_instance_pools",
    "management.list_instance_configurations",
    "autoscaling.list_auto_scaling_configurations",
)
"""Lists that show, without a change, whether a right for `--ttl` is missing."""
HINTS = (
    "inspect resource-availability in tenancy",
    "manage compute-capacity-reports in tenancy",
    "manage app-catalog-listing in tenancy",
    "inspect tenancies in tenancy",
)
"""For room under the limits, reports of capacity, images of the marketplace, and the subscribed regions."""


def findings(api: Api, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
    """Return all findings, the plainest first."""
    credentials, known = _credentials(api)
    results = [sdk(), *_files(api), *credentials]
    if known:
        checks: tuple[Callable[[], Iterator[Finding]], ...] = (
            partial(_region, api),
            partial(_permissions, api, cluster),
            partial(_time_limit, api, cluster),
            partial(_plan, api, cluster, count),
        )
        for outcome in run_all(lambda check: list(check()), checks):
            if isinstance(outcome, Exception):
                results.append(Finding(what="check", ok=None, detail=str(outcome)))
            else:
                results += outcome
    return tuple(results)


def sdk() -> Finding:
    """Return the finding on the SDK."""
    return Finding(what="OCI SDK", ok=True, detail=f"oci {oci.__version__}")


def skew_finding(date: str | None, now: datetime) -> Finding:
    """Return the finding on the difference to the service's clock, from an answer's header `Date`."""
    title = "clock"
    try:
        theirs = parsedate_to_datetime(date or "")
    except ValueError:
        return Finding(what=title, ok=None, detail="OCI's answer does not tell the time.")
    off = (now - theirs.astimezone(UTC)).total_seconds()
    detail = f"This computer's clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} OCI's."
    if abs(off) <= WORRYING_SKEW_S:
        return Finding(what=title, ok=True, detail=detail)
    fix = f"Set the clock (NTP). OCI refuses requests from {MAX_SKEW_S / 60:.0f} minutes on."
    return Finding(what=title, ok=abs(off) < MAX_SKEW_S and None, detail=detail, fix=fix)


def quota_finding(left: Sequence[tuple[str, int | None]], needed: int, limit: str) -> Finding:
    """Return the finding on the room under the limit. `left`: domain → units left."""
    listed = ", ".join(f"{zone}: {'not known' if free is None else f'{free} left'}" for zone, free in left)
    known = [free for _, free in left if free is not None]
    enough = any(free >= needed for free in known)
    ok = enough or (None if len(known) < len(left) else False)
    return Finding(
        what="service limits",
        ok=ok,
        detail=f"{needed} of {limit} are needed in one availability domain ({listed}).",
        fix=""
        if enough
        else f"Ask for a higher {limit} in the console under Governance, Limits, Quotas and Usage. {STOPPED_COUNT}",
    )


def mode_finding(path: Path) -> Finding | None:
    """Return the finding on the mode of a file with secrets. `None`: no such file."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None
    title = f"file {path}"
    if mode & 0o077:
        return Finding(
            what=title,
            ok=False,
            detail=f"Others can read it: mode {mode:04o}.",
            fix=f"Run `chmod 600 {path}`.",
        )
    return Finding(what=title, ok=True, detail=f"mode {mode:04o}")


def _files(api: Api) -> list[Finding]:
    credentials = api.credentials
    if credentials.profile is None:
        return []
    key = credentials.config.get("key_file")
    paths = [credentials.config_file, Path(key).expanduser() if key else None, credentials.token_file]
    findings = [mode_finding(path) for path in paths if path is not None]
    return [finding for finding in findings if finding is not None]


def _credentials(api: Api) -> tuple[list[Finding], bool]:
    """Return the findings on credentials and clock, by one answer, and whether other checks can work."""
    title = "credentials"
    try:
        answer = api.response("identity.list_availability_domains", api.tenancy)
    except CloudError as error:
        # Denied means that OCI knows the caller; any other answer says nothing about the credentials.
        refused = isinstance(error, BadCredentials)
        fix = api.credentials.advice if refused else ""
        if isinstance(error, Denied):
            fix = _add(api, "list_availability_domains")
        finding = Finding(what=title, ok=False if refused else None, detail=str(error), fix=fix)
        headers = getattr(error.__cause__, "headers", None)
        clock = [skew_finding(headers.get("date"), datetime.now(UTC))] if headers else []
        return [finding, *clock], isinstance(error, Denied)
    good = Finding(
        what=title,
        ok=True,
        detail=f"{api.credentials.source}, {api.credentials.kind}, compartment {api.compartment}",
    )
    return [good, skew_finding(answer.headers.get("date"), datetime.now(UTC))], True


def _region(api: Api) -> Iterator[Finding]:
    try:
        listed = api.list_all("identity.list_region_subscriptions", api.tenancy)
    except CloudError as error:
        yield Finding(what="region", ok=None, detail=str(error))
        return
    names = [
        str(subscription["regionName"]) for subscription in listed if subscription.get("status") == "READY"
    ]
    region = api.credentials.region
    if region in names:
        yield Finding(what="region", ok=True, detail=region)
    else:
        yield Finding(
            what="region",
            ok=False,
            detail=f"The tenancy is not subscribed to {region}, but to {', '.join(names)}.",
            fix="Give one of these with --region, or subscribe to it in the console.",
        )


def _permissions(api: Api, cluster: CloudCluster) -> Iterator[Finding]:
    operations = [kind.operation("list") for kind in KINDS.values()]
    operations = [operation for operation in operations if operation not in TIME_LIMIT_LISTS]
    operations += ["compute.list_instances", "compute.list_images", "compute.list_vnic_attachments"]
    outcomes = run_all(lambda operation_name: api.listed(operation_name), operations)
    fine = True
    for operation, outcome in zip(operations, outcomes, strict=True):
        if isinstance(outcome, Exception):
            fine = False
            method = operation.partition(".")[2]
            denied = isinstance(outcome, Denied)
            yield Finding(
                what=f"permission to {method.replace('_', ' ')}",
                ok=False if denied else None,
                detail=str(outcome),
                fix=_add(api, method) if denied else "",
            )
    if fine:
        yield Finding(what="permission to read", ok=True, detail=f"{len(operations)} lists can be read")
    subnet, vcn = _network_compartments(api, cluster)
    needed = GIVEN_SUBNET if cluster.subnet_id else SHARED_NETWORK
    network = "with --subnet-id" if cluster.subnet_id else "that also creates the network"
    creating = statements(api, needed, subnet=subnet, vcn=vcn)
    yield Finding(
        what="permission to create",
        ok=None,
        detail=f"OCI can't be asked. A group {network} needs\n{creating}\nand for --ttl\n"
        f"{statements(api, TIME_LIMIT)}\nWithout `manage volume-family`, boot volumes get no tags, and "
        "`gpuctl down` does not find one that was preserved when its machine was terminated in the console. "
        "`manage compute-clusters` is for shapes with RDMA. Without `inspect work-requests`, the reason of a "
        "launch that fails late is missing. Useful, and not necessary, for limits, reports of capacity, images of "
        f"the marketplace and --all-regions:\n{statements(api, HINTS)}",
    )


def _network_compartments(api: Api, cluster: CloudCluster) -> tuple[str, str]:
    """Return the compartments of the given subnet and of its VCN; the cluster's if they are not known."""
    if cluster.subnet_id is None:
        return api.compartment, api.compartment
    try:
        subnet = api.call("network.get_subnet", cluster.subnet_id)
    except CloudError:
        return api.compartment, api.compartment
    try:
        vcn = api.call("network.get_vcn", subnet["vcnId"])
    except CloudError:
        return str(subnet["compartmentId"]), str(subnet["compartmentId"])
    return str(subnet["compartmentId"]), str(vcn["compartmentId"])


def _time_limit(api: Api, cluster: CloudCluster) -> Iterator[Finding]:
    """Yield the finding on the rights for `--ttl`, as far as lists show them."""
    check = "permission for --ttl"
    if not has_autoscaling(api.credentials.region):
        region = api.credentials.region
        yield Finding(
            what=check,
            ok=None,
            detail=f"OCI has no autoscaling in {region}: with --ttl, nothing in the cloud would end the machines.",
        )
        return
    outcomes = run_all(api.listed, TIME_LIMIT_LISTS)
    methods = [operation.partition(".")[2] for operation in TIME_LIMIT_LISTS]
    denied = [
        method for method, outcome in zip(methods, outcomes, strict=True) if isinstance(outcome, Denied)
    ]
    failed = [
        outcome for outcome in outcomes if isinstance(outcome, Exception) and not isinstance(outcome, Denied)
    ]
    if denied:
        lacking = list(dict.fromkeys(policy_for(method, api.compartment) for method in denied))
        word = "statements" if len(lacking) > 1 else "statement"
        yield Finding(
            what=check,
            ok=False if cluster.ttl_s is not None else None,
            detail="With --ttl, nothing in the cloud would end the machines: OCI refuses to "
            f"{', '.join(method.replace('_', ' ') for method in denied)}.",
            fix=f"Add the policy {word} {', '.join(f'`{text}`' for text in lacking)}.",
        )
    elif failed:
        yield Finding(what=check, ok=None, detail=str(failed[0]))
    elif not may_join_pool(cluster):
        yield Finding(
            what=check,
            ok=None,
            detail="OCI may not end machines of this kind: `gpuctl up --dry-run` shows the price of a day.",
        )
    else:
        detail = (
            "instance pools and their schedules can be read; OCI can't be asked for the right to make them"
        )
        yield Finding(what=check, ok=None, detail=detail)


def _plan(api: Api, cluster: CloudCluster, count: int) -> Iterator[Finding]:
    try:
        offer = offers.find(api, cluster, terms=True)
    except (ProvisionError, InvalidInput) as error:
        final = not isinstance(error, CloudError) or isinstance(error, Denied | BadCredentials)
        yield Finding(what="shape and image", ok=False if final else None, detail=str(error))
        return
    terms = "; `up` asks for a yes to the image's terms, or takes --accept-terms" if offer.terms else ""
    yield Finding(
        what="shape and image",
        ok=True,
        detail=f"{offer.shape}, {offer.gpus} GPUs, {offer.image_name} ({offer.image_why}), user {offer.user}, "
        f"{offer.disk_gb} GB{terms}",
    )
    if unknown := offer.facts.get("no_capacity_report"):
        yield Finding(what="capacity report", ok=None, detail=str(unknown))
    limit = machine_limit(offer.facts.get("limits") or ())
    if limit is None:
        yield Finding(
            what="service limits", ok=None, detail=f"OCI names no limit of GPUs or OCPUs for {offer.shape}."
        )
        return
    zones = list(dict.fromkeys(zone.name for zone in offer.zones))
    left = run_all(lambda zone: available(api, limit, zone), zones)
    pairs = [
        (zone, None if isinstance(free, Exception) else free) for zone, free in zip(zones, left, strict=True)
    ]
    yield quota_finding(pairs, units(offer, count), limit)


def _add(api: Api, method: str) -> str:
    return f"Add the policy statement `{policy_for(method, api.compartment)}`."


def statements(api: Api, policies: Sequence[str], *, subnet: str = "", vcn: str = "") -> str:
    """Return policies as statements, each on a line, as the console takes them."""
    at = {"subnet": subnet, "vcn": vcn, "compartment": api.compartment}
    lines = dict.fromkeys(statement(policy.format(**at), api.compartment) for policy in policies)
    return "\n".join(f"    {line}" for line in lines)
