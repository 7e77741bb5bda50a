"""AWS's error codes as errors of this package: the only place that distinguishes them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

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

_CODES: Mapping[type[CloudError], str] = {
    # Unsupported: the type is not offered in that zone.
    Capacity: "InsufficientInstanceCapacity InsufficientHostCapacity "
    "InsufficientReservedInstanceCapacity InsufficientCapacity "
    "InsufficientFreeAddressesInSubnet InsufficientAddressCapacity UnfulfillableCapacity "
    "SpotMaxPriceTooLow Unsupported",
    Quota: "MaxSpotInstanceCountExceeded VcpuLimitExceeded ResourceLimitExceededException",
    Throttled: "RequestLimitExceeded BandwidthLimitExceeded Throttling ThrottlingException "
    "ThrottledException RequestThrottled RequestThrottledException TooManyRequestsException "
    "EC2ThrottledException SlowDown ResourceContention ConcurrentModification",
    Gone: "InvalidPlacementGroup.Unknown InvalidAMIID.Unavailable Gateway.NotAttached "
    "NatGatewayNotFound ParameterNotFound NoSuchResourceException ResourceNotFoundException "
    "NoSuchEntity LoadBalancerNotFound EC2InstanceNotFoundException",
    # ResourceInUseException: another change of a resource of EKS runs, or its contents block it; also for a name in
    # use. ScalingActivityInProgress: another change of the group runs.
    Blocked: "DependencyViolation VolumeInUse ResourceInUseException ScalingActivityInProgress "
    "DeleteConflict",
    Exists: "InvalidSubnet.Conflict RouteAlreadyExists Resource.AlreadyAssociated EntityAlreadyExists "
    "ResourceAlreadyExistsException",
    Unclear: "ServiceUnavailableException ServerException EC2InstanceUnavailableException",
    TokenSpent: "IdempotentParameterMismatch IdempotentInstanceTerminated",
    Denied: "UnauthorizedOperation AccessDenied AccessDeniedException "
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted AuthException",
    AccountNotReady: "OptInRequired SubscriptionRequiredException PendingVerification Blocked",
    BadCredentials: "AuthFailure InvalidAccessKeyId InvalidClientTokenId SignatureDoesNotMatch "
    "MissingAuthenticationToken UnrecognizedClientException ExpiredToken "
    "ExpiredTokenException RequestExpired TokenRefreshRequired",
}
CODES = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
"""Whole codes, which win over endings."""

ENDINGS: tuple[tuple[str, type[CloudError]], ...] = (
    (".NotFound", Gone),
    (".Duplicate", Exists),
    (".InUse", Blocked),
    ("LimitExceeded", Quota),
)

EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
"""Codes of expired credentials: newer ones may exist."""

HINTS: Mapping[type[CloudError], str] = {
    Quota: "Ask for more under Service Quotas in the AWS console.",
    Throttled: "AWS asks for fewer calls; try again in some minutes.",
    Unclear: "It is not known whether it was done; run the command again.",
    Exists: "What is there was not made for this cluster; remove it, or choose another name.",
    Denied: "Ask whoever runs the account to allow {action}.",
    AccountNotReady: "This is no missing permission: the account itself can't use the service. Open the AWS console "
    "as its owner, and do what it asks for: subscribe, add a way to pay, or have the account verified.",
    BadCredentials: "Look at the variables AWS_* and the files in `~/.aws`, log in again (`aws sso login`, "
    "`aws login`), and see that this computer's clock is right.",
}

CODE_HINTS: Mapping[str, str] = {
    "Resource.AlreadyAssociated": "AWS does not list yet what it is associated with: run the command again, or see "
    "whether something that is not gpuctl's stands in its VPC.",
    "NotAvailableInZone": "None of the zones that have the machines can have it; try another --region, or give "
    "--subnet-id.",
    "VpcLimitExceeded": "Remove a VPC, ask for more under Service Quotas, or give --subnet-id.",
    "AddressLimitExceeded": "The NAT gateway of a private network needs an Elastic IP. Release one, ask for more "
    "under Service Quotas, or give --subnet-id.",
}
"""Hints for codes with better advice than that of `HINTS`."""
EXPLICIT_DENY = (
    "A policy denies {action}, whatever you are allowed. Ask whoever runs the account, or its organization, to "
    "except you."
)
PROTECTED = (
    "Lift the protection, and run the command again: aws ec2 modify-instance-attribute{region} "
    "--instance-id {instance} --no-disable-api-termination"
)

KEY_REFUSED = "Client.InternalError"
"""Code with which AWS ends a machine at its start, mostly as the key of its disk may not be used."""
SCALING_ROLE = "the role AWSServiceRoleForAutoScaling"

_ACTION = re.compile(r"not authorized to perform:? ([a-z0-9-]+:[A-Za-z]+)")
_TAGGING = ("Create", "Run", "Import", "Allocate")
"""Calls that tag what they make."""
_INSTANCES = re.compile(r"\bi-[0-9a-f]{8,17}\b")


def kind_of(code: str, status: int) -> type[CloudError]:
    """Return the class of an error, by AWS's code, else by the HTTP status."""
    if code in CODES:
        return CODES[code]
    for ending, kind in ENDINGS:
        if code.endswith(ending):
            return kind
    return Unclear if status >= 500 else CloudError


def translate(
    response: Mapping[str, Any], *, service: str, operation: str, region: str = "", reads: bool = False
) -> CloudError:
    """Return the error for botocore's `ClientError.response`. `operation` is AWS's own name, `RunInstances`.

    `reads`: the call changes nothing.
    """
    error = response.get("Error", {})
    code = str(error.get("Code") or "Unknown")
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
    kind = kind_of(code, status)
    text = f"{operation}{f' in {region}' if region else ''}: {_message(error)} ({code})."
    hint = CODE_HINTS.get(code, HINTS.get(kind, ""))
    named: Sequence[str] = _INSTANCES.findall(_message(error))
    if kind is Denied and code not in CODE_HINTS:
        named = _ACTION.findall(str(error.get("Message")))[:1]
        hint = EXPLICIT_DENY if "explicit deny" in _message(error) else hint
        hint = hint.format(action=named[0] if named else _needed(service, operation))
    if operation == "TerminateInstances" and code == "OperationNotPermitted" and named:
        hint = PROTECTED.format(region=f" --region {region}" if region else "", instance=named[0])
    if kind is Unclear and reads:
        hint = "Run the command again in a minute."
    return kind(f"{text} {hint}".rstrip(), operation=operation, code=code, named=named)


def _needed(service: str, operation: str) -> str:
    """Return the actions of a call, in words, for a refusal without names."""
    prefix = service if service == "ec2-instance-connect" else service.replace("-", "")
    action = f"{prefix}:{operation}"
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/supported-iam-actions-tagging.html
    tags = service == "ec2" and operation.startswith(_TAGGING)
    return (
        f"{action}, and ec2:CreateTags, as it sets tags: AWS does not say which it refused"
        if tags
        else action
    )


def _message(error: Mapping[str, Any]) -> str:
    text = str(error.get("Message") or "AWS gave no reason")
    # Hundreds of letters that only AWS can read.
    text = re.sub(r"\s*Encoded authorization failure message: \S+", "", text)
    return text.strip().rstrip(".")


def of_state_reason(reason: str, *, zone: str) -> CloudError | None:
    """Return the error for an instance that ended before it ran. `reason`: its StateReason, `code: message`."""
    code, _, message = reason.partition(": ")
    side, _, word = code.partition(".")
    if side not in ("Server", "Client") or not word:
        return None
    text = f"AWS ended the machine in {zone}: {(message or word).rstrip('.')} ({code})."
    if word in ("SpotInstanceTermination", "SpotInstanceShutdown"):
        return Capacity(text, operation="RunInstances", code=code)
    if code == KEY_REFUSED:
        text = f"{text} {key_hint()}"
    kind = kind_of(word, 400)
    if kind not in (Capacity, Quota):
        kind = CloudError
    return kind(text, operation="RunInstances", code=code)


def key_hint(*, scaling: bool = False) -> str:
    """Return which rights a customer-managed key of disks has to grant. `scaling`: Auto Scaling launches."""
    # https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html
    principal, actions = "you", "kms:GenerateDataKeyWithoutPlaintext"
    if scaling:
        # https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html
        principal, actions = SCALING_ROLE, "kms:Encrypt, kms:GenerateDataKey*"
    return (
        "If EBS's default key in the region is customer-managed, its policy has to allow "
        f"{principal} kms:CreateGrant, kms:Decrypt, kms:DescribeKey, {actions} and kms:ReEncrypt*."
    )
