"""Test the provider chosen for a spec, and that it is imported only on use."""

import json
import subprocess
from pathlib import Path

import pytest

from inventories.disk.store import Store
from inventories.errors import InvalidInput
from inventories.specs.spec import Spec
from provision.clouds import CLOUDS, PROVIDERS
from provision.errors import ProvisionError, UnknownShape
from provision.pricing.catalog import SHAPES, infer
from provision.registry import load


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (Spec(shape="local"), "local"),
        (Spec(provider="local"), "local"),
        (Spec(hosts=Path("hosts.yaml")), "hosts"),
        (Spec(provider="local", hosts=Path("hosts.yaml")), "local"),
        (Spec(provider="oci", shape="g5.xlarge"), "oci"),
    ],
)
def test_infer_returns_the_provider_of_a_spec(spec, name):
    assert infer(spec) == name


def test_infer_without_provider_or_shape_names_the_options(tmp_path):
    with pytest.raises(InvalidInput, match="--provider local") as error:
        infer(Spec(count=2))
    assert "--shape" in str(error.value)
    assert "--hosts" in str(error.value)


@pytest.mark.parametrize(
    ("shape", "near"),
    [
        ("vm.gpu.a10.2", "VM.GPU.A10.2"),
        ("g5-12xlarge", "g5.12xlarge"),
        ("lokal", "local"),
    ],
)
def test_infer_suggests_the_nearest_shape_for_a_misspelt_one(shape, near):
    with pytest.raises(UnknownShape, match="nearest") as error:
        infer(Spec(shape=shape))
    assert near in str(error.value)


def test_infer_refuses_a_shape_no_provider_has():
    with pytest.raises(UnknownShape, match="No provider has a shape 'zzz'"):
        infer(Spec(shape="zzz"))


@pytest.mark.parametrize(
    ("shape", "provider"),
    [("VM.GPU.A10.2", "oci"), ("VM.GPU.B1.1", "oci"), ("p5.48xlarge", "aws"), ("g5.2xlarge", "aws")],
)
def test_infer_recognizes_cloud_shapes_missing_in_the_catalog(shape, provider):
    assert infer(Spec(shape=shape)) == provider


@pytest.mark.parametrize("name", PROVIDERS)
def test_load_returns_each_free_provider_with_no_machines(name, tmp_path):
    provider = load(name, Store(tmp_path).cluster("default"))
    assert provider.name == name
    assert provider.billed is False
    assert provider.find() == ()
    assert provider.destroy() == ()


@pytest.mark.parametrize("name", CLOUDS)
def test_load_returns_each_cloud_provider_with_no_machines(name, tmp_path):
    provider = load(name, Store(tmp_path).cluster("default"))
    assert provider.name == name
    assert provider.billed is True
    assert provider.find() == ()
    assert provider.destroy() == ()


@pytest.mark.parametrize("name", ["azure", "locl", ""])
def test_load_refuses_an_unknown_provider(name, tmp_path):
    with pytest.raises(
        ProvisionError, match=f"no provider '{name}'.*local or hosts or kubernetes or oci or aws"
    ):
        load(name, Store(tmp_path).cluster("default"))


def test_shapes_have_1_2_4_or_8_gpus():
    assert SHAPES["BM.GPU.H100.8"].gpus == 8
    assert SHAPES["p3.8xlarge"].gpus == 4
    assert all(shape.gpus in (1, 2, 4, 8) for shape in SHAPES.values())
    assert {shape.provider for shape in SHAPES.values()} == {"oci", "aws"}


def test_providers_module_imports_no_provider_or_sdk(script):
    program = script("""
import json
import provision.clouds, provision.registry
heavy = ["asyncssh", "psutil", "cryptography", "boto3", "oci"]
heavy += ["provision.local.provider", "provision.hosts", "provision.pricing.catalog", "provision.rented.provider"]
print(json.dumps([name for name in heavy if name in sys.modules]))
""")
    assert json.loads(subprocess.run(program, capture_output=True, check=True, timeout=20).stdout) == []
