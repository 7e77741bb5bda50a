"""Test pure choices from OCI's lists: image, disk, zones, price."""

from dataclasses import replace
from typing import Any

import pytest

from inventories.errors import InvalidInput
from provision.oci import offers
from provision.oci.catalog import hourly_usd
from provision.oci.images import lookup


def image(name: str, version: str, created: str, **more: Any) -> dict[str, Any]:
    view = {"displayName": name, "operatingSystemVersion": version, "timeCreated": created, "id": name}
    return {"operatingSystem": "Canonical Ubuntu", "sizeInMBs": 47694, **view, **more}


OLD = image("Canonical-Ubuntu-22.04-2026.06.27-0", "22.04", "2026-06-27")
NEW = image("Canonical-Ubuntu-24.04-2026.05.29-0", "24.04", "2026-05-29")
NEWER = image("Canonical-Ubuntu-24.04-2026.06.26-0", "24.04", "2026-06-26")
MINIMAL = image("Canonical-Ubuntu-24.04-Minimal-2026.06.28-0", "24.04 Minimal", "2026-06-28")
ARM = image("Canonical-Ubuntu-24.04-aarch64-2026.06.28-0", "24.04", "2026-06-28")
ARM_MINIMAL = image(
    "Canonical-Ubuntu-24.04-Minimal-aarch64-2026.06.28-0", "24.04 Minimal aarch64", "2026-06-28"
)


def test_newest_ubuntu_skips_minimal_and_deleted_images() -> None:
    assert lookup.newest_ubuntu([OLD, NEW, MINIMAL, NEWER, ARM, ARM_MINIMAL]) is NEWER
    assert lookup.newest_ubuntu([ARM_MINIMAL, ARM]) is ARM  # all that runs on an Arm shape
    assert lookup.newest_ubuntu([MINIMAL]) is None
    assert lookup.newest_ubuntu([{**NEWER, "lifecycleState": "DELETED"}, OLD]) is OLD


def test_by_name_finds_exact_and_newest_matches() -> None:
    every = [OLD, NEW, MINIMAL, NEWER, ARM]
    assert lookup.by_name(every, str(NEW["displayName"]), "VM.GPU.A10.2") is NEW
    assert lookup.by_name(every, "Canonical-Ubuntu-24.04", "VM.GPU.A10.2") is NEWER
    assert lookup.by_name(every, "Canonical-Ubuntu-24.04-Minimal", "VM.GPU.A10.2") is MINIMAL
    with pytest.raises(InvalidInput, match=r"Near it: .*Ubuntu-22\.04"):
        lookup.by_name(every, "Canonical-Ubuntu-22.04-2026", "VM.GPU.A10.2")


@pytest.mark.parametrize(
    ("expected", "near"),
    [
        ("Ubunto", ["Canonical-Ubuntu-24.04-2026.06.26-0", "Canonical-Ubuntu-22.04-2026.06.01-0"]),
        ("ubunto 22.04", ["Canonical-Ubuntu-22.04-2026.06.01-0", "Canonical-Ubuntu-24.04-2026.06.26-0"]),
        ("Orcale-Linux-8", ["Oracle-Linux-9-2026.06.30-0", "Oracle-Linux-8.10-2026.06.30-0"]),
        ("Canonical-Ubunto-24.04-2026.06", ["Canonical-Ubuntu-24.04-2026.06.26-0"]),
        ("zzz", ["Oracle-Linux-9-2026.06.30-0", "Oracle-Linux-8.10-2026.06.30-0", "Rocky-9-2026.06.30-0"]),
    ],
)
def test_near_names_suggests_similar_image_names(expected: str, near: list[str]) -> None:
    names = [
        "Oracle-Linux-9-2026.06.30-0",
        "Oracle-Linux-8.10-2026.06.30-0",
        "Rocky-9-2026.06.30-0",
        "Canonical-Ubuntu-24.04-2026.06.26-0",
        "Canonical-Ubuntu-22.04-2026.06.01-0",
    ]
    assert lookup.near_names(expected, names)[: len(near)] == near


def test_by_name_prefers_gpu_builds_for_gpu_shapes() -> None:
    plain = image("Oracle-Linux-8.10-2026.06.30-0", "8", "2026-06-30")
    gpu = image("Oracle-Linux-8.10-Gen2-GPU-2026.05.30-0", "8", "2026-05-30")
    assert lookup.by_name([plain, gpu], "Oracle-Linux-8.10", "VM.GPU.A10.2") is gpu
    assert lookup.by_name([plain, gpu], "Oracle-Linux-8.10", "VM.Standard.E4.Flex") is plain


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("Canonical Ubuntu Canonical-Ubuntu-24.04-2026.06.26-0", "ubuntu"),
        ("Oracle Linux Oracle-Linux-8.10-Gen2-GPU-2026.06.30-0", "opc"),
        ("Custom NVIDIA GPU-Optimized VMI 26.04.1", "ubuntu"),
        ("Custom my image", "opc"),
    ],
)
def test_user_of_returns_the_login_user_of_an_image(text: str, user: str) -> None:
    assert lookup.user_of(text) == user


def test_disk_gb_defaults_to_200_and_refuses_invalid_sizes() -> None:
    small, large = lookup.as_image(NEWER), replace(lookup.as_image(NEWER), size_gb=256)
    assert small.size_gb == 47
    assert lookup.disk_gb(None, small) == 200
    assert lookup.disk_gb(None, large) == 256
    assert lookup.disk_gb(50, small) == 50
    for request, item in ((49, small), (255, large), (32_769, small)):
        with pytest.raises(InvalidInput, match="--disk-gb"):
            lookup.disk_gb(request, item)


def test_hourly_usd_halves_the_price_for_spot() -> None:
    assert hourly_usd("VM.GPU.A10.2", spot=False) == 4.0
    assert hourly_usd("VM.GPU.A10.2", spot=True) == 2.0
    assert hourly_usd("VM.GPU.B1.1", spot=False) is None


def zone(name: str, **more: Any) -> offers.Domain:
    known: dict[str, Any] = {"shape": {"shape": "S"}, "capacity": None, "left": None}
    return offers.Domain(name=name, fault_domains=("F1", "F2"), **(known | more))


def test_offer_order_puts_domains_with_capacity_first() -> None:
    zones = [
        zone("none", left=0, capacity=True),
        zone("silent"),
        zone("other", shape=None, capacity=True),
        zone("full", capacity=False),
        zone("free", capacity=True),
    ]
    report = [str(zone) for zone in offers.ordered_zones(zones)]
    assert report[:4] == ["free", "silent", "full", "none"]
    assert report[4:8] == ["free/F1", "free/F2", "silent/F1", "silent/F2"]
    assert len(report) == 12


def test_offer_order_puts_domains_with_more_quota_first() -> None:
    shape = {"shape": "S", "gpus": 4}
    zones = [
        zone(name, shape=shape, left=left)
        for name, left in (("small", 3), ("some", 4), ("more", 8), ("unknown", None))
    ]
    report = [str(zone) for zone in offers.ordered_zones(zones)]
    assert report[:4] == ["more", "some", "unknown", "small"]


def test_facts_of_a_shape_report_encryption_limits_and_rdma() -> None:
    fitting = lookup.as_image({**NEWER, "launchOptions": {"bootVolumeType": "PARAVIRTUALIZED"}})
    facts = offers.facts_of("VM.GPU.A10.2", {"quotaNames": ["gpu-a10-count"]}, fitting)
    assert (facts["encrypts_in_transit"], facts["compute_cluster"]) == (True, False)
    assert facts["limits"] == ["gpu-a10-count"]
    facts = offers.facts_of("BM.GPU.H100.8", {"rdmaPorts": 16}, fitting)
    assert (facts["encrypts_in_transit"], facts["compute_cluster"]) == (False, True)
    # Not in the catalog: the API's answer.
    assert offers.facts_of("BM.GPU.NEW.8", {"rdmaPorts": 8}, fitting)["compute_cluster"] is True
    assert offers.facts_of("BM.GPU.A10.4", {"rdmaPorts": 8}, fitting)["compute_cluster"] is False  # TCP


def test_shape_config_sizes_only_flexible_shapes() -> None:
    shape = {
        "isFlexible": True,
        "ocpuOptions": {"min": 1.0, "max": 64.0},
        "memoryOptions": {"defaultPerOcpuInGBs": 16.0},
    }
    assert offers.shape_config(shape) == {"ocpus": 2.0, "memoryInGBs": 32.0}
    assert offers.shape_config({"isFlexible": False}) is None
