"""`up` of machines with GPUs on their bus: their driver works, whatever image is to be had, or `up` says why not."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clouds import KINDS, CloudGpuctl, Kind
from support import Gpuctl
from vm_support import HELLO

from tests.fakes import apt_mirror
from tests.fakes.client import start_fake
from tests.fakes.vms import lacking

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(lacking() is not None, reason=lacking() or ""),
    pytest.mark.skipif(
        shutil.which("dpkg-deb") is None or shutil.which("apt-get") is None,
        reason="hosts install packages with apt-get, and dpkg-deb makes them",
    ),
]

TWO_A10 = ("030200 2236", "030200 2236")
OCI_UP = ("up", "--shape", "VM.GPU.A10.2", "--count", "2", "--ssh-cidr", "127.0.0.1/32", "--yes", "--json")
AWS_UP = ("up", "--shape", "g5.xlarge", "--count", "2", "--ssh-cidr", "127.0.0.1/32", "--yes", "--json")
WAITS_FOR_A_REBOOT = """\
if [ -e /run/updated-under-a-loaded-module ]; then
    echo 'Failed to initialize NVML: Driver/library version mismatch'
    exit 18
fi
"""
MODULE_UPDATED = "touch /run/updated-under-a-loaded-module\n"
COUNTS_BOOTS = "mkdir -p /var/boots; cat /proc/sys/kernel/random/boot_id > /var/boots/first\n"
HOLDS_THE_LOCK = (
    "python3 -c \"import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); "
    'fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(1200)" >/dev/null 2>&1 &\n'
)
REBOOTED = 'cmp -s /var/boots/first /proc/sys/kernel/random/boot_id && echo "as it was" || echo rebooted'


def profile(image: str, first_boot: str, **more: Any) -> dict[str, Any]:
    """Return the profile of an image's instances, for tests.fakes.vm_hosts."""
    return {"image": image, "pci": TWO_A10, "first_boot": COUNTS_BOOTS + first_boot, **more}


def nvidia_smi(before: str = "") -> str:
    """Return the first boot of a machine whose image has an nvidia-smi that runs `before` and then lists the GPUs."""
    path = "/usr/local/bin/nvidia-smi"
    return f"cat > {path} <<'END'\n#!/bin/sh\n{before}{apt_mirror.LIST_GPUS}END\nchmod 755 {path}\n"


def ubuntu(url: str = "{mirror}") -> str:
    """Return the first boot of an Ubuntu with packages from this mirror."""
    return f"{apt_mirror.ubuntu([url])}\n"


@contextmanager
def account(kind: Kind, folder: Path, *profiles: dict[str, Any]) -> Iterator[CloudGpuctl]:
    """gpuctl with an account at a cloud whose instances are VM-like hosts with GPUs on their bus."""
    path = folder / "profiles.json"
    path.write_text(json.dumps(profiles))
    mirror = apt_mirror.build(folder / "mirror", apt_mirror.packages())
    options = ("--vms", str(path), "--mirror", str(mirror))
    project = folder / "project"
    project.mkdir()
    with start_fake(kind.fake, folder, options=options) as cloud:
        yield CloudGpuctl(home=folder / "home", cwd=project, cloud=cloud, kind=kind)


def said_by_all(gpuctl: Gpuctl, command: str) -> list[list[str]]:
    """Return each machine's output of a shell command."""
    document = gpuctl.ok("exec", "--json", "--", "sh", "-c", command).json
    return [node["stdout"].splitlines() for node in document["nodes"]]


def check_gpus(gpuctl: CloudGpuctl, made: Any, *, user: str, each: int, rebooted: bool) -> None:
    """Check that all machines are ready with all their GPUs, then end them."""
    assert [(machine["user"], machine["state"]) for machine in made["machines"]] == [(user, "running")] * 2
    assert [machine["gpus"] for machine in made["machines"]] == [each] * 2
    assert [len(lines) for lines in said_by_all(gpuctl, "nvidia-smi")] == [each] * 2
    assert said_by_all(gpuctl, REBOOTED) == [["rebooted" if rebooted else "as it was"]] * 2


def test_up_on_oci_ends_with_working_gpus_whichever_image_there_is(tmp_path: Path) -> None:
    profiles = (
        profile("NVIDIA-GPU-Optimized-VMI-*", nvidia_smi()),
        profile("Oracle-Linux-*-GPU-*", nvidia_smi()),
        profile("Canonical-Ubuntu-*", ubuntu(), kernel=apt_mirror.KERNEL),
    )
    with account(KINDS["oci"], tmp_path, *profiles) as gpuctl:
        first = gpuctl.ok(*OCI_UP, "--accept-terms")
        assert "NVIDIA GPU-Optimized VMI" in first.err
        check_gpus(gpuctl, first.json, user="ubuntu", each=2, rebooted=False)
        gpuctl.ok("down", "--yes")

        gpuctl.cloud.settings(refused_by_policy=["*AppCatalog*"])
        second = gpuctl.ok(*OCI_UP, "--accept-terms")
        assert "Oracle-Linux-9" in second.err
        check_gpus(gpuctl, second.json, user="opc", each=2, rebooted=False)
        gpuctl.ok("down", "--yes")

        gpuctl.cloud.settings(absent_images=["Oracle-Linux-*-Gen2-GPU-*"])
        third = gpuctl.ok(*OCI_UP, "--accept-terms")
        assert "its driver was installed; rebooting once" in third.err
        check_gpus(gpuctl, third.json, user="ubuntu", each=2, rebooted=True)

        # Damage by the owner is reported before a run, and can be accepted.
        gpuctl.script("hello.py", HELLO)
        gpuctl.ok("exec", "--", "sudo", "rm", "/usr/bin/nvidia-smi")
        refused = gpuctl("train", "--json", "hello.py")
        assert refused.status == 1, refused.err
        assert "there are GPUs, and it would use CPUs." in refused.json["error"]["message"]
        gpuctl.ok("down", "--yes")
        assert gpuctl.cloud.owned() == []


@pytest.mark.whole
def test_up_on_aws_reboots_machines_whose_driver_waits_for_it(tmp_path: Path) -> None:
    waits = profile("Deep Learning*", nvidia_smi(WAITS_FOR_A_REBOOT) + MODULE_UPDATED) | {"pci": TWO_A10[:1]}
    with account(KINDS["aws"], tmp_path, waits) as gpuctl:
        made = gpuctl.ok(*AWS_UP)
        check_gpus(gpuctl, made.json, user="ubuntu", each=1, rebooted=True)
        gpuctl.ok("down", "--yes")
        assert gpuctl.cloud.owned() == []


@pytest.mark.timeout(1200)
def test_up_ends_with_4_and_names_the_cause_where_no_driver_can_be_installed(tmp_path: Path) -> None:
    profiles = [
        profile("*", ubuntu("http://{subnet}.77/"), kernel=apt_mirror.KERNEL, name="default-0"),
        profile("*", ubuntu(), kernel="6.8.0-12-lowlatency", name="default-1"),
    ]
    if os.environ.get("GPUCTL_TEST_SWEEPS") == "all":
        # A lock is waited for ten minutes.
        profiles.append(profile("*", ubuntu() + HOLDS_THE_LOCK, kernel=apt_mirror.KERNEL, name="default-2"))
    count = len(profiles)
    profiles.append(profile("*", ubuntu(), kernel=apt_mirror.KERNEL))
    with account(KINDS["oci"], tmp_path, *profiles) as gpuctl:
        gpuctl.script("hello.py", HELLO)
        gpuctl.cloud.settings(refused_by_policy=["*AppCatalog*"], absent_images=["Oracle-Linux-*-Gen2-GPU-*"])
        words = ("--count", str(count + 1), "--python", sys.executable)
        failed = gpuctl(*OCI_UP, *words, timeout_s=900)
        assert failed.status == 4, failed.err
        lines = failed.json["error"]["message"].splitlines()
        for name, cause in (
            (
                "default-0",
                "can't be reached from there (No route to host), so the driver can't be installed.",
            ),
            ("default-1", "Ubuntu has no driver for its kernel 6.8.0-12-lowlatency"),
            (
                "default-2",
                "has held /var/lib/dpkg/lock-frontend for 10 minutes, so the driver can't be installed.",
            ),
        )[:count]:
            assert [line for line in lines if line.strip().startswith(f"{name}") and cause in line], lines

        refused = gpuctl("train", "--json", "hello.py")
        assert refused.status == 1, refused.err
        message = refused.json["error"]["message"]
        assert "there are GPUs, and it would use CPUs." in message
        assert f"default-{count}" not in message, "its GPUs work"
        on_cpus = gpuctl.ok("train", "--device", "cpu", "--json", "hello.py").json
        assert on_cpus["status"] == "succeeded"
        gpuctl.ok("down", "--yes")
        assert gpuctl.cloud.owned() == []
