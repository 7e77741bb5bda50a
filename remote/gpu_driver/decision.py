"""The decision about the driver of a machine's GPUs, from its facts; and the message if it can't be installed. Pure.

The driver's own states are defined in `remote.checks.readiness`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inventories.specs.gpu_driver import DriverPlan
from inventories.text import listed
from remote.checks.readiness import MISMATCH, driver_problem, driver_state
from remote.facts import Facts
from remote.findings import KERNEL_LOG
from remote.sessions.wait_for_boot import span
from remote.shared.constants import NODE_FOLDER

Step = Literal["done", "wait", "reboot", "install", "give up"]
LOG = f"~/{NODE_FOLDER}/driver/*/apt.log"
"""The folder is named for the machine, as others may have the same home."""
PHASES = {
    "begin": "beginning",
    "check": "looking at the system",
    "mirror": "connecting to the package mirror",
    "update": "fetching the lists of packages",
    "lock": "waiting for the package lock",
    "install": "downloading and installing packages",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the wait for a driver."""

    appear_s: float = 90.0
    """A driver that is installed, from the machine's set-up on until nvidia-smi lists all GPUs."""
    mirror_s: float = 25.0
    """Until one of the package mirrors takes a connection."""
    lock_s: float = 600.0
    """Until nobody else holds the lock of apt or dpkg."""
    install_s: float = 1200.0
    """The whole installation."""
    poll_s: float = 3.0


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A machine as it was seen now."""

    facts: Facts
    wanted: int | None
    """GPUs of its shape. `None`: not known, so the GPUs on the bus count."""
    free: bool
    """Whether it may be changed and rebooted: nobody uses it."""
    waited_s: float = 0.0
    """Since its set-up ended, in this boot."""
    installed: bool = False
    """Whether the driver was installed just now."""
    rebooted: bool = False
    """Whether it was rebooted just now."""


def next_step(plan: DriverPlan, observed: Observed, limits: Limits) -> Step:
    """Return the next step.

    At most one installation, one reboot before it and one after it, and waiting for a late start.
    """
    driver, state = observed.facts.driver, driver_state(observed.facts.driver)
    mismatch = MISMATCH in driver.smi_said.lower()
    free = observed.free and not driver.holders
    if observed.installed and not observed.rebooted:
        return "reboot"
    if plan.source == "none" or works(observed):
        return "done"
    if observed.facts.active_runs or state == "none":
        return "give up"
    installs = plan.source == "install" and free and not observed.installed
    # Without nvidia-smi nothing may be installed yet that a reboot could start.
    helps = (driver.reboot_required or mismatch) and (not installs or driver.smi_exit is not None)
    if free and not observed.rebooted and state == "reboot" and helps:
        return "reboot"
    if installs and (state == "absent" or (state == "reboot" and not observed.rebooted)):
        return "install"
    if mismatch and not free:
        return "give up"  # time does not help
    if observed.waited_s < limits.appear_s:
        return "wait"
    if state != "reboot" or not free:
        return "give up"
    if installs:
        return "install"  # the reboot did not help
    return "give up" if observed.rebooted else "reboot"


def in_use(facts: Facts) -> bool:
    """Return whether somebody uses the machine, as far as can be seen."""
    return bool(facts.active_runs or facts.driver.holders)


def waits_for_reboot(state: Observed, *, before: str) -> bool:
    """Return whether a machine still waits for its reboot. `before`: its boot id at the decision.

    A machine whose driver works does not, unless the driver was installed in this boot.
    """
    return not works(state) or (state.installed and state.facts.boot_id == before and not in_use(state.facts))


def works(state: Observed) -> bool:
    """Return whether all of the machine's GPUs can be used; also True without GPUs."""
    driver = state.facts.driver
    gpus = state.wanted or driver.devices
    return gpus == 0 or (driver_state(driver) == "ok" and driver.listed >= gpus)


def another_version(plan: DriverPlan, state: Observed) -> str | None:
    """A note where a driver works that is of another branch than the one asked for, and so is left as it is."""
    works_now = str(state.facts.gpus[0]["driver"]) if state.facts.gpus else ""
    asked_for = plan.version if plan.source == "install" else None
    if not asked_for or not works_now or works_now.split(".")[0] == asked_for:
        return None
    return f"its driver {works_now} works and stays; branch {plan.version} was not installed"


def sentence(state: Observed) -> str:
    """Return the problem of a machine that is given up, and the fix: whole sentences, without the machine's name."""
    driver, runs = state.facts.driver, [f"the run {run}" for run in state.facts.active_runs]
    users = runs or [f"the process {pid}" for pid in driver.holders]
    problem = driver_problem(driver)
    if problem is None:
        gpus = state.wanted or driver.devices
        counted = driver.listed if driver.smi_exit == 0 else driver.devices
        where = "nvidia-smi lists" if driver.smi_exit == 0 else "the PCI bus has"
        problem = (
            f"{where} {counted} of the {gpus} NVIDIA GPUs that its shape has",
            f"{KERNEL_LOG} shows what the kernel says of the others (lines with NVRM and Xid); replace "
            "the machine",
        )
    if users:
        return f"{problem[0]}. When {users[0]} has ended: {problem[1]}."
    after = ", also after a reboot" if state.rebooted else ""
    waited = f", {span(state.waited_s)} after it was ready" if state.waited_s >= 1 else ""
    return f"{problem[0]}{after}{waited}. To continue: {problem[1]}."


def progress(phase: str, detail: str) -> str:
    """Return the progress of an installation, for people."""
    phase_text = PHASES.get(phase, phase)
    if phase == "install" and detail:
        return f"{phase_text} ({len(detail.split())} packages)"
    return f"{phase_text}, held by {detail}" if phase == "lock" and detail else phase_text


SENTENCES = {
    "going on": "the installation of the driver has not ended within {limit}, and goes on there: wait, then run "
    "gpuctl up again, which follows it. Its log there: {log}",
    "no_sudo": "the driver can't be installed, as sudo refuses the login user there ({said}). Let it sudo without a "
    "password, or install the driver yourself (--driver none leaves it to you)",
    "system_is_other": "it runs {os}, and gpuctl installs the driver on Ubuntu only. Take an image of Ubuntu, or one "
    "that brings the driver; or install it yourself (--driver none leaves it to you)",
    "mirror": "{mirror} from there ({said}), so the driver can't be installed. Give the machine a way out to it (a "
    "public address, NAT, or a proxy in its apt.conf), or take an image that brings the driver",
    "lock": "{holder} has held {lock} for {waited}, so the driver can't be installed. Nothing was ended; run "
    "gpuctl up again when that has finished (gpuctl exec -- ps aux shows it)",
    "died": "the installation of the driver ended without a word while {doing}. Run gpuctl up again; its log there: "
    "{log}",
    "apt": "{doing} failed there: {clause}. Its log there: {log}",
    "fabric_version": "the fabric manager is of version {manager} and the driver of version {driver}, and the GPUs "
    "need the same. Name a branch that has both (--driver VERSION)",
    "system": "the driver can't be installed: {clause}",
    "no_packages": "its package mirrors offer no server branch of NVIDIA's driver, which Ubuntu has in the "
    "components restricted and multiverse: enable them there, or take an image that brings the driver.{unfetched}",
    "no_version": "Ubuntu offers no branch {version} of the driver there, but {branches}.{unfetched}",
    "too_new": "its GPUs are too old for {request}: the last branch that knows them is {last}. Take an image or an "
    "Ubuntu that has it, or name an older branch with --driver VERSION.{unfetched}",
    "no_fabric": "Ubuntu offers no fabric manager there that fits the driver, and its GPUs are connected by "
    "NVSwitches, which need one. Take an image that brings both.{unfetched}",
    "kernel": "Ubuntu has no driver for its kernel {kernels}: neither modules nor headers to build them with, of the "
    "branches {branches}. Boot a kernel of Ubuntu's (gpuctl exec -- sudo apt-get install -y linux-generic, then a "
    "reboot), or take another image.{unfetched}",
}
"""Why an installation did not end well, by the node's reason, with the node's facts."""


def failure(result: Mapping[str, Any], limits: Limits) -> str:
    """Why an installation did not end well, from the node's answer: whole sentences, without the machine's name.

    Raises KeyError, TypeError or ValueError where it is no such answer.
    """
    reason = "going on" if result["state"] == "going on" else result["reason"]
    facts = {"limit": span(limits.install_s), "log": LOG, **result.get("facts", {})}
    if "said" in facts:
        facts["clause"] = _clause(facts["said"])
    if "branches" in facts:
        facts["branches"] = listed([str(branch) for branch in facts["branches"]], limit=8)
        unfetched = f" Not all lists of packages could be had: {_clause(facts['unfetched'])}."
        facts["unfetched"] = unfetched if facts["unfetched"] else ""
    if reason == "mirror":
        named = f"the package mirror {facts['host']} can't be reached"
        facts["mirror"] = named if facts["host"] else "no package mirror could be reached"
    elif reason == "lock":
        facts["waited"] = span(float(facts["waited_s"]))
    elif reason == "died":
        facts["doing"] = progress(facts["phase"], "")
    elif reason == "too_new":
        every = f"all there are ({facts['branches']})"
        facts["request"] = f"branch {facts['version']}" if facts["version"] else every
    elif reason == "kernel":
        facts["kernels"] = listed([str(kernel) for kernel in facts["kernels"]])
    return f"{SENTENCES[reason].format(**facts).rstrip('.')}."


def _clause(message: object) -> str:
    """A program's words, to go on after."""
    return str(message).strip().rstrip(".")
