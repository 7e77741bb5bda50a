"""The account's quotas for instances, which AWS counts in vCPUs of a family of types."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision.aws.api import Api
from provision.errors import CloudError, Quota

INSTANCE_CODES = frozenset({"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded"})
VPCS_CODE = "L-F678F1CE"


@dataclass(frozen=True, kw_only=True)
class Family:
    """Types that share a quota, by the begin of their names; codes and names of the quotas."""

    pattern: str
    on_demand: tuple[str, str]
    spot: tuple[str, str] | None
    """`None`: AWS documents no quota for spot machines of these types."""


# Codes, names and the letters of the types: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
_P = ("L-417A185B", "Running On-Demand P instances")
FAMILIES: tuple[Family, ...] = (
    Family(
        pattern=r"(gr?|vt)\d",
        on_demand=("L-DB2E81BA", "Running On-Demand G and VT instances"),
        spot=("L-3819A6DF", "All G and VT Spot Instance Requests"),
    ),
    Family(pattern=r"p5", on_demand=_P, spot=("L-C4BD4855", "All P5 Spot Instance Requests")),
    Family(pattern=r"p[2-4]", on_demand=_P, spot=("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests")),
    Family(pattern=r"p\d", on_demand=_P, spot=None),
    Family(
        pattern=r"(a|c|d|h|i|m|r|t|z)\d",
        on_demand=("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
        spot=("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class InstanceQuota:
    """The number of vCPUs of a family that the account may have at once in a region."""

    code: str
    name: str
    vcpus: float | None
    """`None`: not known."""

    def link(self, region: str) -> str:
        """Return the page on which the quota is raised."""
        return f"https://{region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{self.code}"


def quota_of(shape: str, *, spot: bool) -> tuple[str, str] | None:
    """Return the code and the name of the quota that a type counts on.

    Returns:
        `None` for a type, or spot machines of a type, for which AWS documents no quota.
    """
    family = next((family for family in FAMILIES if re.match(family.pattern, shape)), None)
    if family is None:
        return None
    return family.spot if spot else family.on_demand


def instance_quota(api: Api, shape: str, *, spot: bool) -> InstanceQuota | None:
    """Return the quota that a type counts on, with the account's value. `None`: AWS documents no such quota."""
    quota = quota_of(shape, spot=spot)
    if quota is None:
        return None
    code, name = quota
    return InstanceQuota(code=code, name=name, vcpus=value(api, "ec2", code))


def value(api: Api, service: str, code: str) -> float | None:
    """Return a quota's value. `None`: not known; messages can do without."""
    try:
        answer = api.call("get_service_quota", service="service-quotas", ServiceCode=service, QuotaCode=code)
    except CloudError:
        return None
    return float(answer["Quota"]["Value"])


def explained(api: Api, error: Quota, request: Mapping[str, Any]) -> Quota:
    """Return the refusal of a launch, with the quota's name, value and page."""
    shape = str(request["InstanceType"])
    spot = "InstanceMarketOptions" in request
    quota = instance_quota(api, shape, spot=spot) if error.code in INSTANCE_CODES else None
    if quota is None:
        return error
    has = f", which is {quota.vcpus:g} vCPUs now" if quota.vcpus is not None else ""
    return Quota(
        f"{error} It is the quota '{quota.name}' ({quota.code}) in {api.region}{has}: {quota.link(api.region)}",
        operation=error.operation,
        code=error.code,
    )
