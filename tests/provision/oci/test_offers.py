"""Test OCI's offer for a cluster before any resource is created: shape, image, zones, price."""

from pathlib import Path

import pytest

from inventories.errors import InvalidInput
from provision.clouds import describe
from provision.errors import UnknownShape
from provision.oci import offers, preview
from provision.oci.cloud import OciCloud, connect
from provision.oci.images import lookup
from provision.rented.interface import Cloud
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import AD, Builder, FastClock, operations


def test_oci_cloud_has_the_cloud_attributes_and_target(
    cloud: OciCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_protocol: Cloud = cloud
    assert (as_protocol.name, as_protocol.one_user_data) == ("oci", False)
    assert cloud.target.region == "eu-frankfurt-1"
    assert cloud.target.compartment is not None
    assert cloud.consistency_s == 20.0
    monkeypatch.setenv("GPUCTL_CONSISTENCY_S", "2.5")
    assert connect(cloud.target, clock=FastClock()).consistency_s == 2.5


def test_offer_describes_gpus_image_disk_price_and_domains(builder: Builder, fake: FakeCloud) -> None:
    offer = builder.offer()
    assert (offer.gpus, offer.user, offer.disk_gb, offer.hourly_usd) == (2, "opc", 200, 4.0)
    assert offer.image_name == "Oracle-Linux-9.6-Gen2-GPU-2026.06.30-0"
    assert [str(zone) for zone in offer.zones[:4]] == [
        f"{AD}1",
        f"{AD}2",
        f"{AD}3",
        f"{AD}1/FAULT-DOMAIN-1",
    ]
    assert len(offer.zones) == 12
    assert operations(fake, mutating=True) == []


def test_offer_puts_domains_with_reported_capacity_first(builder: Builder, fake: FakeCloud) -> None:
    fake.settings(capacity={"*": {f"{AD}1": 0, f"{AD}2": 0}})
    assert [str(zone) for zone in builder.offer().zones[:3]] == [f"{AD}3", f"{AD}1", f"{AD}2"]


def test_offer_works_without_a_capacity_report(builder: Builder, fake: FakeCloud) -> None:
    for status, code in ((404, "NotAuthorizedOrNotFound"), (500, "InternalError"), (429, "TooManyRequests")):
        fake.clear_faults()
        fake.forget_calls()
        fault = {"kind": "error", "status": status, "code": code, "message": "no reports", "times": 0}
        fake.fault(operation="CreateComputeCapacityReport", **fault)
        offer = builder.offer()
        assert [str(zone) for zone in offer.zones[:3]] == [f"{AD}1", f"{AD}2", f"{AD}3"]
        assert "no reports" in offer.facts["no_capacity_report"]
        assert len(fake.calls("CreateComputeCapacityReport")) == 3


def test_offer_lists_only_domains_that_have_the_shape(cloud: OciCloud, tmp_path: Path) -> None:
    offer = Builder(cloud, tmp_path, shape="BM.GPU4.8").offer()
    assert {zone.name for zone in offer.zones} == {f"{AD}1", f"{AD}2"}
    assert offer.facts["compute_cluster"] is True


def test_offer_reads_a_shape_missing_in_the_catalog(cloud: OciCloud, tmp_path: Path) -> None:
    offer = Builder(cloud, tmp_path, shape="VM.GPU.B1.1").offer()
    assert (offer.gpus, offer.hourly_usd) == (1, None)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("VM.GPU.A10.3", "Near it: VM.GPU.A10"),
        ("BM.GPU.B300.8", "not for your account in eu-frankfurt-1"),
    ],
)
def test_offer_refuses_an_unavailable_shape(
    cloud: OciCloud, tmp_path: Path, shape: str, message: str
) -> None:
    with pytest.raises(UnknownShape, match=message):
        Builder(cloud, tmp_path, shape=shape).offer()


def test_offer_prices_spot_and_refuses_it_for_bare_metal(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud
) -> None:
    builder = Builder(cloud, tmp_path, spot=True)
    assert builder.offer().hourly_usd == 2.0
    builder.machines()
    with pytest.raises(InvalidInput, match="--spot"):
        Builder(cloud, tmp_path, shape="BM.GPU.A10.4", spot=True).offer()


@pytest.mark.parametrize(
    ("image", "name", "user"),
    [
        ("Canonical-Ubuntu-22.04", "Canonical-Ubuntu-22.04-2026.06.26-0", "ubuntu"),
        ("Oracle-Linux-8", "Oracle-Linux-8-Gen2-GPU-2026.06.30-0", "opc"),
        ("Canonical-Ubuntu-24.04-2026.04.30-0", "Canonical-Ubuntu-24.04-2026.04.30-0", "ubuntu"),
        ("marketplace:nvidia gpu-optimized vmi", "NVIDIA GPU-Optimized VMI 26.04.1", "ubuntu"),
    ],
)
def test_offer_finds_images_by_name_and_id(
    cloud: OciCloud, tmp_path: Path, image: str, name: str, user: str
) -> None:
    offer = Builder(cloud, tmp_path, image=image, terms=True).offer()
    assert (offer.image_name, offer.user, offer.image_why) == (name, user, "as asked for")
    if not image.startswith("marketplace:"):
        again = Builder(cloud, tmp_path, image=offer.image_id).offer()
        assert again.image_name == name


@pytest.mark.parametrize("shape", ["BM.GPU.GB200.4", "BM.GPU.GB200-v3.4", "BM.GPU.GB300.4"])
def test_offer_and_outline_refuse_shapes_of_memory_clusters(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud, shape: str
) -> None:
    builder = Builder(cloud, tmp_path, shape=shape)
    for ask in (builder.offer, lambda: preview.outline(builder.cluster)):
        with pytest.raises(InvalidInput, match=rf"{shape} is not launched by gpuctl: .*GPU memory clusters"):
            ask()
    assert operations(fake) == []


@pytest.mark.parametrize(
    ("shape", "billed"),
    [
        ("VM.GPU.A10.2", False),
        ("VM.GPU3.1", True),
        ("VM.GPU2.1", True),
        ("BM.GPU.A10.4", True),
        ("BM.GPU.H100.8", True),
        ("VM.Standard.E4.Flex", False),
        ("VM.DenseIO.E4.Flex", True),
        ("BM.Optimized3.36", True),
        ("VM.Optimized3.Flex", False),
    ],
)
def test_bill_of_a_stopped_machine_pauses_for_standard_shapes_and_virtual_a10(
    shape: str, billed: bool
) -> None:
    assert describe("oci").bills_stopped(shape) is billed


def test_rdma_of_a_shape_without_networks_in_the_catalog_is_as_listed() -> None:
    image = lookup.as_image({"id": "image"})
    name = "BM.GPU.RTXPRO.8"
    assert offers.facts_of(name, {"rdmaPorts": 8}, image)["compute_cluster"] is True
    assert offers.facts_of(name, {"rdmaPorts": 0}, image)["compute_cluster"] is False
    assert offers.facts_of("BM.GPU.H100.8", {}, image)["compute_cluster"] is True


@pytest.mark.parametrize("image", ["Canonical-Ubuntu-26.04", "ocid1.image.oc1..none", "marketplace:None"])
def test_offer_refuses_an_unknown_image(cloud: OciCloud, tmp_path: Path, image: str) -> None:
    with pytest.raises(InvalidInput, match="no image"):
        Builder(cloud, tmp_path, image=image).offer()
