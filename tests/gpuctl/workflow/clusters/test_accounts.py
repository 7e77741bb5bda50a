"""The contents of all accounts: each place once, and failures that no other profile hides."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpuctl.app import App
from gpuctl.workflow.clusters import accounts
from provision.errors import BadCredentials, CloudError, Denied
from provision.records import Target
from provision.rented.interface import Cloud
from provision.rented.scan import Failed, Scanned, ScanResult, Scope
from provision.rented.tagged_clusters import RegionContents

TARGET = Target(provider="aws", region="us-east-1", account="1234")
REGION = Scanned(
    cloud=cast("Cloud", SimpleNamespace(target=TARGET)),
    contents=RegionContents(clusters=(), network=("nat-gateway nat-1",), network_hourly_usd=0.05),
)


def scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: ScanResult) -> accounts.Accounts:
    """Scan with a profile that sees the region, and a default account with that result."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))

    def scan_all(scope: Scope, _: object) -> ScanResult:
        return default if scope.profile is None else ScanResult(scanned=(REGION,), failed=())

    monkeypatch.setattr(accounts, "scan_all", scan_all)
    return accounts.scan_accounts(App(), replace(TARGET, profile="work"))


def failed(error: CloudError, target: Target = TARGET, *, passed_over: bool = False) -> ScanResult:
    return ScanResult(scanned=(), failed=(Failed(target=target, error=error, passed_over=passed_over),))


def test_two_profiles_of_an_account_count_a_place_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = scan(tmp_path, monkeypatch, ScanResult(scanned=(REGION,), failed=()))
    assert sum(region.contents.network_hourly_usd for region in found.regions) == 0.05


def test_expired_credentials_of_the_default_account_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = failed(BadCredentials("The session has expired."), Target(provider="aws"))
    assert [str(place) for place in scan(tmp_path, monkeypatch, expired).problems] == [
        "aws: The session has expired."
    ]


def test_places_that_are_passed_over_are_kept_unless_another_profile_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(TARGET, region="us-west-2")
    assert scan(tmp_path, monkeypatch, failed(Denied("No."), passed_over=True)).passed_over == ()
    found = scan(tmp_path, monkeypatch, failed(Denied("No."), other, passed_over=True))
    assert [place.target for place in found.passed_over] == [other]
