"""The service's errors as errors of this package: a table by code, and by message for ambiguous codes.

A refusal names the policy that is probably missing, which OCI's own answer lacks. Messages have the service's text,
never the request.
"""

import http.client
import re
from collections.abc import Sequence

import oci

from provision.errors import (
    AccountNotReady,
    BadCredentials,
    Blocked,
    Capacity,
    CloudError,
    Denied,
    Exists,
    Gone,
    Quota,
    Throttled,
    TokenSpent,
    Unclear,
)
from provision.reachable import no_answer

BY_CODE: dict[str, type[CloudError]] = {
    "Conflict": Blocked,
    "IncorrectState": Blocked,
    "InvalidatedRetryToken": TokenSpent,
    "LimitExceeded": Quota,
    "NotAllowed": Denied,
    "NotAuthenticated": BadCredentials,
    "NotAuthorized": Denied,
    "NotAuthorizedOrNotFound": Gone,
    "NotAuthorizedOrResourceAlreadyExists": Exists,
    "NotFound": Gone,
    "QuotaExceeded": Quota,
    "SignUpRequired": AccountNotReady,
    "TooManyRequests": Throttled,
}

_BY_STATUS: dict[int, type[CloudError]] = {401: BadCredentials, 403: Denied, 404: Gone, 429: Throttled}

_LISTS_OF_ONE = frozenset(
    {
        "list_network_security_group_security_rules",
        "list_network_security_group_vnics",
        "list_work_request_errors",
        "list_app_catalog_listing_resource_versions",
        "list_instance_pool_instances",
    }
)
"""Lists of the parts of one resource: a 404 is about that resource."""

_LIMITS = re.compile(r"limits were exceeded: ([\w-]+(?:, [\w-]+)*)")
_NO_CAPACITY = re.compile(r"out of (host )?capacity", re.IGNORECASE)
# Messages about one availability domain: another domain may have the shape, or room for it.
_NOT_HERE = re.compile(r"^shape \S+ not found|in this availability domain", re.IGNORECASE)

# https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/resource-billing-stopped-instances.htm
STOPPED_COUNT = "Stopped machines count against the limits until they are terminated."

_POLICIES = (
    # The first whose word is in the operation's name.
    ("capacity_report", "manage compute-capacity-reports in tenancy"),
    ("resource_availability", "inspect resource-availability in tenancy"),
    ("availability_domain", "inspect compartments in tenancy"),
    ("fault_domain", "inspect compartments in tenancy"),
    ("list_compartments", "inspect compartments in tenancy"),
    ("region_subscription", "inspect tenancies in tenancy"),
    ("app_catalog", "manage app-catalog-listing in tenancy"),
    ("compute_cluster", "manage compute-clusters in compartment id {compartment}"),
    ("cluster", "manage cluster-family in compartment id {compartment}"),
    ("node", "manage cluster-family in compartment id {compartment}"),
    ("addon", "manage cluster-family in compartment id {compartment}"),
    ("kubeconfig", "use clusters in compartment id {compartment}"),
    ("load_balancer", "manage load-balancers in compartment id {compartment}"),
    ("auto_scaling", "manage auto-scaling-configurations in compartment id {compartment}"),
    ("instance_configuration", "manage compute-management-family in compartment id {compartment}"),
    ("instance_pool", "manage compute-management-family in compartment id {compartment}"),
    ("instance_agent_command", "manage instance-agent-command-family in compartment id {compartment}"),
    ("network_security_group", "manage network-security-groups in compartment id {compartment}"),
    ("volume", "manage volume-family in compartment id {compartment}"),
    ("vnic_attachments", "manage instance-family in compartment id {compartment}"),
    ("get_vnic", "use vnics in compartment id {compartment}"),
    ("get_subnet", "use subnets in compartment id {compartment}"),
    ("get_work_request", "manage cluster-family in compartment id {compartment}"),
    ("list_work_requests", "inspect work-requests in compartment id {compartment}"),
    ("work_request", "manage instance-family in compartment id {compartment}"),
    ("instance", "manage instance-family in compartment id {compartment}"),
    ("image", "manage instance-family in compartment id {compartment}"),
    ("console_histor", "manage instance-family in compartment id {compartment}"),
    ("shape", "manage instance-family in compartment id {compartment}"),
)
_MAKING = ("launch_", "create_", "add_", "update_", "capture_")
_NETWORK_POLICY = "manage virtual-network-family in compartment id {compartment}"

LAUNCH_POLICIES = (
    "manage instance-family in compartment id {compartment}",
    "use subnets in compartment id {compartment}",
    "use vnics in compartment id {compartment}",
    "use network-security-groups in compartment id {compartment}",
)
"""A launch needs all of them."""
_GROUP_POLICIES = (
    "manage network-security-groups in compartment id {compartment}",
    "manage vcns in compartment id <compartment of the VCN>",
)
_POOL_POLICIES = ("manage compute-management-family in compartment id {compartment}", *LAUNCH_POLICIES)
_SEVERAL = {
    "launch_instance": LAUNCH_POLICIES,
    "create_network_security_group": _GROUP_POLICIES,
    "delete_network_security_group": _GROUP_POLICIES,
    "create_instance_pool": _POOL_POLICIES,
    "terminate_instance_pool": (*_POOL_POLICIES, "use volumes in compartment id {compartment}"),
    "create_auto_scaling_configuration": (
        "manage auto-scaling-configurations in compartment id {compartment}",
        "manage compute-management-family in compartment id {compartment}",
    ),
}
"""Operations that need several statements each.

Source: https://docs.oracle.com/en-us/iaas/Content/Identity/policyreference/corepolicyreference.htm
"""


def statement(policy: str, compartment: str) -> str:
    """Return a policy as it is typed into the console."""
    return f"Allow group <your group> to {policy.format(compartment=compartment)}"


def policy_for(operation: str, compartment: str) -> str:
    """Return the statement that allows an operation, such as `list_vcns`."""
    policy = next((policy for word, policy in _POLICIES if word in operation), _NETWORK_POLICY)
    return statement(policy, compartment)


def translate(error: Exception, operation: str, *, compartment: str, advice: str) -> CloudError:
    """Return our error for an error of the SDK. `advice`: for refused credentials."""
    if not isinstance(error, oci.exceptions.ServiceError):
        # The system's own error for a failed connection, which the SDK wraps.
        cause: BaseException = error
        while inner := cause.__cause__ or cause.__context__ or next(iter(cause.args), None):
            if not isinstance(inner, BaseException):
                break
            cause = inner
        lost = isinstance(cause, http.client.HTTPException | ConnectionResetError | BrokenPipeError)
        words = getattr(cause, "strerror", None) or str(cause.args[0] if cause.args else cause)
        reason = words.split(" See http")[0].strip()  # the SDK adds whole paragraphs
        return no_answer("OCI", reason or type(cause).__name__, _title(operation), reached=lost)
    text = f"{str(error.message or f'status {error.status}').strip().rstrip('.')}."
    kind = _kind(error, operation)
    refusal = f"OCI refused {_title(operation)}: {text}"
    if kind is Capacity:
        message = f"OCI has none of these machines there now: {text}"
    elif kind is Quota:
        message = (
            f"{text} The limits are in the console under Governance, Limits, Quotas and Usage, where a higher "
            f"one is asked for; or run with a smaller --count or another --region. {STOPPED_COUNT}"
        )
    elif kind is BadCredentials:
        message = f"{refusal} {advice}"
    elif kind is AccountNotReady:
        message = (
            f"{refusal} This is no missing policy: the tenancy has not signed up for it, which its owner does in the "
            "console."
        )
    elif kind is Denied or (kind is Gone and operation.startswith(_MAKING)):
        needed = "; ".join(f"`{statement(policy, compartment)}`" for policy in _SEVERAL.get(operation, ()))
        missing = f"This policy statement is probably missing: `{policy_for(operation, compartment)}`."
        if needed:
            missing = f"Something that it names is not there, or one of these policy statements is missing: {needed}."
        message = f"{refusal} {missing}"
    elif kind is Unclear:
        message = f"OCI failed at {_title(operation)} ({error.status} {error.code}): {text}"
    else:
        message = refusal
    code = str(error.code or error.status)
    return kind(message, operation=operation, code=code, named=_limits(text))


def from_message(code: str, message: str, operation: str) -> CloudError:
    """Return our error for an error of a work request."""
    if _NO_CAPACITY.search(message):
        return Capacity(
            f"OCI has none of these machines there now: {message}", operation=operation, code=code
        )
    kind = Quota if BY_CODE.get(code) is Quota else CloudError
    named = _limits(message)
    return kind(f"The launch failed: {message}", operation=operation, code=code, named=named)


def _limits(text: str) -> Sequence[str]:
    """Return the limits that are exceeded by OCI's message."""
    match = _LIMITS.search(text)
    return match[1].split(", ") if match else ()


def _kind(error: "oci.exceptions.ServiceError", operation: str) -> type[CloudError]:
    if error.status >= 500:
        return Capacity if _NO_CAPACITY.search(str(error.message)) else Unclear
    kind = BY_CODE.get(str(error.code)) or _BY_STATUS.get(error.status, CloudError)
    if operation == "launch_instance" and kind in (Gone, Quota) and _NOT_HERE.search(str(error.message)):
        return Capacity
    # Other lists, and a new VCN, name only the compartment: the caller has no rights in it.
    whole = operation.startswith("list_") and operation not in _LISTS_OF_ONE
    return Denied if kind is Gone and (whole or operation == "create_vcn") else kind


def _title(operation: str) -> str:
    """Return `LaunchInstance`, OCI's own name, for `launch_instance`."""
    return "".join(word.capitalize() for word in operation.split("_"))
