"""AWS's error codes in our words."""

import pytest

from provision import errors
from provision.aws.errors import kind_of, of_state_reason, translate


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, errors.Capacity),
        ("InsufficientFreeAddressesInSubnet", 400, errors.Capacity),
        ("Unsupported", 400, errors.Capacity),
        ("VcpuLimitExceeded", 400, errors.Quota),
        ("VpcLimitExceeded", 400, errors.Quota),
        ("RulesPerSecurityGroupLimitExceeded", 400, errors.Quota),
        ("RequestLimitExceeded", 503, errors.Throttled),
        ("InternalError", 500, errors.Unclear),
        ("Unavailable", 503, errors.Unclear),
        ("InvalidInstanceID.NotFound", 400, errors.Gone),
        ("InvalidPlacementGroup.Unknown", 400, errors.Gone),
        ("InvalidPlacementGroup.InUse", 400, errors.Blocked),
        ("DependencyViolation", 400, errors.Blocked),
        ("InvalidGroup.Duplicate", 400, errors.Exists),
        ("InvalidPermission.Duplicate", 400, errors.Exists),
        ("InvalidSubnet.Conflict", 400, errors.Exists),
        ("IdempotentParameterMismatch", 400, errors.TokenSpent),
        ("IdempotentInstanceTerminated", 400, errors.TokenSpent),
        ("UnauthorizedOperation", 403, errors.Denied),
        ("ExpiredToken", 400, errors.BadCredentials),
        ("AuthFailure", 401, errors.BadCredentials),
        ("OperationNotPermitted", 400, errors.CloudError),
        ("IncorrectInstanceState", 400, errors.CloudError),
        ("SomethingNew", 400, errors.CloudError),
        ("SomethingNew", 500, errors.Unclear),
    ],
)
def test_kind_of_maps_aws_codes_to_error_classes(
    code: str, status: int, kind: type[errors.CloudError]
) -> None:
    assert kind_of(code, status) is kind


def told(code: str, message: str, status: int = 400) -> errors.CloudError:
    response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return translate(response, service="ec2", operation="RunInstances", region="us-east-1")


def test_error_message_has_aws_text_code_and_advice() -> None:
    message = "You are not authorized. Encoded authorization failure message: " + "x" * 500
    error = told("UnauthorizedOperation", message, 403)
    assert str(error) == (
        "RunInstances in us-east-1: You are not authorized (UnauthorizedOperation). "
        "Ask whoever runs the account to allow ec2:RunInstances, and ec2:CreateTags, as it sets tags: "
        "AWS does not say which it refused."
    )
    assert (error.operation, error.code) == ("RunInstances", "UnauthorizedOperation")


def test_refusal_names_the_action_that_was_refused() -> None:
    message = "You are not authorized. User: arn:aws:iam::1:user/me is not authorized to perform: ec2:CreateTags on x"
    error = told("UnauthorizedOperation", message, 403)
    assert str(error).endswith("Ask whoever runs the account to allow ec2:CreateTags.")
    assert error.named == ("ec2:CreateTags",)


def test_explicit_deny_is_not_mended_by_a_permission() -> None:
    message = (
        "User: arn:aws:iam::1:user/me is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:x with "
        "an explicit deny in a service control policy"
    )
    error = told("UnauthorizedOperation", message, 403)
    assert type(error) is errors.Denied
    assert "A policy denies ec2:RunInstances, whatever you are allowed." in str(error)
    assert "to allow" not in str(error)


def test_protected_machine_comes_with_the_command_that_lifts_the_protection() -> None:
    message = "The instance 'i-0123456789abcdef0' may not be terminated. Modify its 'disableApiTermination' attribute"
    response = {"Error": {"Code": "OperationNotPermitted", "Message": message}}
    error = translate(response, service="ec2", operation="TerminateInstances", region="us-east-1")
    assert str(error).endswith(
        "aws ec2 modify-instance-attribute --region us-east-1 --instance-id i-0123456789abcdef0 "
        "--no-disable-api-termination"
    )


@pytest.mark.parametrize(
    "code", ["OptInRequired", "PendingVerification", "Blocked", "SubscriptionRequiredException"]
)
def test_account_that_is_not_ready_lacks_no_permission(code: str) -> None:
    error = told(code, "You are not subscribed to this service.", 401)
    assert isinstance(error, errors.AccountNotReady)
    assert "This is no missing permission" in str(error)


def test_translate_names_the_operation_without_a_body() -> None:
    error = translate({}, service="ec2", operation="RunInstances", region="us-east-1")
    assert str(error) == "RunInstances in us-east-1: AWS gave no reason (Unknown)."


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Server.InsufficientInstanceCapacity: There is no capacity", errors.Capacity),
        ("Server.SpotInstanceTermination: Spot Instance was terminated", errors.Capacity),
        ("Client.VolumeLimitExceeded: Volume limit exceeded", errors.Quota),
        ("Client.InvalidSnapshot.NotFound: The specified snapshot was not found", errors.CloudError),
        ("Server.InternalError", errors.CloudError),
        ("Client.UserInitiatedShutdown: User initiated shutdown", errors.CloudError),
    ],
)
def test_of_state_reason_maps_aws_reasons_to_error_classes(
    reason: str, kind: type[errors.CloudError]
) -> None:
    error = of_state_reason(reason, zone="us-east-1b")
    assert type(error) is kind
    assert "us-east-1b" in str(error)


def test_of_state_reason_of_a_key_that_may_not_be_used_names_the_rights() -> None:
    error = of_state_reason("Client.InternalError: Client error on launch", zone="us-east-1b")
    assert type(error) is errors.CloudError
    assert "Client error on launch (Client.InternalError). If EBS's default key" in str(error)
    assert "allow you kms:CreateGrant, kms:Decrypt, kms:DescribeKey, kms:GenerateDataKeyWithoutPl" in str(
        error
    )
    assert "kms:" not in str(of_state_reason("Server.InternalError", zone="us-east-1b"))


def test_of_state_reason_returns_none_without_a_reason() -> None:
    assert of_state_reason("pending", zone="us-east-1b") is None
