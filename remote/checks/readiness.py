"""From "SSH answers" to "a run can start": cloud-init has ended, and the GPUs' driver works.

A driver that was installed or updated while the machine booted needs one reboot; more than one never helps.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inventories.clocks import awake_s
from inventories.disk.cluster_files import ClusterFiles
from inventories.machine import Machine
from inventories.text import plural
from remote.errors import BadAnswer, ConnectionLost, NodeFailed, NotReady
from remote.facts import Driver, Facts, gather
from remote.findings import KERNEL_LOG
from remote.launchers.nccl import cluster_network, joins_cluster_network
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.sessions.wait_for_boot import connect_booting, span
from remote.shared import frames

CloudInit = Literal["absent", "done", "degraded", "failed", "running", "unknown"]
DriverState = Literal["none", "ok", "partial", "absent", "reboot", "broken", "fabric"]
QUIET_S = 10.0
SLACK_S = 60.0
"""After its deadline a node has said how far it is."""
RDMA_DEADLINE_S = 300.0
"""For the addresses of RDMA devices, after everything else."""
RDMA_PAUSE_S = 5.0
PAUSE_S = 2.0
"""Between two looks at a machine with an ordered reboot that still answers."""
EVERY_S = 30.0
MISMATCH = "version mismatch"
HUNG = -1
"""Exit status of an nvidia-smi that did not answer."""
UNREACHED = "couldn't communicate with the nvidia driver"


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """The end of the machine's set-up."""

    cloud_init: CloudInit
    """`absent`: the machine has no cloud-init. `running`: it had not ended at the deadline."""
    complaints: tuple[str, ...]


def wait_for_cloud_init(node: Node, *, deadline_s: float, say: Callable[[str], None]) -> SetUp:
    """Block until cloud-init has ended, at most `deadline_s`. Raises NotReady where it failed or did not end."""
    return judge(node.name, watch_cloud_init(node, deadline_s=deadline_s, say=say), deadline_s=deadline_s)


def watch_cloud_init(node: Node, *, deadline_s: float, say: Callable[[str], None]) -> SetUp:
    """Block until cloud-init has ended, well or not, at most `deadline_s`."""
    began, next_s = awake_s(), QUIET_S
    answer: Mapping[str, Any] | None = None
    bounds = Bounds(total_s=deadline_s + SLACK_S)
    with node.stream("ready", {"deadline_s": deadline_s}, bounds=bounds) as talk:
        for header, _ in talk.frames():
            if header.get("t") == frames.READY:
                answer = header
                continue
            waited_s = awake_s() - began
            if waited_s > next_s:
                next_s = waited_s + EVERY_S
                say(f"waiting for cloud-init on {node.name} … ({waited_s:.0f} s)")
    return parse(node.name, answer)


def parse(name: str, answer: Mapping[str, Any] | None) -> SetUp:
    """Return the node's answer. Raises BadAnswer if it can't be read."""
    try:
        assert answer is not None
        return SetUp(cloud_init=answer["cloud_init"], complaints=tuple(map(str, answer["complaints"])))
    except (AssertionError, KeyError, TypeError) as error:
        raise BadAnswer(f"{name}: no answer about cloud-init that can be read.") from error


def judge(name: str, set_up: SetUp, *, deadline_s: float) -> SetUp:
    """The set-up as it is, where a run may follow upon it. Raises NotReady with the node and the way to look."""
    command = "`gpuctl exec -- sudo tail -n 50 /var/log/cloud-init-output.log` shows what it did."
    complaint = f" It complains: {'; '.join(set_up.complaints)}." if set_up.complaints else ""
    if set_up.cloud_init == "running":
        raise NotReady(
            f"{name}: cloud-init has not ended within {span(deadline_s)} of the first login.{complaint} {command}"
        )
    if set_up.cloud_init == "failed":
        raise NotReady(f"{name}: cloud-init failed.{complaint} {command}")
    if set_up.cloud_init == "unknown":
        raise NotReady(
            f"{name}: `cloud-init status --wait` ended with a status that it does not have, so nobody knows whether "
            f"the machine is set up.{complaint} `gpuctl exec -- cloud-init status --long` tells more."
        )
    return set_up


def start_end_timer(node: Node, unit: str) -> bool:
    """Start the timer that powers the machine off, and have each boot start it. Returns whether it is active now."""
    command = f"sudo -n systemctl enable --now {unit} && systemctl is-active --quiet {unit}"
    return node.run(command, timeout_s=SLACK_S).exit_code == 0


def wait_for_cluster_network(
    node: Node, peers: tuple[str, ...], facts: Facts, *, deadline_s: float, say: Callable[[str], None]
) -> Facts:
    """Block until the node's RDMA devices have the addresses that they should get, at most `deadline_s`.

    Returns `facts`, or newer ones. Never raises over RDMA: such a machine works over TCP all the same, and the
    preflight reports it.
    """
    began, next_s, usable = awake_s(), QUIET_S, 0
    while len(peers) > 1:
        interface = facts.interfaces.get(node.machine.private_ip)
        had, usable = usable, len(cluster_network(facts, interface))
        # They come one by one: two looks that see the same have seen the last.
        if not joins_cluster_network(facts, interface) or usable == had > 0:
            break
        waited_s = awake_s() - began
        if waited_s + RDMA_PAUSE_S > deadline_s:
            say(f"note: {node.name}: {usable} of its RDMA devices have an address after {span(waited_s)}")
            break
        if waited_s > next_s:
            next_s = waited_s + EVERY_S
            say(f"waiting for the addresses of the RDMA devices of {node.name} … ({waited_s:.0f} s)")
        time.sleep(RDMA_PAUSE_S)
        facts = gather(node, peers)
    return facts


def driver_state(driver: Driver) -> DriverState:
    """Return the state of the GPU driver.

    `none`: no NVIDIA GPU, or it can't be seen from here; `partial`: the driver works, but lacks some GPUs;
    `fabric`: the driver works, but the links among the GPUs do not.
    """
    if driver.smi_exit == 0:
        if driver.listed < driver.devices:
            return "partial"
        # Containers have no systemd, and need no fabric manager: it is their host's.
        return "ok" if driver.fabric in (None, "active", "unknown") else "fabric"
    if driver.devices == 0:
        return "none"
    if driver.smi_exit == HUNG:
        return "broken"
    message = driver.smi_said.lower()
    if driver.smi_exit is None:
        # The module of a driver whose tools are not there (yet): a package waits for its reboot, or is half there.
        return "reboot" if driver.reboot_required and not driver.module else "absent"
    if MISMATCH in message or (UNREACHED in message and not driver.module) or driver.reboot_required:
        return "reboot"
    return "broken"


_DMESG = f"{KERNEL_LOG} shows what the kernel says of {{}} (lines with NVRM and Xid)"
_PROBLEMS = {
    "absent": (
        "{gpus} on the bus, and no driver",
        "take an image that has one (gpuctl up --image …), or have Ubuntu's installed: gpuctl up --driver auto",
    ),
    "partial": (
        "{gpus} on the bus, of which nvidia-smi lists {listed}",
        f"{_DMESG.format('the others')}; reboot or replace the machine. In a container that was given no others that "
        "is as it should be",
    ),
    "fabric": (
        "{gpus} connected by NVSwitches, and their fabric manager is {fabric}, so that CUDA can't begin",
        "gpuctl exec -- systemctl status nvidia-fabricmanager shows why; it has to be of the driver's version",
    ),
    "reboot": ("{gpus}, and the driver waits for a reboot{message}", "gpuctl exec -- sudo reboot, once"),
    "broken": ("{gpus}, and the driver does not answer{message}", _DMESG.format("it")),
}
"""State of the driver → its problem, and the fix."""


def driver_problem(driver: Driver) -> tuple[str, str] | None:
    """Return the problem of the driver, and the fix; `None`: no problem, or no GPU."""
    if (state := driver_state(driver)) not in _PROBLEMS:
        return None
    problem, fix = _PROBLEMS[state]
    gpus, message = plural(driver.devices, "NVIDIA GPU"), driver.smi_said.partition("\n")[0]
    shown = f": {message}" if message else ""
    return problem.format(gpus=gpus, listed=driver.listed, fabric=driver.fabric, message=shown), fix


def reboot(node: Node) -> None:
    """Ask the machine to boot again; returns when it has taken the order. Raises NodeFailed where it refuses."""
    try:
        # The shell ends before the machine does, so that the order's own outcome is heard.
        done = node.run(
            "sudo -n sh -c '(sleep 1; systemctl reboot || reboot) >/dev/null 2>&1 & '", timeout_s=60
        )
    except ConnectionLost:
        return
    if done.exit_code != 0:
        message = done.stderr.decode(errors="replace").strip() or f"exit status {done.exit_code}"
        raise NodeFailed(
            f"{node.name}: it can't be rebooted from here: {message}. Reboot it, then run this again."
        )


def facts_after_reboot(
    machine: Machine,
    cluster: ClusterFiles,
    peers: tuple[str, ...],
    *,
    boot_id: str,
    deadline_s: float,
    say: Callable[[str], None],
    judged: bool = True,
) -> Facts:
    """Return the facts of a machine after a reboot.

    Its boot id is no longer `boot_id`, cloud-init has ended, and the machine is on its cluster network, if any.
    `judged`: cloud-init has to have ended well.

    Raises NotReady if it did not boot again, as `wait_for_cloud_init` does, and the errors of `connect_booting` if
    it does not come back.
    """
    limit = awake_s() + deadline_s
    while True:
        node = connect_booting(machine, cluster, deadline_s=max(1.0, limit - awake_s()), say=say)
        try:
            left_s = max(1.0, limit - awake_s())
            set_up = watch_cloud_init(node, deadline_s=left_s, say=say)
            if judged:
                judge(node.name, set_up, deadline_s=left_s)
            facts = gather(node, peers)
            if facts.boot_id != boot_id:
                return wait_for_cluster_network(node, peers, facts, deadline_s=RDMA_DEADLINE_S, say=say)
        except ConnectionLost:
            pass  # it went down just now
        finally:
            node.close()
        if awake_s() + PAUSE_S > limit:
            raise NotReady(
                f"{machine.name}: it was told to boot again {span(deadline_s)} ago and has not. "
                f"Look at it: gpuctl ssh {machine.rank}"
            )
        time.sleep(PAUSE_S)
