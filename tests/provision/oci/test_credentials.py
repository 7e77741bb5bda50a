"""Test the search for OCI credentials, and the errors for unusable ones."""

from pathlib import Path
from typing import Any

import oci
import pytest

from inventories.errors import InvalidInput
from provision.errors import (
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
from provision.oci import credentials, errors
from provision.records import Target
from tests.fakes.oci.account import new_account, write_config

TARGET = Target(provider="oci")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(new_account(), tmp_path_factory.mktemp("oci"))


def test_auth_find_reads_the_default_profile(config: Path) -> None:
    result = credentials.find(TARGET, {"OCI_CONFIG_FILE": str(config)})
    assert (result.kind, result.profile, result.region) == ("api_key", "DEFAULT", "eu-frankfurt-1")
    assert result.compartment == result.tenancy
    assert result.signer().api_key.startswith(result.tenancy)


def test_auth_find_reads_a_session_token_profile(config: Path) -> None:
    env = {"OCI_CLI_CONFIG_FILE": str(config), "OCI_CONFIG_FILE": "/nowhere", "OCI_CLI_PROFILE": "TOKEN"}
    result = credentials.find(TARGET, env)
    assert (result.kind, result.profile) == ("security_token", "TOKEN")
    assert result.signer().api_key.startswith("ST$")
    assert "oci session refresh --profile TOKEN" in result.advice
    # A requested profile comes before the environment's settings.
    assert credentials.find(Target(provider="oci", profile="DEFAULT"), env).kind == "api_key"


def test_auth_find_takes_region_and_compartment_from_target_then_env(config: Path) -> None:
    env = {
        "OCI_CONFIG_FILE": str(config),
        "OCI_CLI_REGION": "phx",
        "OCI_COMPARTMENT": "ocid1.compartment.oc1..e",
    }
    result = credentials.find(TARGET, env)
    assert (result.region, result.compartment) == ("us-phoenix-1", "ocid1.compartment.oc1..e")
    request = Target(provider="oci", region="us-ashburn-1", compartment="ocid1.compartment.oc1..a")
    result = credentials.find(request, env)
    assert (result.region, result.compartment) == ("us-ashburn-1", "ocid1.compartment.oc1..a")
    assert result.config["region"] == "us-ashburn-1"
    with pytest.raises(InvalidInput, match="no region 'us-ashborn-1'; did you mean 'us-ashburn-1'"):
        credentials.find(Target(provider="oci", region="us-ashborn-1"), env)
    with pytest.raises(InvalidInput, match="gpu' is no OCID"):
        credentials.find(Target(provider="oci", compartment="gpu"), env)


def test_auth_find_works_from_environment_variables_alone(config: Path, tmp_path: Path) -> None:
    of = oci.config.from_file(str(config))
    env = {
        "OCI_CONFIG_FILE": str(tmp_path / "none"),
        "OCI_CLI_USER": of["user"],
        "OCI_CLI_TENANCY": of["tenancy"],
        "OCI_CLI_FINGERPRINT": of["fingerprint"],
        "OCI_CLI_KEY_FILE": of["key_file"],
        "OCI_CLI_REGION": "eu-frankfurt-1",
    }
    assert credentials.find(TARGET, env).signer().api_key.endswith(of["fingerprint"])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"OCI_CONFIG_FILE": "/nowhere/config"}, "no OCI configuration file '/nowhere/config'"),
        ({"OCI_CLI_PROFILE": "OTHER"}, "no profile 'OTHER'"),
        ({"OCI_CLI_AUTH": "security_token"}, "no security_token_file"),
        ({"OCI_CLI_AUTH": "resource_principal"}, "no resource principal here"),
    ],
)
def test_auth_find_names_missing_credentials(config: Path, env: dict[str, str], message: str) -> None:
    with pytest.raises(BadCredentials, match=message):
        credentials.find(TARGET, {"OCI_CONFIG_FILE": str(config), **env})


def test_auth_find_refuses_instance_principal_outside_oci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCI_METADATA_BASE_URL", "http://127.0.0.1:9/opc/v2")
    with pytest.raises(BadCredentials, match="no instance principal here"):
        credentials.find(TARGET, {"GPUCTL_OCI_AUTH": "instance_principal"})


def test_auth_find_refuses_an_unknown_auth_method() -> None:
    with pytest.raises(InvalidInput, match="OCI_CLI_AUTH or GPUCTL_OCI_AUTH is 'magic'"):
        credentials.find(TARGET, {"OCI_CLI_AUTH": "magic"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fingerprint=12:34", "fingerprint is malformed"),
        ("key_file=/nowhere.pem", "key_file's value '/nowhere.pem'"),
        ("region=", "has no region"),
    ],
)
def test_auth_find_names_the_wrong_entry_of_a_profile(
    config: Path, tmp_path: Path, line: str, message: str
) -> None:
    key = line.partition("=")[0]
    lines = config.read_text().splitlines()
    wrong = tmp_path / "config"
    wrong.write_text("\n".join(line if item.startswith(f"{key}=") else item for item in lines))
    with pytest.raises(BadCredentials, match=message):
        credentials.find(TARGET, {"OCI_CONFIG_FILE": str(wrong)}).signer()


def test_error_of_a_broken_key_does_not_show_the_key(config: Path, tmp_path: Path) -> None:
    key = Path(oci.config.from_file(str(config))["key_file"]).read_text()
    broken = tmp_path / "key.pem"
    broken.write_text(key[:400])
    wrong = tmp_path / "config"
    wrong.write_text(config.read_text().replace(str(config.parent / "oci_api_key.pem"), str(broken)))
    with pytest.raises(BadCredentials) as caught:
        credentials.find(TARGET, {"OCI_CONFIG_FILE": str(wrong)}).signer()
    assert key[100:140] not in str(caught.value)
    assert "profile 'DEFAULT'" in str(caught.value)


def service_error(status: int, code: str, message: str) -> Exception:
    return oci.exceptions.ServiceError(status, code, {}, message)


@pytest.mark.parametrize(
    ("status", "code", "message", "operation", "kind"),
    [
        (500, "InternalError", "Out of host capacity.", "launch_instance", Capacity),
        (500, "InternalError", "Out of capacity for shape X in AD-1", "launch_instance", Capacity),
        (404, "NotAuthorizedOrNotFound", "shape VM.GPU.A10.2 not found", "launch_instance", Capacity),
        (400, "LimitExceeded", "limit of 1 in this Availability Domain for X", "launch_instance", Capacity),
        (500, "InternalError", "Something broke", "launch_instance", Unclear),
        (502, "BadGateway", "", "list_vcns", Unclear),
        (503, "ServiceUnavailable", "", "list_vcns", Unclear),
        (429, "TooManyRequests", "", "list_vcns", Throttled),
        (400, "LimitExceeded", "gpu-a10-count", "launch_instance", Quota),
        (400, "QuotaExceeded", "", "launch_instance", Quota),
        (400, "InvalidParameter", "", "launch_instance", CloudError),
        (401, "NotAuthenticated", "", "list_vcns", BadCredentials),
        (403, "NotAllowed", "", "create_vcn", Denied),
        (404, "NotAuthorizedOrNotFound", "", "get_vcn", Gone),
        (404, "NotAuthorizedOrNotFound", "", "delete_vcn", Gone),
        (404, "NotAuthorizedOrNotFound", "", "list_instances", Denied),
        (404, "NotAuthorizedOrNotFound", "", "create_vcn", Denied),
        (404, "NotAuthorizedOrNotFound", "", "launch_instance", Gone),
        (404, "NotAuthorizedOrNotFound", "", "create_subnet", Gone),
        (404, "NotAuthorizedOrNotFound", "", "list_network_security_group_vnics", Gone),
        (409, "Conflict", "", "delete_subnet", Blocked),
        (409, "IncorrectState", "", "delete_vcn", Blocked),
        (409, "InvalidatedRetryToken", "", "launch_instance", TokenSpent),
        (409, "NotAuthorizedOrResourceAlreadyExists", "", "create_vcn", Exists),
        (418, "Teapot", "", "create_vcn", CloudError),
    ],
)
def test_translate_maps_oci_errors_to_error_classes(
    status: int, code: str, message: str, operation: str, kind: type[CloudError]
) -> None:
    result = errors.translate(
        service_error(status, code, message), operation, compartment="C", advice="Sign in."
    )
    assert type(result) is kind
    assert (result.operation, result.code) == (operation, code)
    assert str(result).endswith((".", "`."))


def test_translate_adds_policies_and_advice() -> None:
    def said(status: int, code: str, operation: str) -> str:
        error = service_error(status, code, "It was refused")
        return str(errors.translate(error, operation, compartment="ocid1.c", advice="Sign in."))

    assert "Sign in." in said(401, "NotAuthenticated", "list_vcns")
    assert "manage virtual-network-family in compartment id ocid1.c" in said(404, "X", "create_vcn")
    launch = said(404, "NotAuthorizedOrNotFound", "launch_instance")
    for policy in ("manage instance-family", "use subnets", "use vnics", "use network-security-groups"):
        assert policy in launch
    assert "Limits, Quotas and Usage" in said(400, "LimitExceeded", "launch_instance")


def test_translate_of_a_lost_connection_is_unclear() -> None:
    inner = ConnectionError("('Connection aborted.', RemoteDisconnected('closed'))")
    error = oci.exceptions.RequestException(inner)
    error.args = (inner, "Request Endpoint: POST http://x See https://docs …")
    result = errors.translate(error, "launch_instance", compartment="C", advice="")
    assert isinstance(result, Unclear)
    assert "LaunchInstance" in str(result)
    assert "docs" not in str(result)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("InternalError", "Out of host capacity.", Capacity),
        ("LimitExceeded", "gpu-a10-count", Quota),
        ("InternalError", "The disk broke.", CloudError),
    ],
)
def test_from_message_maps_work_request_errors_to_classes(
    code: str, message: str, kind: type[CloudError]
) -> None:
    assert type(errors.from_message(code, message, "LaunchInstance")) is kind


def test_mode_finding_reports_a_key_file_others_can_read(tmp_path: Path) -> None:
    from provision.oci.checks import mode_finding

    file = tmp_path / "key.pem"
    assert mode_finding(file) is None
    file.touch(0o600)
    good: Any = mode_finding(file)
    assert good.ok is True
    file.chmod(0o644)
    bad: Any = mode_finding(file)
    assert bad.ok is False
    assert bad.fix == f"Run `chmod 600 {file}`."
