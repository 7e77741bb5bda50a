"""The shapes that are known, and whose a name is."""

import re

import pytest

from provision.aws import catalog as aws_catalog
from provision.oci import catalog as oci_catalog
from provision.oci.catalog import PRICED_AT
from provision.oci.price_list import PARTS
from provision.pricing.catalog import (
    SHAPES,
    last_driver_branch,
    nearest_shapes,
    nvidia_by_name,
    provider_by_name,
)


def test_shapes_have_gpus_memory_network_and_price():
    assert len(SHAPES) == 44
    for name, shape in SHAPES.items():
        assert shape.name == name
        assert shape.gpus in (1, 2, 4, 8)
        assert re.fullmatch(r"[A-Z]+[0-9]+[A-Z]?|RTXPRO", shape.gpu)
        assert 16 <= shape.gpu_memory_gb <= 300
        assert shape.network_gbps > 0 or name == "BM.GPU.RTXPRO.8"
        if not name.startswith("g7e."):
            assert shape.usd_per_hour is not None and 0.5 < shape.usd_per_hour / shape.gpus < 20
        assert (shape.priced_at, shape.price_source) >= (PRICED_AT, "shipped with gpuctl")


def test_shapes_of_one_gpu_model_have_the_same_memory_but_a100():
    memory: dict[str, set[int]] = {}
    for shape in SHAPES.values():
        memory.setdefault(shape.gpu, set()).add(shape.gpu_memory_gb)
    assert memory.pop("A100") == {40, 80}
    assert all(len(sizes) == 1 for sizes in memory.values())


def test_oci_shapes_have_the_documented_networks_and_rdma():
    oci = {name: shape for name, shape in SHAPES.items() if shape.provider == "oci"}
    assert len(oci) == 18
    assert all(shape.efa == 0 and not shape.placement_group for shape in oci.values())
    assert {name for name, shape in oci.items() if shape.bare_metal} == {n for n in oci if n[:3] == "BM."}
    # The A10 and V100 machines have TCP only.
    assert {name: shape.rdma_gbps for name, shape in oci.items() if shape.compute_cluster} == {
        "BM.GPU4.8": 1600,
        "BM.GPU.A100-v2.8": 1600,
        "BM.GPU.L40S.4": 800,
        "BM.GPU.H100.8": 3200,
        "BM.GPU.H200.8": 3200,
        "BM.GPU.B200.8": 3200,
        "BM.GPU.B300.8": 6400,
        "BM.GPU.GB200.4": 1600,
        "BM.GPU.GB300.4": 3200,
    }
    assert all(bool(shape.rdma) is shape.compute_cluster for shape in oci.values())
    assert (oci["BM.GPU.A10.4"].network, oci["BM.GPU.A10.4"].network_gbps) == ("2 x 50", 100)
    assert oci["VM.GPU3.4"].network_gbps == 24.6


def test_aws_shapes_have_placement_groups_and_documented_efa():
    aws = {name: shape for name, shape in SHAPES.items() if shape.provider == "aws"}
    assert len(aws) == 26
    assert all(shape.placement_group and not shape.compute_cluster for shape in aws.values())
    assert all(shape.rdma_gbps == 0 for shape in aws.values())
    assert [name for name, shape in aws.items() if shape.bare_metal] == ["g4dn.metal"]
    assert {name: shape.efa for name, shape in aws.items() if shape.efa > 1} == {
        "g6e.48xlarge": 4,
        "g7e.24xlarge": 2,
        "g7e.48xlarge": 4,
        "p4d.24xlarge": 4,
        "p4de.24xlarge": 4,
        "p5.48xlarge": 32,
        "p5en.48xlarge": 16,
        "p6-b200.48xlarge": 8,
        "p6-b300.48xlarge": 16,
    }


def test_shape_price_covers_the_whole_machine():
    names = (
        "VM.GPU3.1",
        "VM.GPU3.2",
        "VM.GPU3.4",
        "BM.GPU3.8",
        "VM.GPU.A10.1",
        "VM.GPU.A10.2",
        "BM.GPU.A10.4",
    )
    assert [SHAPES[name].usd_per_hour for name in names] == [2.95, 5.90, 11.80, 23.60, 2.0, 4.0, 8.0]


def test_oci_shapes_of_one_billing_part_cost_the_same_per_gpu():
    assert set(PARTS) == {name for name, shape in SHAPES.items() if shape.provider == "oci"}
    prices: dict[str, set[float]] = {}
    for name, part in PARTS.items():
        usd = SHAPES[name].usd_per_hour
        assert usd is not None
        prices.setdefault(part, set()).add(round(usd / SHAPES[name].gpus, 6))
    assert all(len(values) == 1 for values in prices.values())


def test_shapes_that_gpuctl_does_not_launch_have_a_reason():
    reasons = {name: shape.not_launched for name, shape in SHAPES.items() if shape.not_launched}
    assert set(reasons) == {"BM.GPU.GB200.4", "BM.GPU.GB300.4"}
    assert all("GPU memory clusters" in reason for reason in reasons.values())


def test_last_driver_is_580_for_pascal_and_volta_only():
    old = {name for name, shape in SHAPES.items() if shape.gpu in ("P100", "V100")}
    assert {name for name in SHAPES if last_driver_branch(name) == "580"} == old
    assert {last_driver_branch(name) for name in {*SHAPES, "no.shape"} - old} == {None}
    # For shapes missing from the catalog, the clouds' packages know the branch, by names of shapes and of GPUs.
    assert (oci_catalog.last_driver_branch("BM.GPU2.2"), oci_catalog.last_driver_branch("BM.GPU.A10.4")) == (
        "580",
        None,
    )
    assert [aws_catalog.last_driver_branch(gpus) for gpus in (["K80"], ["M60"], ["T4"], [])] == [
        "470",
        "580",
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        *((name, shape.provider) for name, shape in SHAPES.items()),
        ("VM.Standard.E4.Flex", "oci"),
        ("BM.GPU.MI300X.8", "oci"),
        ("BM.GPU.B300.8", "oci"),
        ("g5.2xlarge", "aws"),
        ("p5e.48xlarge", "aws"),
        ("p6e-gb200.36xlarge", "aws"),
        ("trn1n.32xlarge", "aws"),
        ("t3.micro", "aws"),
        ("m7i-flex.large", "aws"),
        ("u-6tb1.metal", "aws"),
        ("u7in-16tb.224xlarge", "aws"),
        ("c7i.metal-48xl", "aws"),
        ("mac2-m2pro.metal", "aws"),
        ("local", None),
        ("", None),
        ("VM.", None),
        ("vm.gpu.a10.2", None),
        ("VM.GPU.A10.2; rm", None),
        ("g5", None),
        ("g5.huge", None),
        ("my.large", None),
        ("G5.XLARGE", None),
        ("g5.xlarge\n", None),
        ("Standard_NC4as_T4_v3", None),
        ("a2-highgpu-1g", None),
    ],
)
def test_provider_by_name_returns_the_cloud_of_a_shape_name(name, provider):
    assert provider_by_name(name) == provider


def test_nearest_shapes_suggests_similar_names():
    assert nearest_shapes("VM.GPU.A10")[0] == "VM.GPU.A10.1"
    assert nearest_shapes("g5.2xlarge")[0] == "g5.12xlarge"
    assert "local" in nearest_shapes("loca")
    assert nearest_shapes("zzz") == []


def test_nvidia_by_name_accepts_only_nvidia_shapes():
    nvidia = [
        "VM.GPU.A10.2",
        "BM.GPU.H300.8",
        "VM.GPU3.1",
        "g5.2xlarge",
        "gr6.4xlarge",
        "p6-b200.48xlarge",
        "g5g.metal",
    ]
    rest = ["BM.GPU.MI300X.8", "BM.GPU.MI355X-v1.8", "VM.Standard.E4.Flex", "g4ad.xlarge", "trn1.32xlarge"]
    assert [name for name in [*nvidia, *SHAPES] if not nvidia_by_name(name)] == []
    assert [name for name in [*rest, "inf2.xlarge", "t3.micro"] if nvidia_by_name(name)] == []
