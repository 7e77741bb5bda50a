"""Test the default image of machines, the source of its driver, and who accepts its terms."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inventories.errors import InvalidInput
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan
from provision.errors import Denied, RefusedPlan, TermsRefused
from provision.oci import requests
from provision.oci.cloud import OciCloud
from provision.oci.images import choice, marketplace
from provision.oci.images.marketplace import CLUSTER_IMAGE
from provision.oci.run_command import boot_command
from provision.records import BootImage
from tests.fakes.client import FakeCloud
from tests.fakes.oci.images import IMAGES
from tests.provision.oci.building import Builder, operations

VMI = "NVIDIA GPU-Optimized VMI 26.04.1"
ORACLE_9 = "Oracle-Linux-9.6-Gen2-GPU-2026.06.30-0"
ORACLE_8 = "Oracle-Linux-8-Gen2-GPU-2026.06.30-0"
UBUNTU = "Canonical-Ubuntu-24.04-2026.06.26-0"
NO_MARKET = {"refused_by_policy": ["*AppCatalog*"]}
NO_BUILDS = {"absent_images": ["Oracle-Linux-*-Gen2-GPU-*"]}
IMAGE, INSTALL = DriverPlan(source="image"), DriverPlan(source="install")
VOLTA = DriverPlan(source="install", version="580")
BUILD = "Oracle-Linux-8.10-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0-GPU-570-OPEN-CUDA-12.8-2026.03.20-0"
CLUSTER = f"{CLUSTER_IMAGE} {BUILD}"
POLICY = "Allow group <your group> to manage app-catalog-listing in tenancy"


@pytest.mark.parametrize(
    ("account", "fields", "name", "user", "driver", "message"),
    [
        ({}, {"terms": True}, VMI, "ubuntu", IMAGE, ["it brings the driver"]),
        ({}, {}, ORACLE_9, "opc", IMAGE, ["brings the driver", "terms are not accepted", "--accept-terms"]),
        (NO_MARKET, {"terms": True}, ORACLE_9, "opc", IMAGE, [POLICY]),
        (
            NO_MARKET | {"absent_images": ["Oracle-Linux-9*-Gen2-GPU-*"]},
            {"terms": True},
            ORACLE_8,
            "opc",
            IMAGE,
            [POLICY],
        ),
        (
            NO_MARKET | NO_BUILDS,
            {"terms": True},
            UBUNTU,
            "ubuntu",
            INSTALL,
            ["gpuctl installs the driver", POLICY, "Oracle Linux has no GPU build for VM.GPU.A10.2"],
        ),
        ({}, {"terms": True, "shape": "BM.GPU.H100.8"}, CLUSTER, "opc", IMAGE, ["what RDMA needs"]),
        ({}, {"terms": True, "shape": "BM.GPU.A10.4"}, VMI, "ubuntu", IMAGE, ["it brings the driver"]),
        (
            {},
            {"shape": "BM.GPU.H100.8"},
            ORACLE_9,
            "opc",
            IMAGE,
            [
                f"the {CLUSTER_IMAGE} and the NVIDIA GPU-Optimized VMI are not taken: the terms are not accepted",
            ],
        ),
        (NO_MARKET, {"terms": True, "shape": "BM.GPU.H100.8"}, ORACLE_9, "opc", IMAGE, [POLICY]),
        (
            {"absent_images": ["*-OFED-*-GPU-570-*"]},
            {"terms": True, "shape": "BM.GPU.H100.8", "image": f"marketplace:{CLUSTER_IMAGE}"},
            CLUSTER,
            "opc",
            IMAGE,
            ["as asked for"],
        ),
        (
            {},
            {"terms": True, "shape": "VM.GPU3.1"},
            UBUNTU,
            "ubuntu",
            VOLTA,
            ["gpuctl installs driver 580, the last branch that runs its GPUs"],
        ),
        ({}, {"terms": True, "shape": "VM.GPU2.1"}, UBUNTU, "ubuntu", VOLTA, ["driver 580"]),
        ({}, {"shape": "BM.GPU3.8", "image": UBUNTU}, UBUNTU, "ubuntu", VOLTA, ["as asked for"]),
        (
            {},
            {"terms": True, "driver": "580"},
            UBUNTU,
            "ubuntu",
            DriverPlan(source="install", version="580"),
            ["only on Ubuntu can driver 580 be chosen"],
        ),
        ({}, {"terms": True, "driver": "none"}, UBUNTU, "ubuntu", NO_DRIVER, ["--driver none"]),
        ({}, {"shape": "VM.Standard.E4.Flex"}, UBUNTU, "ubuntu", NO_DRIVER, ["has no NVIDIA GPUs"]),
        (
            {},
            {"terms": True, "driver": "none", "image": f"marketplace:{VMI.rpartition(' ')[0]}"},
            VMI,
            "ubuntu",
            NO_DRIVER,
            ["as asked for"],
        ),
        (
            {},
            {"image": "Canonical-Ubuntu-22.04"},
            "Canonical-Ubuntu-22.04-2026.06.26-0",
            "ubuntu",
            INSTALL,
            [],
        ),
        ({}, {"image": "Oracle-Linux-9-2026.06.30-0"}, "Oracle-Linux-9-2026.06.30-0", "opc", IMAGE, []),
    ],
)
def test_offer_chooses_image_and_driver_by_account_and_options(
    cloud: OciCloud,
    tmp_path: Path,
    fake: FakeCloud,
    account: dict[str, Any],
    fields: dict[str, Any],
    name: str,
    user: str,
    driver: DriverPlan,
    message: list[str],
) -> None:
    fake.settings(**account)
    offer = Builder(cloud, tmp_path, **fields).offer()
    assert (offer.image_name, offer.user, offer.driver) == (name, user, driver)
    assert [words for words in message if words not in offer.image_why] == []
    assert bool(offer.terms) is (name in (VMI, CLUSTER))
    assert operations(fake, mutating=True) == []


def test_boot_commands_grow_disk_and_python_on_oracle_linux(cloud: OciCloud, tmp_path: Path) -> None:
    first, last, login = Builder(cloud, tmp_path, shape="BM.GPU.H100.8", terms=True).offer().boot_commands
    grow, login_9 = Builder(cloud, tmp_path, image=ORACLE_9).offer().boot_commands
    assert login == login_9 == boot_command("opc")
    assert grow.startswith("/usr/libexec/oci-growfs -y ||")
    assert Builder(cloud, tmp_path, image=ORACLE_8).offer().boot_commands == (first, last, login)
    assert first == grow
    # cloud-init fails with its last command, so a node with an old Python never counts as ready.
    assert last.endswith("{ dnf install -y python39 && alternatives --set python3 /usr/bin/python3.9; }")
    assert Builder(cloud, tmp_path, image=UBUNTU).offer().boot_commands == (boot_command("ubuntu"),)


def test_marketplace_terms_are_accepted_once(cloud: OciCloud, tmp_path: Path, fake: FakeCloud) -> None:
    builder = Builder(cloud, tmp_path, terms=True)
    offer = builder.offer()
    assert offer.terms.name == VMI
    assert [link.split("/")[2] for link in offer.terms.links] == [
        "cloudmarketplace.oracle.com",
        "www.nvidia.com",
    ]
    builder.machines(2)
    builder.infrastructure()
    assert operations(fake).count("CreateAppCatalogSubscription") == 1
    later = Builder(cloud, tmp_path, "later").offer()
    assert (later.image_name, later.terms) == (VMI, None)


def test_offer_prefers_an_image_whose_terms_are_accepted(cloud: OciCloud, tmp_path: Path) -> None:
    old = next(image for image in IMAGES.values() if image.listing_version == "25.10.1")
    api = cloud.api
    listing = Builder(cloud, tmp_path, terms=True).offer().facts["listing"][0]
    agreements = api.call("compute.get_app_catalog_listing_agreements", listing, old.listing_version)
    api.call("compute.create_app_catalog_subscription", requests.subscription(api.compartment, agreements))
    offer = Builder(cloud, tmp_path).offer()
    assert (offer.image_id, offer.terms) == (old.id, None)
    assert Builder(cloud, tmp_path, terms=True).offer().image_name == VMI


def test_offer_of_a_marketplace_image_requires_accept_terms(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud
) -> None:
    with pytest.raises(InvalidInput, match=r"26\.04\.1.*https://.*--accept-terms"):
        Builder(cloud, tmp_path, image="marketplace:NVIDIA GPU-Optimized VMI").offer()
    fake.settings(refused_by_policy=["CreateAppCatalogSubscription"])
    with pytest.raises(Denied, match="manage app-catalog-listing") as report:
        Builder(cloud, tmp_path, image="marketplace:NVIDIA GPU-Optimized VMI", terms=True).infrastructure()
    assert not isinstance(report.value, TermsRefused)
    assert operations(fake, mutating=True) == ["CreateAppCatalogSubscription"]


def test_offer_after_refused_terms_takes_the_next_image(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud
) -> None:
    fake.settings(refused_by_policy=["CreateAppCatalogSubscription"])
    builder = Builder(cloud, tmp_path, terms=True)
    assert builder.offer().image_name == VMI
    with pytest.raises(TermsRefused, match="manage app-catalog-listing"):
        builder.infrastructure()
    offer = builder.offer()
    assert (offer.image_name, offer.terms) == (ORACLE_9, None)
    assert "the account may not accept its terms" in offer.image_why
    assert "CreateVcn" not in operations(fake)


def test_prepare_refuses_terms_that_changed_since_shown(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud
) -> None:
    builder = Builder(cloud, tmp_path, terms=True)
    offer = builder.offer()
    assert offer.terms is not None
    shown = replace(offer, terms=replace(offer.terms, links=("https://example.com/other",)))
    with pytest.raises(RefusedPlan, match="have changed"):
        builder.infrastructure(shown)
    assert operations(fake, mutating=True) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "Oracle-Linux-9.6"}, "which brings a driver of its own"),
        ({"image": "Oracle-Linux-9-2026.06.30-0"}, "which is no Ubuntu"),
        ({"image": "marketplace:NVIDIA GPU-Optimized VMI"}, "which brings a driver of its own"),
        ({"shape": "VM.Standard.E4.Flex"}, "has no NVIDIA GPUs"),
    ],
)
def test_offer_refuses_a_driver_version_it_cannot_install(
    cloud: OciCloud, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Builder(cloud, tmp_path, driver="580", terms=True, **fields).offer()


def test_offer_for_an_added_machine_keeps_the_image_of_the_others(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud
) -> None:
    (machine,) = Builder(cloud, tmp_path).machines()
    assert machine.image_id is not None
    had = BootImage(id=machine.image_id)
    # Now the first choice could be had.
    offer = Builder(cloud, tmp_path, terms=True, boots_from=had).offer()
    assert (offer.image_name, offer.terms, offer.image_there) == (ORACLE_9, None, True)
    assert offer.image_why == "the image of the machines that are there"
    missing = BootImage(id="ocid1.image.oc1..none", name=ORACLE_8)
    offer = Builder(cloud, tmp_path, boots_from=missing).offer()
    assert (offer.image_name, offer.user, offer.image_there) == (ORACLE_8, "opc", False)


@pytest.mark.parametrize("fault", [429, 500])
def test_offer_retries_a_failing_marketplace(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud, fault: int
) -> None:
    code = "TooManyRequests" if fault == 429 else "InternalError"
    fake.fault(operation="ListAppCatalogListings", status=fault, code=code, times=2)
    assert Builder(cloud, tmp_path, terms=True).offer().image_name == VMI


def test_cluster_image_terms_come_before_rdma_machines(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud
) -> None:
    builder = Builder(cloud, tmp_path, shape="BM.GPU.H100.8", terms=True)
    assert builder.offer().notes == ()
    (machine,) = builder.machines()
    assert IMAGES[str(machine.image_id)].name == BUILD
    assert operations(fake).count("CreateAppCatalogSubscription") == 1
    # An image with accepted terms needs no second yes, and no other image.
    later = Builder(cloud, tmp_path, "later", shape="BM.GPU.H100.8").offer()
    assert (later.image_name, later.terms, later.notes) == (CLUSTER, None, ())


def test_refused_terms_leave_an_rdma_shape_with_tcp(cloud: OciCloud, tmp_path: Path, fake: FakeCloud) -> None:
    fake.settings(refused_by_policy=["CreateAppCatalogSubscription"])
    builder = Builder(cloud, tmp_path, shape="BM.GPU.H100.8", terms=True)
    with pytest.raises(TermsRefused):
        builder.infrastructure()
    offer = builder.offer()
    assert (offer.image_name, offer.notes) == (ORACLE_9, (choice.NO_RDMA,))


@pytest.mark.parametrize(
    ("fields", "notes"),
    [
        ({"shape": "VM.GPU.A10.2"}, []),
        ({"shape": "BM.GPU.A10.4", "image": UBUNTU}, []),
        ({"shape": "BM.GPU.H100.8", "driver": "580"}, [choice.NO_RDMA]),
        ({"shape": "BM.GPU.H100.8", "image": UBUNTU}, [f"{choice.NO_RDMA}. {choice.WITH_RDMA}"]),
    ],
)
def test_plan_notes_that_nccl_uses_tcp_with_an_image_without_rdma(
    cloud: OciCloud, tmp_path: Path, fields: dict[str, Any], notes: list[str]
) -> None:
    assert list(Builder(cloud, tmp_path, **fields).offer().notes) == notes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (CLUSTER, True),
        ("OracleLinux-8-OCA-RHCK-OFED-23.10-2.1.3.1-GPU-550-CUDA-12.4-2024.05.08-0", True),
        ("Canonical-Ubuntu-22.04-2026.02.28-0-DOCA-OFED-3.2.1-GPU-580-OPEN-CUDA-13.0-2026.03.13-0", True),
        (UBUNTU, False),
        (ORACLE_9, False),
        (VMI, False),
        ("our image", None),
        ("ocid1.image.oc1.eu-frankfurt-1.none", None),
    ],
)
def test_has_rdma_knows_published_images_by_name(name: str, expected: bool | None) -> None:
    assert marketplace.has_rdma(name) is expected


def test_rdma_note_of_an_unknown_image_says_that_it_is_unknown() -> None:
    note = choice.rdma_note("our image", default=False)
    assert note.startswith("gpuctl does not know whether RDMA works with the image 'our image'")
    assert note.endswith(choice.WITH_RDMA)


def test_builds_of_the_cluster_image_are_nvidias_with_the_newest_driver_first() -> None:
    versions = [
        "OL-OFED-1-GPU-550-CUDA-12.4-2026.03.21-0",
        "OL-OFED-1-AMD-ROCM-632-2026.03.22-0",
        "OL-OFED-1-GPU-570-OPEN-CUDA-12.8-2026.03.19-0",
        "OL-OFED-1-GPU-570-OPEN-CUDA-12.8-2026.03.20-0",
        "OL-OFED-1-2026.03.23-0",
    ]
    rows = [{"listingResourceVersion": name, "timePublished": name[-12:-2]} for name in versions]
    ordered = marketplace.in_order(CLUSTER_IMAGE, rows)
    assert [item["listingResourceVersion"] for item in ordered] == [versions[3], versions[2], versions[0]]
    assert marketplace.in_order("Another image", rows)[0]["listingResourceVersion"] == versions[4]
