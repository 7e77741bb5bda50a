"""Which image machines get that ask for none, where its driver comes from, and who accepts its terms."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inventories.errors import InvalidInput
from inventories.gpu_driver import NO_DRIVER, DriverPlan
from provision.cloud.records import BootImage
from provision.errors import Denied, RefusedPlan, TermsRefused
from provision.oci import requests
from provision.oci.cloud import OciCloud
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
POLICY = "Allow group <your group> to manage app-catalog-listing in tenancy"


@pytest.mark.parametrize(
    ("account", "fields", "name", "user", "driver", "said"),
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
        (
            {},
            {"terms": True, "shape": "BM.GPU.GB200.4"},
            "Canonical-Ubuntu-24.04-aarch64-2026.06.27-0",
            "ubuntu",
            INSTALL,
            ["the marketplace has none for BM.GPU.GB200.4"],
        ),
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
    said: list[str],
) -> None:
    fake.settings(**account)
    offer = Builder(cloud, tmp_path, **fields).offer()
    assert (offer.image_name, offer.user, offer.driver) == (name, user, driver)
    assert [words for words in said if words not in offer.image_why] == []
    assert bool(offer.terms) is (name == VMI)
    assert operations(fake, mutating=True) == []


def test_boot_commands_grow_disk_and_python_on_oracle_linux(cloud: OciCloud, tmp_path: Path) -> None:
    (grow,) = Builder(cloud, tmp_path, image=ORACLE_9).offer().boot_commands
    assert grow.startswith("/usr/libexec/oci-growfs -y ||")
    first, last = Builder(cloud, tmp_path, image=ORACLE_8).offer().boot_commands
    assert first == grow
    # cloud-init fails where the last command does: no node is taken for ready whose Python is too old.
    assert last.endswith("{ dnf install -y python39 && alternatives --set python3 /usr/bin/python3.9; }")
    assert Builder(cloud, tmp_path, image=UBUNTU).offer().boot_commands == ()


def test_marketplace_terms_are_accepted_once(cloud: OciCloud, tmp_path: Path, fake: FakeCloud) -> None:
    builder = Builder(cloud, tmp_path, terms=True)
    offer = builder.offer()
    assert offer.terms is not None
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
    with pytest.raises(Denied, match="manage app-catalog-listing") as told:
        Builder(cloud, tmp_path, image="marketplace:NVIDIA GPU-Optimized VMI", terms=True).infrastructure()
    assert not isinstance(told.value, TermsRefused)
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
    ("fields", "said"),
    [
        ({"image": "Oracle-Linux-9.6"}, "which brings a driver of its own"),
        ({"image": "Oracle-Linux-9-2026.06.30-0"}, "which is no Ubuntu"),
        ({"image": "marketplace:NVIDIA GPU-Optimized VMI"}, "which brings a driver of its own"),
        ({"shape": "VM.Standard.E4.Flex"}, "has no NVIDIA GPUs"),
    ],
)
def test_offer_refuses_a_driver_version_it_cannot_install(
    cloud: OciCloud, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
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
    gone = BootImage(id="ocid1.image.oc1..none", name=ORACLE_8)
    offer = Builder(cloud, tmp_path, boots_from=gone).offer()
    assert (offer.image_name, offer.user, offer.image_there) == (ORACLE_8, "opc", False)


@pytest.mark.parametrize("fault", [429, 500])
def test_offer_retries_a_failing_marketplace(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud, fault: int
) -> None:
    code = "TooManyRequests" if fault == 429 else "InternalError"
    fake.fault(operation="ListAppCatalogListings", status=fault, code=code, times=2)
    assert Builder(cloud, tmp_path, terms=True).offer().image_name == VMI
