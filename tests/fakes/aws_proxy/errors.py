"""Refusals of the fake, with the codes and the words of EC2."""

from collections.abc import Iterable


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def dry_run() -> ApiError:
    return ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)


def unauthorized(operation: str) -> ApiError:
    return ApiError(
        "UnauthorizedOperation",
        "You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/gpuctl is not "
        f"authorized to perform: ec2:{operation} on resource: * because no identity-based policy allows the "
        f"ec2:{operation} action",
        403,
    )


def missing(parameter: str) -> ApiError:
    return ApiError("MissingParameter", f"The request must contain the parameter {parameter}")


def invalid_value(value: object, parameter: str, why: str = "") -> ApiError:
    text = f"Value ({value}) for parameter {parameter} is invalid. {why}"
    return ApiError("InvalidParameterValue", text.strip())


def combination(message: str) -> ApiError:
    return ApiError("InvalidParameterCombination", message)


def dependency(message: str) -> ApiError:
    return ApiError("DependencyViolation", message)


NOT_FOUND = {
    "instance": ("InvalidInstanceID.NotFound", "The instance ID '{}' does not exist"),
    "vpc": ("InvalidVpcID.NotFound", "The vpc ID '{}' does not exist"),
    "subnet": ("InvalidSubnetID.NotFound", "The subnet ID '{}' does not exist"),
    "security-group": ("InvalidGroup.NotFound", "The security group '{}' does not exist"),
    "internet-gateway": ("InvalidInternetGatewayID.NotFound", "The internetGateway ID '{}' does not exist"),
    "route-table": ("InvalidRouteTableID.NotFound", "The routeTable ID '{}' does not exist"),
    "key-pair": ("InvalidKeyPair.NotFound", "The key pair '{}' does not exist"),
    "placement-group": ("InvalidPlacementGroup.Unknown", "The Placement Group '{}' is unknown."),
    "network-interface": (
        "InvalidNetworkInterfaceID.NotFound",
        "The networkInterface ID '{}' does not exist",
    ),
    "volume": ("InvalidVolume.NotFound", "The volume '{}' does not exist."),
    "image": ("InvalidAMIID.NotFound", "The image id '[{}]' does not exist"),
    "spot-instances-request": (
        "InvalidSpotInstanceRequestID.NotFound",
        "The spot instance request ID '{}' does not exist",
    ),
    "natgateway": ("NatGatewayNotFound", "The Nat Gateway {} was not found"),
    "nat-gateway-of-a-route": ("InvalidNatGatewayID.NotFound", "The natGateway ID '{}' does not exist"),
    "vpc-endpoint": ("InvalidVpcEndpointId.NotFound", "The Vpc Endpoint Id '{}' does not exist"),
    "elastic-ip": ("InvalidAllocationID.NotFound", "The allocation ID '{}' does not exist"),
}
"""By kind of resource: the code, and the message for an id."""


def not_found(kind: str, ids: str | Iterable[str]) -> ApiError:
    code, message = NOT_FOUND[kind]
    names = [ids] if isinstance(ids, str) else list(ids)
    if kind == "instance" and len(names) > 1:
        message = "The instance IDs '{}' do not exist"
    return ApiError(code, message.format(", ".join(names)))
