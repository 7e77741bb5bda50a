"""Test the default image of machines, and the source of their GPU driver."""

from typing import Any

import pytest

from inventories.errors import InvalidInput
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan
from provision.aws import preview
from provision.records import BootImage
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import User, a_cluster, running

DEEP = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20260701"
UBUNTU = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-20260615"
LINUX = "al2023-ami-2023.9.20260629.0-kernel-6.1-x86_64"
IMAGE, INSTALL = DriverPlan(source="image"), DriverPlan(source="install")
VOLTA = DriverPlan(source="install", version="580")


@pytest.mark.parametrize(
    ("absent", "shape", "fields", "name", "driver", "message"),
    [
        ([], "g5.12xlarge", {}, DEEP, IMAGE, "it brings the driver"),
        (
            ["Deep Learning *"],
            "g5.12xlarge",
            {},
            UBUNTU,
            INSTALL,
            "no Deep Learning Base image for it in us-east-1",
        ),
        ([], "p3.2xlarge", {}, UBUNTU, VOLTA, "gpuctl installs driver 580, the last branch"),
        ([], "p3.2xlarge", {"image": UBUNTU}, UBUNTU, VOLTA, "as asked for"),
        ([], "inf2.xlarge", {}, UBUNTU, NO_DRIVER, "has no NVIDIA GPUs"),
        ([], "t3.micro", {"driver": "auto"}, UBUNTU, NO_DRIVER, "has no NVIDIA GPUs"),
        (
            [],
            "g5.12xlarge",
            {"driver": "580"},
            UBUNTU,
            DriverPlan(source="install", version="580"),
            "only on Ubuntu can driver 580 be chosen",
        ),
        ([], "g5.12xlarge", {"driver": "none"}, UBUNTU, NO_DRIVER, "--driver none asks for no driver"),
        ([], "g5.12xlarge", {"driver": "none", "image": DEEP}, DEEP, NO_DRIVER, "as asked for"),
        ([], "g5.12xlarge", {"image": LINUX}, LINUX, IMAGE, "as asked for"),
        ([], "g5.12xlarge", {"image": UBUNTU}, UBUNTU, INSTALL, "as asked for"),
    ],
)
def test_offer_chooses_image_and_driver_by_shape_and_options(
    user: User,
    fake: FakeCloud,
    absent: list[str],
    shape: str,
    fields: dict[str, Any],
    name: str,
    driver: DriverPlan,
    message: str,
) -> None:
    fake.settings(absent_images=absent)
    offer = user.cloud.offer(a_cluster(shape, **fields))
    assert (offer.image_name, offer.driver, offer.terms) == (name, driver, None)
    assert message in offer.image_why


@pytest.mark.parametrize(
    ("shape", "image", "message"),
    [
        ("g5.12xlarge", DEEP, "which brings a driver of its own"),
        ("g5.12xlarge", LINUX, "which is no Ubuntu"),
        ("inf2.xlarge", None, r"inf2\.xlarge has no NVIDIA GPUs"),
    ],
)
def test_offer_refuses_a_driver_version_it_cannot_install(
    user: User, shape: str, image: str | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        user.cloud.offer(a_cluster(shape, image=image, driver="580"))


def test_offer_refuses_a_driver_branch_without_the_gpus(user: User) -> None:
    with pytest.raises(
        InvalidInput, match=r"590 does not run the GPUs of p3\.2xlarge.*branch that does is 580"
    ):
        user.cloud.offer(a_cluster("p3.2xlarge", driver="590"))


def test_offer_for_an_added_machine_keeps_the_image_of_the_others(user: User) -> None:
    user.launch(a_cluster(image=UBUNTU), 1)
    (machine,) = running(user, 1)
    assert machine.image_id is not None
    offer = user.cloud.offer(a_cluster(boots_from=BootImage(id=machine.image_id)))
    assert (offer.image_name, offer.driver, offer.image_there) == (UBUNTU, INSTALL, True)
    assert offer.image_why == "the image of the machines that are there"
    missing = BootImage(id="ami-0123456789abcdef0", name=DEEP)
    offer = user.cloud.offer(a_cluster(boots_from=missing))
    assert (offer.image_name, offer.driver, offer.user, offer.image_there) == (DEEP, IMAGE, "ubuntu", False)


@pytest.mark.parametrize(
    ("shape", "fields", "noted"),
    [
        ("g5.12xlarge", {}, False),
        ("g5.12xlarge", {"image": UBUNTU}, True),
        ("g5.12xlarge", {"image": DEEP}, False),
        ("g5.12xlarge", {"driver": "580"}, True),
        ("g5.12xlarge", {"image": UBUNTU, "first_count": 1}, False),
        ("g5.xlarge", {"image": UBUNTU}, False),
    ],
)
def test_plan_notes_that_nccl_needs_a_plugin_for_efa(
    user: User, shape: str, fields: dict[str, Any], noted: bool
) -> None:
    notes = user.cloud.offer(a_cluster(shape, **fields)).notes
    assert any("NCCL uses EFA only if the image has libfabric" in note for note in notes) is noted


@pytest.mark.parametrize(
    ("image", "noted"),
    [
        (None, False),
        ("/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id", False),
        ("ami-0123456789abcdef0", True),
    ],
)
def test_outline_notes_that_nccl_needs_a_plugin_for_efa(image: str | None, noted: bool) -> None:
    notes = preview.outline(a_cluster("p5.48xlarge", image=image)).notes
    assert any("NCCL uses EFA only if" in note for note in notes) is noted
