"""Test that every provider in this build refuses options that it does not support."""

from dataclasses import fields
from pathlib import Path

import pytest

from inventories.disk.store import Store
from inventories.errors import InvalidInput
from inventories.specs.spec import Spec
from provision.clouds import PROVIDERS
from provision.registry import load
from provision.unsupported_options import OPTIONS, refuse_unsupported

CLOUDS_ONLY = [
    ({"region": "eu-west-1"}, "--region"),
    ({"disk_gb": 100}, "--disk-gb"),
    ({"spot": True}, "--spot"),
    ({"ssh_cidr": "10.0.0.0/8"}, "--ssh-cidr"),
    ({"ttl_s": 3600.0}, "--ttl"),
    ({"idle_s": 3600.0}, "--idle"),
    ({"compartment": "ocid1.compartment"}, "--compartment"),
    ({"profile": "work"}, "--profile"),
    ({"ssh_port": 22}, "network.ssh_port"),
    ({"subnet_id": "subnet-1"}, "--subnet-id"),
    ({"public_ip": False}, "--no-public-ip"),
]


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize(("settings", "option"), CLOUDS_ONLY)
def test_free_providers_refuse_cloud_only_options(tmp_path, name, settings, option):
    provider = load(name, Store(tmp_path).cluster("default"))
    with pytest.raises(InvalidInput, match=f"^{name} has no {option}: "):
        provider.plan(Spec(provider=name, **settings), None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Spec(provider="local", hosts=Path("hosts.yaml")), "local has no --hosts: "),
        (Spec(provider="local", bastion="a@b"), "local has no --bastion: "),
        (Spec(provider="hosts", shape="g5.xlarge"), "hosts has no --shape: "),
        (Spec(provider="local", image="ubuntu"), "local has no --image: "),
        (Spec(provider="hosts", image="ubuntu"), "hosts has no --image: "),
        (Spec(provider="hosts", context="mine"), "hosts has no --context: "),
        (Spec(provider="local", ttl_s=1.0, spot=True), "local has no --spot, --ttl: "),
    ],
)
def test_local_and_hosts_refuse_each_others_options(tmp_path, spec, message):
    with pytest.raises(InvalidInput, match=message):
        load(spec.provider, Store(tmp_path).cluster("default")).plan(spec, None)


def test_refuse_unsupported_accepts_honoured_and_harmless_options():
    spec = Spec(region="r", max_cost_usd=1.0, count=2, python="/usr/bin/python3")
    refuse_unsupported(spec, "aws", because="it is small")
    assert set(OPTIONS) <= {field.name for field in fields(Spec)}
