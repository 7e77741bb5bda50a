"""Test the decision on the driver of a machine's GPUs, and the message if no driver can be installed."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from node_facts import NO_GPU, facts
from support import a_machine

from inventories.disk.store import ClusterFolder
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan
from remote.errors import BadAnswer
from remote.facts import Driver
from remote.findings import KERNEL_LOG
from remote.gpu_driver import decision
from remote.gpu_driver.decision import Limits, Observed
from remote.gpu_driver.setup import _Task
from remote.sessions.limits import Bounds

IMAGE, INSTALL = DriverPlan(source="image"), DriverPlan(source="install")
WORKS = Driver(devices=2, module=True, smi_exit=0, smi_said="", listed=2, reboot_required=False)
ABSENT = replace(WORKS, module=False, smi_exit=None, listed=0)
MISMATCH = replace(
    WORKS, smi_exit=18, smi_said="Failed to initialize NVML: Driver/library version mismatch", listed=0
)
NOT_LOADED = replace(
    WORKS, module=False, smi_exit=9, smi_said="It couldn't communicate with the NVIDIA driver", listed=0
)
BROKEN = replace(WORKS, smi_exit=9, smi_said="No devices were found", listed=0)
WAITING = replace(NOT_LOADED, reboot_required=True)
HALF_THERE = replace(ABSENT, reboot_required=True)
HELD = replace(MISMATCH, holders=("1234 (python3)",))
PARTIAL = replace(WORKS, listed=1)
LATE = Limits().appear_s


def observed(driver: Driver, *, runs: tuple[str, ...] = (), **more: object) -> Observed:
    fields: dict[str, object] = {"wanted": 2, "free": True, **more}
    return Observed(facts=facts(driver=driver, active_runs=runs), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "state", "step"),
    [
        pytest.param(NO_DRIVER, observed(ABSENT), "done", id="nobody-looks-after-it"),
        pytest.param(IMAGE, observed(WORKS), "done", id="it-works"),
        pytest.param(IMAGE, observed(NO_GPU, wanted=None), "done", id="no-gpus"),
        pytest.param(IMAGE, observed(ABSENT), "wait", id="image-not-there-yet"),
        pytest.param(IMAGE, observed(ABSENT, waited_s=LATE), "give up", id="image-without-one"),
        pytest.param(IMAGE, observed(MISMATCH), "reboot", id="image-was-updated"),
        pytest.param(
            IMAGE, observed(MISMATCH, free=False), "give up", id="image-was-updated-somebody-is-there"
        ),
        pytest.param(IMAGE, observed(MISMATCH, rebooted=True), "wait", id="one-reboot-is-enough"),
        pytest.param(
            IMAGE, observed(MISMATCH, rebooted=True, waited_s=LATE), "give up", id="a-reboot-did-not-help"
        ),
        pytest.param(IMAGE, observed(NOT_LOADED), "wait", id="module-may-still-be-loaded"),
        pytest.param(IMAGE, observed(NOT_LOADED, waited_s=LATE), "reboot", id="module-was-not-loaded"),
        pytest.param(IMAGE, observed(PARTIAL), "wait", id="one-gpu-may-still-come"),
        pytest.param(IMAGE, observed(PARTIAL, waited_s=LATE), "give up", id="one-gpu-dropped-out"),
        pytest.param(IMAGE, observed(WORKS, wanted=4, waited_s=LATE), "give up", id="fewer-than-the-shape"),
        pytest.param(IMAGE, observed(NO_GPU), "give up", id="none-on-the-bus"),
        pytest.param(
            IMAGE, observed(replace(WORKS, fabric="activating")), "wait", id="fabric-manager-starts"
        ),
        pytest.param(IMAGE, observed(BROKEN, waited_s=LATE), "give up", id="it-does-not-answer"),
        pytest.param(INSTALL, observed(WORKS), "done", id="install-it-is-there"),
        pytest.param(INSTALL, observed(ABSENT), "install", id="install"),
        pytest.param(INSTALL, observed(ABSENT, installed=True), "reboot", id="install-then-reboot"),
        pytest.param(INSTALL, observed(WORKS, installed=True), "reboot", id="install-reboot-though-it-works"),
        pytest.param(INSTALL, observed(WORKS, installed=True, rebooted=True), "done", id="install-done"),
        pytest.param(INSTALL, observed(ABSENT, installed=True, rebooted=True), "wait", id="install-starts"),
        pytest.param(INSTALL, observed(NOT_LOADED), "install", id="install-was-cut-off-before-the-reboot"),
        pytest.param(INSTALL, observed(MISMATCH), "reboot", id="install-a-reboot-may-do"),
        pytest.param(INSTALL, observed(WAITING), "reboot", id="install-a-module-waits"),
        pytest.param(INSTALL, observed(HALF_THERE), "install", id="install-no-tools-yet"),
        pytest.param(
            INSTALL, observed(MISMATCH, rebooted=True), "wait", id="install-the-reboot-may-have-done"
        ),
        pytest.param(
            INSTALL,
            observed(MISMATCH, rebooted=True, waited_s=LATE),
            "install",
            id="install-as-the-reboot-did-not-help",
        ),
        pytest.param(
            INSTALL,
            observed(MISMATCH, installed=True, rebooted=True, waited_s=LATE),
            "give up",
            id="install-once",
        ),
        pytest.param(IMAGE, observed(HELD), "give up", id="somebody-has-the-gpus-open"),
        pytest.param(INSTALL, observed(HELD), "give up", id="install-not-under-a-process"),
        pytest.param(
            INSTALL, observed(BROKEN, waited_s=LATE), "give up", id="install-nothing-over-a-broken-one"
        ),
        pytest.param(
            INSTALL, observed(ABSENT, runs=("R1",), free=False), "give up", id="install-not-under-a-run"
        ),
    ],
)
def test_next_step_decides_by_plan_and_state_of_the_driver(
    plan: DriverPlan, state: Observed, step: str
) -> None:
    assert decision.next_step(plan, state, Limits()) == step


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (
            observed(ABSENT, waited_s=91),
            "2 NVIDIA GPUs on the bus, and no driver, 91 s after it was ready. To continue: take",
        ),
        (
            observed(NOT_LOADED, rebooted=True, waited_s=91),
            "2 NVIDIA GPUs, and the driver waits for a reboot: It couldn't communicate with the NVIDIA driver, also "
            "after a reboot, 91 s after",
        ),
        (
            observed(PARTIAL),
            f"2 NVIDIA GPUs on the bus, of which nvidia-smi lists 1. To continue: {KERNEL_LOG}",
        ),
        (
            observed(WORKS, wanted=4),
            "nvidia-smi lists 2 of the 4 NVIDIA GPUs that its shape has. To continue: ",
        ),
        (observed(NO_GPU), "the PCI bus has 0 of the 2 NVIDIA GPUs that its shape has. To continue: "),
        (
            observed(ABSENT, runs=("R1",)),
            "2 NVIDIA GPUs on the bus, and no driver. When the run R1 has ended: take an",
        ),
        (
            observed(HELD),
            "2 NVIDIA GPUs, and the driver waits for a reboot: Failed to initialize NVML: Driver/library version "
            "mismatch. When the process 1234 (python3) has ended: gpuctl exec",
        ),
        (
            observed(replace(WORKS, fabric="failed")),
            "2 NVIDIA GPUs connected by NVSwitches, and their fabric manager is",
        ),
    ],
)
def test_driver_sentence_says_why_a_machine_was_given_up(state: Observed, sentence: str) -> None:
    assert decision.sentence(state).startswith(sentence)


NOTHING_MISSING = {"unfetched": "", "branches": [580, 535], "version": None, "last": None}


@pytest.mark.parametrize(
    ("reason", "reason_facts", "words"),
    [
        (
            "no_sudo",
            {"said": "sudo: a password is required"},
            "sudo refuses the login user there (sudo: a password",
        ),
        (
            "system_is_other",
            {"os": "Oracle Linux 9"},
            "it runs Oracle Linux 9, and gpuctl installs the driver on",
        ),
        (
            "mirror",
            {"host": "a.test", "said": "timed out"},
            "the package mirror a.test can't be reached from there",
        ),
        (
            "mirror",
            {"host": "", "said": "no sources"},
            "no package mirror could be reached from there (no sources)",
        ),
        (
            "lock",
            {"holder": "process 7 (apt)", "lock": "/l", "waited_s": 600},
            "process 7 (apt) has held /l for 10 minutes, so the driver can't be installed.",
        ),
        ("died", {"phase": "install"}, "ended without a word while downloading and installing packages."),
        (
            "apt",
            {"said": "no space.", "doing": "apt-get install"},
            "apt-get install failed there: no space. Its log",
        ),
        (
            "fabric_version",
            {"manager": "1", "driver": "2"},
            "the fabric manager is of version 1 and the driver of",
        ),
        ("system", {"said": "no such file"}, "the driver can't be installed: no such file"),
        ("no_packages", {"branches": []}, "enable them there, or take an image"),
        (
            "no_packages",
            {"unfetched": "a.test: timed out"},
            "Not all lists of packages could be had: a.test: timed",
        ),
        (
            "no_version",
            {"version": "595"},
            "Ubuntu offers no branch 595 of the driver there, but 580 and 535.",
        ),
        (
            "too_new",
            {"version": "595", "last": 580},
            "too old for branch 595: the last branch that knows them is 580",
        ),
        ("too_new", {"last": 580}, "too old for all there are (580 and 535)"),
        ("no_fabric", {}, "connected by NVSwitches, which need one"),
        (
            "kernel",
            {"kernels": ["6.8.0-12-x"]},
            "Ubuntu has no driver for its kernel 6.8.0-12-x: neither modules",
        ),
    ],
)
def test_driver_failure_names_each_cause_in_a_sentence(
    reason: str, reason_facts: dict[str, object], words: str
) -> None:
    answer = {"state": "failed", "reason": reason, "facts": {**NOTHING_MISSING, **reason_facts}}
    sentence = decision.failure(answer, Limits())
    assert words in sentence
    assert sentence.endswith(".")
    assert not sentence.endswith("..")


def test_driver_failure_of_a_timed_out_installation_says_run_up_again() -> None:
    sentence = decision.failure({"state": "going on"}, Limits(install_s=1200))
    assert "has not ended within 20 minutes, and goes on there: wait, then run gpuctl up again" in sentence


def test_driver_failure_raises_on_an_unknown_answer() -> None:
    for answer in ({"state": "failed"}, {"state": "failed", "reason": "new", "facts": NOTHING_MISSING}):
        with pytest.raises((KeyError, ValueError)):
            decision.failure(answer, Limits())


def test_progress_names_the_phase_and_who_holds_a_lock() -> None:
    assert decision.progress("install", "a b c") == "downloading and installing packages (3 packages)"
    assert (
        decision.progress("lock", "process 7 (apt)")
        == "waiting for the package lock, held by process 7 (apt)"
    )


def test_working_driver_is_kept_when_another_is_requested() -> None:
    gpu = {"index": 0, "name": "NVIDIA A10", "memory_mb": 23028, "driver": "535.309.01"}
    state = Observed(facts=facts(driver=WORKS, gpus=(gpu,)), wanted=2, free=True)
    request = DriverPlan(source="install", version="580")
    assert decision.next_step(request, state, Limits()) == "done"
    assert decision.another_version(request, state) == (
        "its driver 535.309.01 works and stays; branch 580 was not installed"
    )
    for plan in (INSTALL, IMAGE, DriverPlan(source="install", version="535")):
        assert decision.another_version(plan, state) is None


HERE = a_machine(host="192.0.2.1", user="ubuntu", gpus=2)


class Installing:
    """A node that reports the progress of its installation."""

    def stream(
        self, command: str, request: dict[str, object], *, bounds: Bounds
    ) -> AbstractContextManager[object]:
        assert command == "driver"
        assert bounds.total_s is not None
        assert request["version"] is None
        headers = [
            {"phase": "update", "detail": "", "since_s": 4.0, "result": None},
            {"phase": "lock", "detail": "process 7 (apt)", "since_s": 31.0, "result": None},
            {"phase": "install", "detail": "a b", "since_s": 45.0, "result": None},
            {"phase": "install", "detail": "a b", "since_s": 301.0, "result": None},
            {"phase": "install", "detail": "a b", "since_s": 302.0, "result": {"state": "installed"}},
        ]
        return nullcontext(SimpleNamespace(frames=lambda: [(header, b"") for header in headers]))


def test_installation_logs_progress_every_30_seconds() -> None:
    messages: list[str] = []
    task = _Task(
        HERE,
        ClusterFolder(Path("nowhere")),
        (),
        plan=INSTALL,
        limits=Limits(),
        return_s=60,
        say=messages.append,
    )
    task._open = Installing()  # type: ignore[assignment]
    assert task._follow("attempt", 60) == {"state": "installed"}
    doing = "gpu-0: installing the NVIDIA driver: "
    assert messages == [
        f"{doing}waiting for the package lock, held by process 7 (apt) … (31 s, at most 20 minutes)",
        f"{doing}downloading and installing packages (2 packages) … (5 minutes, at most 20 minutes)",
    ]


@pytest.mark.parametrize("since", ["soon", None, []])
def test_installation_refuses_an_invalid_time_in_an_answer(since: object) -> None:
    class Confused(Installing):
        def stream(
            self, command: str, request: dict[str, object], *, bounds: Bounds
        ) -> AbstractContextManager[object]:
            return nullcontext(SimpleNamespace(frames=lambda: [({"since_s": since, "result": None}, b"")]))

    task = _Task(
        HERE,
        ClusterFolder(Path("nowhere")),
        (),
        plan=INSTALL,
        limits=Limits(),
        return_s=60,
        say=lambda _: None,
    )
    task._open = Confused()  # type: ignore[assignment]
    with pytest.raises(BadAnswer, match=r"^gpu-0: no answer about its driver that can be read"):
        task._follow("attempt", 60)


@pytest.mark.parametrize(
    ("now", "before", "waits"),
    [
        pytest.param(observed(NOT_LOADED), "b0", True, id="as-it-was"),
        pytest.param(observed(WORKS), "b0", False, id="it-works-by-now"),
        pytest.param(observed(WORKS, installed=True), "b0", True, id="installed-in-this-boot"),
        pytest.param(observed(WORKS, installed=True), "boot-before", False, id="somebody-rebooted-it"),
        pytest.param(
            observed(NOT_LOADED, installed=True), "boot-before", True, id="rebooted-and-still-waits"
        ),
        pytest.param(observed(WORKS, installed=True, runs=("R1",)), "b0", False, id="a-run-uses-it"),
    ],
)
def test_waits_for_reboot_is_false_when_no_longer_needed(now: Observed, before: str, waits: bool) -> None:
    assert decision.waits_for_reboot(now, before=before) == waits


def test_machine_with_a_new_run_is_not_rebooted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run begins while the driver is installed."""
    task = _Task(
        HERE,
        ClusterFolder(Path("nowhere")),
        (),
        plan=INSTALL,
        limits=Limits(),
        return_s=60,
        say=lambda _: None,
    )
    monkeypatch.setattr(task, "_install", lambda: None)
    monkeypatch.setattr(task, "_facts", lambda: observed(NOT_LOADED, runs=("R1",)).facts)
    outcome = task.work(observed(ABSENT))
    assert outcome.problem is not None
    assert "When the run R1 has ended: gpuctl exec -- sudo reboot, once." in outcome.problem
