"""Throttling, lost replies and credentials that end, on any call to OCI."""

import os
from dataclasses import replace

import pytest

from inventories.errors import InvalidInput
from provision.errors import BadCredentials, Denied, Throttled, Unclear
from provision.oci.cloud import OciCloud, connect
from provision.records import Target
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import Builder, FastClock


def test_throttled_call_is_retried(builder: Builder, fake: FakeCloud) -> None:
    fake.fault(kind="error", status=429, code="TooManyRequests", message="slow down", times=8)
    builder.machines()
    assert len(fake.live_instances()) == 1


def test_throttled_call_fails_at_the_deadline(
    cloud: OciCloud, fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud.api, "_retry", replace(cloud.api._retry, throttled_for_s=5.0))
    fake.fault(kind="error", status=429, code="TooManyRequests", message="slow down", times=0)
    with pytest.raises(Throttled):
        cloud.instances()


def test_unanswered_list_is_retried_and_never_read_as_empty(
    cloud: OciCloud, fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.fault(operation="ListInstances", kind="drop_before", times=2)
    assert cloud.instances() == ()
    monkeypatch.setattr(cloud.api, "_retry", replace(cloud.api._retry, unclear_for_s=3.0))
    fake.fault(
        operation="ListInstances", kind="error", status=500, code="InternalError", message="oh", times=0
    )
    with pytest.raises(Unclear):
        cloud.instances()


def test_parts_fails_when_one_list_is_denied(builder: Builder, cloud: OciCloud, fake: FakeCloud) -> None:
    builder.infrastructure()
    fault = {"kind": "error", "status": 404, "code": "NotAuthorizedOrNotFound", "message": "no", "times": 0}
    fake.fault(operation="ListNatGateways", **fault)
    with pytest.raises(Denied, match="manage virtual-network-family"):
        cloud.resources()


def test_call_with_ended_session_raises_bad_credentials(cloud: OciCloud, fake: FakeCloud) -> None:
    fake.fault(kind="error", status=401, code="NotAuthenticated", message="The session has ended", times=0)
    with pytest.raises(BadCredentials, match=r"The session has ended\. Check user"):
        cloud.instances()


def test_refreshed_session_token_is_read_again(fake: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCI_CLI_PROFILE", "TOKEN")
    cloud = connect(Target(provider="oci"), clock=FastClock())
    assert cloud.target.profile == "TOKEN"
    file = cloud.api.credentials.token_file
    good = file.read_text()
    try:
        file.write_text("stale")
        stale = connect(Target(provider="oci"), clock=FastClock())
        with pytest.raises(BadCredentials, match="oci session refresh"):
            stale.instances()
        file.write_text(good)  # as `oci session refresh` does
        os.utime(file, ns=(1, 1))
        assert stale.instances() == ()
    finally:
        file.write_text(good)


def test_regions_lists_oci_regions(cloud: OciCloud) -> None:
    assert "eu-frankfurt-1" in cloud.regions()


def test_connect_refuses_an_endpoint_without_scheme(fake: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_OCI_ENDPOINT", "127.0.0.1:80")
    with pytest.raises(InvalidInput, match="GPUCTL_OCI_ENDPOINT"):
        connect(Target(provider="oci"), clock=FastClock())
