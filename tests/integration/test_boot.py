"""Test machines that boot slowly or never: what `up` waits for and prints, and that no machine is lost."""

import json
import os
import re
import socket
import socketserver
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
import yaml
from clouds import KINDS, CloudGpuctl, Kind, cloud_gpuctl
from support import a_machine, wait_for

from gpuctl.app import App
from gpuctl.workflow.machines.reach import Boot, Reached, reach
from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from inventories.specs.gpu_driver import DriverPlan
from provision.local import processes, state
from provision.local.processes import CLUSTER_MARK, HOST_MARK, Mark
from provision.local.start import PROGRAM
from provision.ssh_keys import new_key
from remote.checks import readiness
from remote.errors import NotReady
from remote.facts import gather
from remote.gpu_driver.decision import Limits
from remote.sessions.connect import connect
from remote.sessions.session import Node
from remote.transport import known_hosts
from tests.fakes.vms import Host, Net, lacking, vms

pytestmark = pytest.mark.slow

PORT = 22722
"""Port of these tests' SSH servers; the fake clouds' machines listen at another port."""
BOOT_S = 12
CONSOLE_CALL = {"oci": "CaptureConsoleHistory", "aws": "GetConsoleOutput"}


class Mute(socketserver.BaseRequestHandler):
    """An SSH server that sends its banner and nothing more."""

    def handle(self) -> None:
        self.request.sendall(b"SSH-2.0-mute\r\n")
        while self.request.recv(4096):
            pass


class MuteServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def mute_server(address: str) -> Iterator[None]:
    with MuteServer((address, PORT), Mute) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def host_file(gpuctl: CloudGpuctl, machine: dict[str, Any], name: str) -> Path:
    """A file of the machine's host, once the fake cloud has written it."""
    result: list[Path] = wait_for(
        lambda: list(gpuctl.home.parent.glob(f"fake-*/**/{machine['id']}/{name}")), what=name, deadline_s=20
    )
    return result[0]


@contextmanager
def ssh_server(gpuctl: CloudGpuctl, machine: dict[str, Any], **changed: str) -> Iterator[None]:
    """Run the machine's SSH server at these tests' port, with changed fields of its configuration."""
    original = host_file(gpuctl, machine, "server.json")
    config = json.loads(original.read_text()) | {"port": PORT} | changed
    path = original.with_name("changed.json")
    path.write_text(json.dumps(config))
    mark = Mark(host=f"{machine['id']} changed", cluster=str(original.parents[1]))

    def ours() -> list[psutil.Process]:
        return [process for process, its in processes.marked().items() if its == mark]

    try:
        started = subprocess.run(
            [sys.executable, "-P", str(PROGRAM), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=state.host_env(
                os.environ,
                home=Path(config["home"]),
                temp_dir=original.with_name("tmp"),
                marks={HOST_MARK: mark.host, CLUSTER_MARK: mark.cluster},
            ),
            timeout=30,
            check=True,
        )
        assert started.stdout, "the server did not start"
        yield
    finally:
        assert not processes.end(ours, grace_s=0.0)


@contextmanager
def launched(kind: Kind, folder: Path, count: int) -> Iterator[tuple[CloudGpuctl, list[dict[str, Any]]]]:
    """Yield gpuctl and machines that run according to their provider, without an SSH server at the expected port."""
    with cloud_gpuctl(kind, folder, hosts=True) as gpuctl:
        spec = {
            "shape": kind.shape,
            "count": count,
            "ssh_cidr": "127.0.0.1/32",
            "python": sys.executable,
            "network": {"ssh_port": PORT},
            # The fake clouds' machines lack the GPUs of their shapes.
            "driver": "none",
        }
        gpuctl.script("cloud.yaml", yaml.safe_dump(spec))
        made = gpuctl.ok("up", "-f", "cloud.yaml", "--yes", "--no-wait", "--json").json
        gpuctl.cloud.forget_calls()
        yield gpuctl, made["machines"]
        gpuctl.cloud.clear_faults()
        gpuctl.ok("down", "--yes")
        assert gpuctl.cloud.owned() == []


def up(*more: str) -> tuple[str, ...]:
    return ("up", "-f", "cloud.yaml", "--yes", *more)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_up_names_failed_boot_stage_with_console_output(kind: Kind, tmp_path: Path) -> None:
    with launched(kind, tmp_path, count=5) as (gpuctl, machines):
        closed, silent, mute, refusing, good = machines
        with host_file(gpuctl, closed, "server.log").open("a") as log:
            filler = "[  OK  ] Reached a target.\r\n"
            log.write(
                f"{filler * 4000}[\x1b[0;1;31mFAILED\x1b[0m] Failed to start ssh.service\r\n{filler * 50}"
            )
        with ExitStack() as stack:
            stack.enter_context(socket.create_server((silent["host"], PORT)))
            stack.enter_context(mute_server(mute["host"]))
            stack.enter_context(ssh_server(gpuctl, refusing, authorized_key=new_key().public))
            stack.enter_context(ssh_server(gpuctl, good))
            began = time.monotonic()
            failed = gpuctl(*up("--boot-timeout", f"{BOOT_S}s", "--json"))
            assert time.monotonic() - began < 6 * BOOT_S
        assert failed.status == 1, failed.err
        message = failed.json["error"]["message"]
        head, *lines, end = message.splitlines()
        assert head == "4 of 5 machines are not ready:"
        for machine, stage in (
            (closed, "no TCP connection: Connection refused"),
            (silent, "the port answers, but SSH failed in its banner"),
            (mute, "the port answers, but SSH failed in its key exchange"),
            (refusing, "the host did not accept"),
        ):
            (line,) = [line for line in lines if line.startswith(f"  {machine['name']} (")]
            assert stage in line
            assert re.search(r"It was waited for \d+ s while it booted\.$", line)
        assert re.fullmatch(
            r"All 5 machines stay and are billed, for \$[\d.]+ an hour\. Ready: default-4\. `gpuctl up --cluster "
            r"default` waits again \(--boot-timeout 30m: longer\), `gpuctl down --cluster default` removes them\.",
            end,
        )
        assert "    [FAILED] Failed to start ssh.service\n" in message
        assert "waiting for default-1 (" in failed.err, "the stage is shown while it is waited for"
        folder = gpuctl.home / "clusters" / "default"
        saved = sorted(folder.glob("console-*.log"))
        assert [path.name for path in saved] == [f"console-default-{rank}.log" for rank in range(4)]
        assert {stat.S_IMODE(path.stat().st_mode) for path in saved} == {0o600}
        assert all("cloud-init" in path.read_text().lower() for path in saved[1:])
        assert saved[0].stat().st_size <= 64 * 1024
        assert saved[0].read_text().endswith("[  OK  ] Reached a target.\n")
        assert all(str(path) in message for path in saved)
        assert not any(part["kind"] == "consolehistory" for part in gpuctl.cloud.state()["resources"])
        assert len(gpuctl.cloud.live_instances()) == 5, "they stay"

        with ExitStack() as stack:
            for machine in machines:
                stack.enter_context(ssh_server(gpuctl, machine))
            reached = gpuctl.ok(*up("--json"))
        assert [machine["state"] for machine in reached.json["machines"]] == ["running"] * 5


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_up_reports_boot_failure_without_console_access(kind: Kind, tmp_path: Path) -> None:
    with launched(kind, tmp_path, count=1) as (gpuctl, _):
        refusal = {"oci": (404, "NotAuthorizedOrNotFound"), "aws": (403, "UnauthorizedOperation")}
        status, code = refusal[kind.provider]
        call = CONSOLE_CALL[kind.provider]
        gpuctl.cloud.fault(
            operation=call, times=0, kind="error", status=status, code=code, message="You may not."
        )
        failed = gpuctl(*up("--boot-timeout", "2s"))
        assert failed.status == 1
        first, second, third = failed.err[failed.err.index("error: ") :].splitlines()
        assert "default-0 (" in first
        assert "no TCP connection: Connection refused" in first
        assert second.startswith("  Its console could not be read: ")
        assert "You may not" in second
        assert third.startswith("The machine stays and is billed, for $")
        assert not list((gpuctl.home / "clusters" / "default").glob("console-*"))


def test_up_with_changed_host_key_reads_no_console(tmp_path: Path) -> None:
    with launched(KINDS["aws"], tmp_path, count=1) as (gpuctl, (machine,)):
        path = tmp_path / "another_key"
        path.touch(mode=0o600)
        path.write_text(new_key().private)
        with ssh_server(gpuctl, machine, host_key=str(path)):
            failed = gpuctl(*up())
        assert failed.status == 1
        assert "the host key has changed" in failed.err
        assert "The machine stays and is billed" in failed.err
        assert gpuctl.cloud.calls("GetConsoleOutput") == []


def test_up_refuses_invalid_uses_of_boot_timeout(tmp_path: Path) -> None:
    with cloud_gpuctl(KINDS["oci"], tmp_path) as gpuctl:
        refused = gpuctl("up", "--provider", "local", "--boot-timeout", "10m")
        assert refused.status == 2
        assert "local has no --boot-timeout" in refused.err
        for words in (("--boot-timeout", "10"), ("--boot-timeout", "10m", "--no-wait")):
            refused = gpuctl(*gpuctl.up_words[:-3], "--yes", *words)
            assert refused.status == 2, refused.err
        assert gpuctl.cloud.calls(mutating=True) == []


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    if sentence := lacking():
        pytest.skip(sentence)
    with vms(tmp_path, count=1) as result:
        yield result


@pytest.fixture
def machine(net: Net) -> Machine:
    (host,) = net.hosts
    return a_machine(
        name=host.name,
        host=host.address,
        user=host.user,
        gpus=None,
        key_file=host.key_file,
        python=sys.executable,
        host_key=host.host_key,
    )


@pytest.fixture
def folder(tmp_path: Path, machine: Machine) -> ClusterFolder:
    made = ClusterFolder(tmp_path / "cluster")
    made.make()
    made.known_hosts_path.write_text(known_hosts.render([machine]))
    return made


@pytest.fixture
def node(machine: Machine, folder: ClusterFolder) -> Iterator[Node]:
    opened = connect(machine, folder)
    yield opened
    opened.close()


def place(host: Host, program: str, text: str) -> None:
    """Install a program in the host, ahead of the system's own in PATH."""
    path = f"/usr/local/bin/{program}"
    host.root(f"cat > {path} <<'END'\n#!/bin/sh\n{text}\nEND\nchmod 755 {path}")


SLOW_CLOUD_INIT = '[ "$*" = "status --wait" ] || exit 9\nuntil [ -e /run/finished ]; do sleep 0.1; done'
ASKED = "/var/reboot-asked"


def test_wait_for_cloud_init_waits_and_returns_errors(net: Net, node: Node) -> None:
    (host,) = net.hosts
    place(host, "cloud-init", f"{SLOW_CLOUD_INIT}\nexit 2")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(readiness.wait_for_cloud_init, node, deadline_s=60, say=lambda _: None)
        wait_for(lambda: host.root("pgrep -f '[s]tatus --wait'", check=False).stdout, what="the wait")
        assert not waiting.done()
        host.root(
            "mkdir -p /run/cloud-init; touch /run/finished;"
            """echo '{"v1": {"errors": ["no such package"]}}' > /run/cloud-init/result.json"""
        )
        set_up = waiting.result(timeout=30)
    assert set_up == readiness.SetUp(cloud_init="degraded", complaints=("no such package",))


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (SLOW_CLOUD_INIT, r"^gpu-0: cloud-init has not ended within 2 s of the first login\."),
        ("exit 1", r"^gpu-0: cloud-init failed\. `gpuctl exec"),
    ],
)
def test_wait_for_cloud_init_raises_on_failure_or_timeout(
    net: Net, node: Node, program: str, sentence: str
) -> None:
    place(net.hosts[0], "cloud-init", program)
    with pytest.raises(NotReady, match=sentence):
        readiness.wait_for_cloud_init(node, deadline_s=2, say=lambda _: None)


def logins(host: Host) -> int:
    return host.root("cat /var/log/auth.log").stdout.count("Accepted publickey")


def test_facts_after_reboot_waits_for_new_boot_id(
    net: Net, machine: Machine, folder: ClusterFolder, node: Node
) -> None:
    (host,) = net.hosts
    place(host, "reboot", f"touch {ASKED}")
    before = gather(node, ())
    assert before.boot_id == host.boot_id
    readiness.reboot(node)
    wait_for(lambda: host.root(f"test -e {ASKED}", check=False).returncode == 0, what="the order")
    node.close()
    had = logins(host)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            readiness.facts_after_reboot,
            machine,
            folder,
            (),
            boot_id=before.boot_id,
            deadline_s=60,
            say=lambda _: None,
        )
        # The machine stays as it is and is polled twice.
        wait_for(lambda: logins(host) >= had + 2, what="the second look")
        assert not waiting.done()
        host.reboot()
        after = waiting.result(timeout=60)
    assert after.boot_id == host.boot_id != before.boot_id


def test_facts_after_reboot_raises_without_reboot_in_time(
    net: Net, machine: Machine, folder: ClusterFolder
) -> None:
    with pytest.raises(NotReady, match=r"^gpu-0: it was told to boot again 3 s ago and has not\."):
        readiness.facts_after_reboot(
            machine,
            folder,
            (),
            boot_id=net.hosts[0].boot_id,
            deadline_s=3,
            say=lambda _: None,
        )


NVIDIA_SMI = """\
if [ -e /tmp/updated-under-a-loaded-module ]; then
    echo 'Failed to initialize NVML: Driver/library version mismatch'
    exit 18
fi
echo '0, GPU-5a1f0b7c, NVIDIA A10, 23028, 580.65.06'"""
GPU_ON_THE_BUS = """\
mount -t tmpfs none /sys/bus/pci/devices && mkdir /sys/bus/pci/devices/0000:00:04.0
cd /sys/bus/pci/devices/0000:00:04.0 && echo 0x10de > vendor && echo 0x030200 > class"""


def test_reach_waits_for_cloud_init_and_reboots_once_for_driver(
    net: Net, machine: Machine, folder: ClusterFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """cloud-init updates the driver, the module is the old one until the machine has booted again."""
    (host,) = net.hosts
    place(host, "cloud-init", SLOW_CLOUD_INIT)
    place(host, "nvidia-smi", NVIDIA_SMI)
    place(host, "reboot", f"touch {ASKED}")
    # /tmp and the mount are gone after a boot; then the driver's answer counts, whatever is on the bus.
    host.root(f"touch /tmp/updated-under-a-loaded-module; {GPU_ON_THE_BUS}")
    boot = Boot(timeout_s=60, console=lambda _: None, hourly_usd=None, made=frozenset({machine.name}))
    first = host.boot_id
    with ThreadPoolExecutor(1) as pool:
        driver = DriverPlan(source="image")
        reached = pool.submit(reach, App(), folder, [machine], boot=boot, driver=driver)
        wait_for(lambda: host.root("pgrep -f '[s]tatus --wait'", check=False).stdout, what="the wait")
        host.root("touch /run/finished")
        wait_for(lambda: host.root(f"test -e {ASKED}", check=False).returncode == 0, what="the order")
        assert not reached.done()
        host.root(f"rm {ASKED}")
        host.reboot()
        wait_for(lambda: host.root("pgrep -f '[s]tatus --wait'", check=False).stdout, what="the second wait")
        assert not reached.done(), "cloud-init is at work after each boot"
        host.root("touch /run/finished")
        assert reached.result(timeout=60) == Reached(machines=(replace(machine, gpus=1),), problems={})
    assert host.root(f"test -e {ASKED}", check=False).returncode != 0, "one reboot"
    assert host.boot_id != first
    assert "gpu-0: the GPU driver waits for a reboot; rebooting once …" in capsys.readouterr().err


RUN_AT_WORK = """\
run=/home/ubuntu/.gpuctl-node/runs/R1/gpu-0
mkdir -p $run
birth=$(cut -d' ' -f22 /proc/1/stat) boot=$(cat /proc/sys/kernel/random/boot_id)
printf '{"pid": 1, "birth": "%s", "boot_id": "%s"}' $birth $boot > $run/runner.json
chown -R ubuntu /home/ubuntu/.gpuctl-node"""
"""Writes a run's record as its runner does, with a process that lives as long as the host."""


@pytest.mark.parametrize("at_work", [True, False])
def test_reach_does_not_reboot_machine_that_may_run_a_job(
    net: Net, machine: Machine, folder: ClusterFolder, capsys: pytest.CaptureFixture[str], at_work: bool
) -> None:
    (host,) = net.hosts
    place(host, "nvidia-smi", NVIDIA_SMI)
    place(host, "reboot", f"touch {ASKED}")
    host.root(f"touch /tmp/updated-under-a-loaded-module; {GPU_ON_THE_BUS}")
    made: frozenset[str] = frozenset()
    after = "To continue: "
    if at_work:
        host.root(RUN_AT_WORK)
        made, after = frozenset({machine.name}), "When the run R1 has ended: "
    boot = Boot(timeout_s=60, console=lambda _: None, hourly_usd=None, made=made)
    limits = Limits(appear_s=1, poll_s=0.5)
    result = reach(App(), folder, [machine], boot=boot, driver=DriverPlan(source="image"), limits=limits)
    assert host.root(f"test -e {ASKED}", check=False).returncode != 0, "it was rebooted"
    problem = result.problems[machine.name]
    assert problem.startswith(
        "gpu-0: 1 NVIDIA GPU, and the driver waits for a reboot: Failed to initialize NVML"
    )
    assert problem.endswith(f"{after}gpuctl exec -- sudo reboot, once.")
    assert reach(App(), folder, [machine], boot=boot) == Reached(
        machines=(replace(machine, gpus=0),), problems={}
    )
    assert "note: gpu-0: 1 NVIDIA GPU, and the driver waits for a reboot" in capsys.readouterr().err


H100 = "echo look >> /tmp/looks\necho '0, GPU-5a1f0b7c, NVIDIA H100 80GB HBM3, 81559, 580.65.06'"
CLUSTER_NETWORK = """\
mount -t tmpfs none /sys/class && mkdir -p /sys/class/dmi/id /srv/mlx5_core
echo OracleCloud.com > /sys/class/dmi/id/chassis_asset_tag
for at in 0:ens3 1:rdma0 2:rdma1; do
    device=/srv/${at%:*} name=/sys/class/infiniband/mlx5_${at%:*}
    mkdir -p $device/net/${at#*:} $name
    ln -s /srv/mlx5_core $device/driver
    ln -s $device $name/device
done
ip link add rdma0 type veth peer name rdma1"""
"""An OCI machine with RDMA devices that have no addresses, but for the one of its VCN."""


def test_reach_waits_for_addresses_of_rdma_devices(net: Net, machine: Machine, folder: ClusterFolder) -> None:
    (host,) = net.hosts
    place(host, "nvidia-smi", H100)
    host.root(CLUSTER_NETWORK)
    both = [machine, replace(machine, name="gpu-1", rank=1)]
    boot = Boot(timeout_s=60, console=lambda _: None, hourly_usd=None, made=frozenset({"gpu-0", "gpu-1"}))
    with ThreadPoolExecutor(1) as pool:
        reached = pool.submit(reach, App(), folder, both, boot=boot)
        wait_for(
            lambda: host.root("cat /tmp/looks", check=False).stdout.count("look") > 2, what="the second look"
        )
        assert not reached.done()
        host.root("ip address add 192.168.0.5/16 dev rdma0; ip address add 192.168.1.5/16 dev rdma1")
        assert [item.gpus for item in reached.result(timeout=60).machines] == [1, 1]


def test_wait_for_cluster_network_notes_missing_rdma_addresses(net: Net, node: Node) -> None:
    (host,) = net.hosts
    place(host, "nvidia-smi", H100)
    host.root(CLUSTER_NETWORK)
    output: list[str] = []
    peers = (host.address, net.laptop)
    result = gather(node, peers)
    assert [device.addressed for device in result.rdma] == [True, False, False]

    def wait(peers: tuple[str, ...]) -> None:
        readiness.wait_for_cluster_network(node, peers, result, deadline_s=1, say=output.append)

    wait(peers)
    assert output == ["note: gpu-0: 0 of its RDMA devices have an address after 0 s"]
    wait(peers[:1])
    assert len(output) == 1, "one machine needs no network"


def test_reach_tolerates_reboot_during_cloud_init(net: Net, machine: Machine, folder: ClusterFolder) -> None:
    (host,) = net.hosts
    place(host, "cloud-init", f"[ -e /var/booted-again ] && exit 0\n{SLOW_CLOUD_INIT}")
    boot = Boot(timeout_s=60, console=lambda _: None, hourly_usd=None, made=frozenset())
    with ThreadPoolExecutor(1) as pool:
        reached = pool.submit(reach, App(), folder, [machine], boot=boot)
        wait_for(lambda: host.root("pgrep -f '[s]tatus --wait'", check=False).stdout, what="the wait")
        host.root("touch /var/booted-again")
        host.reboot()
        assert [item.state for item in reached.result(timeout=60).machines] == ["running"]
