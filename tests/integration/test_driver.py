"""The GPUs' driver on machines that `up` makes ready: real apt, dpkg, locks and mirrors, and hosts that reboot."""

import json
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import Gpuctl, a_machine, wait_for

from gpuctl.app import App
from gpuctl.workflow.machines.reach import Boot, Reached, reach
from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from inventories.specs.gpu_driver import DriverPlan
from remote.gpu_driver.decision import Limits
from remote.transport import known_hosts
from tests.fakes import apt_mirror
from tests.fakes.vms import Host, Net, lacking, vms
from tests.vm_support import end_of

pytestmark = pytest.mark.slow

A10, H100, V100, SWITCH = "030200 2236", "030200 2330", "030200 1db1", "068000 22a3"
ASKED = "/var/reboot-asked"
INSTALL = DriverPlan(source="install")
IMAGE = DriverPlan(source="image")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a mirror with the branches 535 and 580."""
    if missing := [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]:
        pytest.skip(f"a host's packages need {' and '.join(missing)}")
    older = apt_mirror.packages(branch=535)
    closed = apt_mirror.packages(kind="")
    return apt_mirror.build(
        tmp_path_factory.mktemp("mirror") / "files", {**older, **closed, **apt_mirror.packages()}
    )


@contextmanager
def hosts(folder: Path, *pci: tuple[str, ...]) -> Iterator[Net]:
    """A host for each of these buses."""
    if sentence := lacking():
        pytest.skip(sentence)
    each = {index: {"pci": devices, "kernel": apt_mirror.KERNEL} for index, devices in enumerate(pci)}
    with vms(folder, count=len(pci), each=each) as net:
        for host in net.hosts:
            place(host, "reboot", f"touch {ASKED}")
        yield net


def place(host: Host, program: str, text: str) -> None:
    """Install a program in the host, ahead of the system's own in PATH."""
    path = f"/usr/local/bin/{program}"
    host.root(f"cat > {path} <<'END'\n#!/bin/sh\n{text}\nEND\nchmod 755 {path}")


def machine_of(host: Host, rank: int, gpus: int | None) -> Machine:
    return a_machine(
        name=host.name,
        rank=rank,
        host=host.address,
        user=host.user,
        gpus=gpus,
        key_file=host.key_file,
        python=sys.executable,
        host_key=host.host_key,
    )


def reboot_when_asked(host: Host) -> bool:
    """Reboot the host if it was asked to, as a machine does. Return whether it was."""
    if host.root(f"rm {ASKED}", check=False).returncode != 0:
        return False
    host.reboot()
    return True


def reached(
    folder: Path, net: Net, plan: DriverPlan, limits: Limits, gpus: tuple[int | None, ...]
) -> tuple[Reached, dict[str, int]]:
    """Run the setup on the hosts as new machines of a cluster; return its result, and reboots by host."""
    machines = [machine_of(host, rank, gpus[rank]) for rank, host in enumerate(net.hosts)]
    cluster = ClusterFolder(folder / "cluster")
    cluster.make()
    cluster.known_hosts_path.write_text(known_hosts.render(machines))
    boot = Boot(
        timeout_s=60, console=lambda _: None, hourly_usd=2.0, made=frozenset(host.name for host in net.hosts)
    )
    reboots = dict.fromkeys((host.name for host in net.hosts), 0)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(reach, App(), cluster, machines, boot=boot, driver=plan, limits=limits)
        deadline = time.monotonic() + 120
        while not result.done():
            assert time.monotonic() < deadline, "the machines are still waited for"
            for host in net.hosts:
                reboots[host.name] += reboot_when_asked(host)
        return result.result(), reboots


QUERY = "dpkg-query --show --showformat='${Package}\\n' 'linux-modules-nvidia-*' 'nvidia-*-server*' 'nvidia-fabric*'"
HOLD = (
    "nohup python3 -c \"import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); "
    "fcntl.lockf(f, fcntl.LOCK_EX); open('/run/held', 'w'); time.sleep(600)\" >/dev/null 2>&1 &"
)


def test_reach_installs_driver_or_explains_why_not_per_machine(
    tmp_path: Path, mirror: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buses = ((A10, A10), (V100,), (H100, SWITCH), *[(A10,)] * 6)
    with (
        hosts(tmp_path, *buses) as net,
        apt_mirror.serve(mirror, net.laptop) as url,
        socket.create_server((net.laptop, 0)) as silent,
    ):
        good, old, switched, cut_off, locked, kernel, password, other, stalled = net.hosts
        for host in net.hosts:
            host.root(apt_mirror.ubuntu([url]))
        place(
            switched,
            "systemctl",
            'echo "$@" >> /var/systemctl; [ "$1" != is-active ] || echo active; [ "$1" != reboot ]',
        )
        cut_off.root(apt_mirror.ubuntu([url.replace(net.laptop, net.subnet.replace("0/24", "77"))]))
        stalled.root(apt_mirror.ubuntu([f"http://{net.laptop}:{silent.getsockname()[1]}/"]))
        locked.root(HOLD)
        wait_for(lambda: locked.root("test -e /run/held", check=False).returncode == 0, what="the lock")
        kernel.root("umount /proc/sys/kernel/osrelease; echo 6.8.0-12-lowlatency > /run/osrelease")
        kernel.root("mount --bind /run/osrelease /proc/sys/kernel/osrelease")
        password.root("rm /etc/sudoers.d/90-cloud-init-users")
        other.root(apt_mirror.ubuntu([url], system="debian"))
        began = time.monotonic()
        limits = Limits(mirror_s=5, lock_s=4, appear_s=2, poll_s=0.5)
        result, reboots = reached(tmp_path, net, INSTALL, limits, (2, None, 1, *[None] * 6))
        assert time.monotonic() - began < 60
        installed = {
            host.name: host.root(QUERY, check=False).stdout.split() for host in (good, old, switched)
        }
        enabled = switched.root("cat /var/systemctl").stdout.splitlines()[0]

    assert reboots == dict.fromkeys(reboots, 0) | {good.name: 1, old.name: 1, switched.name: 1}
    assert [machine.gpus for machine in result.machines] == [2, 1, 1, *[None] * 6]
    modules = "linux-modules-nvidia-580-server"
    assert set(installed[good.name]) == {
        f"{modules}-open-oracle-6.8",
        f"{modules}-open-{apt_mirror.KERNEL}",
        "nvidia-headless-no-dkms-580-server-open",
        "nvidia-utils-580-server",
    }
    assert f"{modules}-{apt_mirror.KERNEL}" in installed[old.name], "Volta needs the proprietary modules"
    assert "nvidia-fabricmanager-580" in installed[switched.name]
    assert enabled == "enable nvidia-fabricmanager"
    assert set(result.problems) == {host.name for host in (cut_off, locked, kernel, password, other, stalled)}
    for host, words in (
        (cut_off, "can't be reached from there (No route to host), so the driver can't be installed."),
        (stalled, f"the package mirror {net.laptop} can't be reached from there (Connection failed"),
        (locked, "has held /var/lib/dpkg/lock-frontend for 4 s, so the driver can't be installed."),
        (kernel, "Ubuntu has no driver for its kernel 6.8.0-12-lowlatency"),
        (password, "sudo refuses the login user there (sudo: a password is required)"),
        (other, "it runs debian of the tests, and gpuctl installs the driver on Ubuntu only."),
    ):
        assert result.problems[host.name].startswith(f"{host.name}: ")
        assert words in result.problems[host.name]
    assert "(python3)" in result.problems[locked.name], "the holder is named"
    assert f"{good.name}: its driver was installed; rebooting once …" in capsys.readouterr().err


SMI_LATER = """\
echo look >> /tmp/looks
[ $(wc -l < /tmp/looks) -gt 3 ] || { echo "couldn't communicate with the NVIDIA driver"; exit 9; }
echo '0, GPU-5a1f0b7c, NVIDIA A10, 23028, 580.65.06'"""
SMI_AFTER_A_REBOOT = """\
if [ -e /tmp/updated-under-a-loaded-module ]; then
    echo 'Failed to initialize NVML: Driver/library version mismatch'
    exit 18
fi
echo '0, GPU-5a1f0b7c, NVIDIA A10, 23028, 580.65.06'"""
SMI_OF_ONE = "echo '0, GPU-5a1f0b7c, NVIDIA A10, 23028, 580.65.06'"


def test_reach_waits_for_image_driver_and_reports_missing_gpus(tmp_path: Path) -> None:
    with hosts(tmp_path, (A10,), (A10,), (A10,), (A10, A10), (A10,)) as net:
        late, waiting, without, partial, fewer = net.hosts
        place(late, "nvidia-smi", SMI_LATER)
        place(waiting, "nvidia-smi", SMI_AFTER_A_REBOOT)
        waiting.root("touch /tmp/updated-under-a-loaded-module")
        place(partial, "nvidia-smi", SMI_OF_ONE)
        place(fewer, "nvidia-smi", SMI_OF_ONE)
        limits = Limits(appear_s=6, poll_s=0.5)
        result, reboots = reached(tmp_path, net, IMAGE, limits, (1, 1, 1, 2, 2))
    assert reboots == dict.fromkeys(reboots, 0) | {waiting.name: 1}
    assert [machine.gpus for machine in result.machines] == [1, 1, 1, 2, 2]
    problems = result.problems
    assert set(problems) == {without.name, partial.name, fewer.name}
    assert re.match(
        f"{without.name}: 1 NVIDIA GPU on the bus, and no driver, \\d+ s after it was ready",
        problems[without.name],
    )
    assert "2 NVIDIA GPUs on the bus, of which nvidia-smi lists 1, " in problems[partial.name]
    assert "nvidia-smi lists 1 of the 2 NVIDIA GPUs that its shape has" in problems[fewer.name]


def test_up_installs_driver_despite_kills_and_reboot(gpuctl: Gpuctl, tmp_path: Path) -> None:
    slow = apt_mirror.build(tmp_path / "mirror", apt_mirror.packages(after=apt_mirror.SLOW))
    with hosts(tmp_path, (A10,)) as net, apt_mirror.serve(slow, net.laptop) as url:
        (host,) = net.hosts
        hosts_file, keys = net.inventory(python=sys.executable)
        words = ("up", "--hosts", str(hosts_file), "--known-hosts", str(keys), "--driver", "auto", "--json")
        host.root(apt_mirror.ubuntu([url], system="debian"))
        refused = gpuctl(*words)
        assert refused.status == 4, refused.err
        assert "gpu-0: it runs debian of the tests" in refused.json["error"]["message"]
        assert [machine["name"] for machine in gpuctl.ok("status", "--json").json["machines"]] == ["gpu-0"]

        host.root(apt_mirror.ubuntu([url]))
        late, _ = reached(tmp_path, net, INSTALL, Limits(install_s=4), (None,))
        assert "has not ended within 4 s, and goes on there" in late.problems["gpu-0"]
        folder = f"/home/{host.user}/.gpuctl-node/driver"

        def status() -> dict[str, Any]:
            """Return the status document of the installation on the host."""
            return dict(json.loads(host.root(f"cat {folder}/*/status.json").stdout))

        begun = status()

        def followers() -> set[str]:
            """The processes that follow the installation."""
            result = host.root("pgrep -f ' [d]river$'", check=False).stdout.split()
            return set(result) - {str(begun["pid"])}

        first = gpuctl.start(*words)
        wait_for(followers, what="the first one that follows")
        first.kill()
        first.communicate()
        wait_for(lambda: not followers(), what="its end")
        second = gpuctl.start(*words)
        before = wait_for(followers, what="the second one that follows")
        host.root("kill $(pgrep -f '^sshd: ubuntu')", check=False)  # one of them may just have ended
        wait_for(lambda: followers() - before, what="another connection")
        assert status()["attempt"] == begun["attempt"], "one installation, which all followed"
        host.reboot()
        wait_for(
            lambda: status()["attempt"] != begun["attempt"], what="an installation after the loss of power"
        )
        host.root("touch /etc/let-go")
        wait_for(lambda: second.poll() is not None or reboot_when_asked(host), what="the order to reboot")
        done = end_of(second)
        assert done.status == 0, done.err
        assert [machine["gpus"] for machine in done.json["machines"]] == [1]
        assert "$ dpkg --configure -a" in host.root(f"cat {folder}/*/apt.log").stdout, (
            "what was half done is completed"
        )
        assert gpuctl.ok(*words).json["machines"][0]["gpus"] == 1
        assert host.root(f"test -e {ASKED}", check=False).returncode != 0, "one reboot"
