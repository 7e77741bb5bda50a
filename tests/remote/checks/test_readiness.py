"""From "SSH answers" to "a run can start": cloud-init, and the GPUs' driver."""

import io
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from node_facts import NO_GPU, facts

from inventories.disk.store import ClusterFolder
from remote.checks import readiness
from remote.checks.readiness import SetUp
from remote.errors import BadAnswer, NotReady
from remote.facts import Driver
from remote.node.checks import ready
from remote.node.gpu import gpus
from remote.shared import frames


def driver(**changed: object) -> Driver:
    fields: dict[str, object] = {
        "devices": 2, "module": True, "smi_exit": 0, "smi_said": "", "listed": 2, "reboot_required": False
    }  # fmt: skip
    return Driver(**{**fields, **changed})  # type: ignore[arg-type]


MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95"
UNREACHED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running."
)


@pytest.mark.parametrize(
    ("reported", "state"),
    [
        pytest.param(NO_GPU, "none", id="no-gpu"),
        pytest.param(driver(), "ok", id="it-works"),
        pytest.param(driver(reboot_required=True), "ok", id="it-works-and-something-else-wants-a-reboot"),
        pytest.param(driver(listed=1), "partial", id="one-dropped-out"),
        pytest.param(driver(fabric="active"), "ok", id="it-works-behind-switches"),
        pytest.param(driver(fabric="unknown"), "ok", id="it-works-in-a-container"),
        pytest.param(driver(fabric="failed"), "fabric", id="the-fabric-manager-failed"),
        pytest.param(driver(listed=3), "ok", id="more-than-the-bus-shows"),
        pytest.param(driver(module=False, smi_exit=None), "absent", id="none-installed"),
        pytest.param(
            driver(module=False, smi_exit=None, reboot_required=True), "reboot", id="half-installed"
        ),
        pytest.param(driver(smi_exit=18, smi_said=MISMATCH), "reboot", id="updated-under-a-loaded-module"),
        pytest.param(driver(module=False, smi_exit=9, smi_said=UNREACHED), "reboot", id="no-module-loaded"),
        pytest.param(driver(smi_exit=9, smi_said=UNREACHED), "broken", id="loaded-and-does-not-answer"),
        pytest.param(driver(smi_exit=-1, smi_said="nvidia-smi did not answer"), "broken", id="hangs"),
        pytest.param(
            driver(smi_exit=-1, reboot_required=True), "broken", id="hangs-while-a-reboot-is-asked-for"
        ),
        pytest.param(
            driver(devices=0, smi_exit=9, smi_said="No devices were found"), "none", id="tools-alone"
        ),
    ],
)
def test_driver_state_is_derived_from_bus_module_and_nvidia_smi(reported: Driver, state: str) -> None:
    assert readiness.driver_state(reported) == state
    problem = readiness.driver_problem(reported)
    assert (problem is None) == (state in ("none", "ok"))


def test_driver_problem_names_gpus_and_the_error() -> None:
    problem = readiness.driver_problem(driver(smi_exit=18, smi_said=MISMATCH))
    assert problem == (
        "2 NVIDIA GPUs, and the driver waits for a reboot: "
        "Failed to initialize NVML: Driver/library version mismatch",
        "gpuctl exec -- sudo reboot, once",
    )


@pytest.mark.parametrize("state", ["absent", "done", "degraded"])
def test_judge_accepts_absent_done_and_degraded_cloud_init(state: readiness.CloudInit) -> None:
    set_up = SetUp(cloud_init=state, complaints=("a",))
    assert readiness.judge("node-0", set_up, deadline_s=60) == set_up


@pytest.mark.parametrize(
    ("set_up", "sentence"),
    [
        (
            SetUp(cloud_init="failed", complaints=("no space",)),
            "node-0: cloud-init failed. It complains: no space.",
        ),
        (SetUp(cloud_init="running", complaints=()), "node-0: cloud-init has not ended within 15 minutes."),
        (
            SetUp(cloud_init="unknown", complaints=()),
            "node-0: `cloud-init status --wait` ended with a status that",
        ),
    ],
)
def test_judge_refuses_failed_running_and_unknown_cloud_init(set_up: SetUp, sentence: str) -> None:
    with pytest.raises(NotReady, match=sentence):
        readiness.judge("node-0", set_up, deadline_s=900)


@pytest.mark.parametrize("answer", [None, {}, {"cloud_init": "done", "complaints": 3}])
def test_readiness_parse_refuses_a_malformed_answer(answer: dict[str, object] | None) -> None:
    with pytest.raises(BadAnswer):
        readiness.parse("node-0", answer)


@pytest.fixture
def cloud_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a `cloud-init` that precedes the system's."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "cloud-init"


def answers(deadline_s: float) -> list[dict[str, object]]:
    output = io.BytesIO()
    ready.command_ready({"deadline_s": deadline_s}, output)
    output.seek(0)
    return [header for header, _ in frames.decode(output.readline, output.read)]


@pytest.mark.parametrize(("code", "state"), [(0, "done"), (1, "failed"), (2, "degraded"), (7, "unknown")])
def test_cloud_init_exit_code_is_mapped_to_a_state(cloud_init: Path, code: int, state: str) -> None:
    cloud_init.write_text(f'#!/bin/sh\n[ "$*" = "status --wait" ] || exit 9\nexit {code}\n')
    cloud_init.chmod(0o755)
    assert answers(10)[-1]["cloud_init"] == state


def test_cloud_init_killed_by_a_signal_is_asked_again(cloud_init: Path, tmp_path: Path) -> None:
    cloud_init.write_text(f"#!/bin/sh\nmkdir {tmp_path}/once 2>/dev/null && kill -TERM $$\nexit 2\n")
    cloud_init.chmod(0o755)
    assert answers(30)[-1]["cloud_init"] == "degraded"
    assert (tmp_path / "once").is_dir()


def test_cloud_init_wait_ends_at_the_deadline_without_processes(cloud_init: Path, tmp_path: Path) -> None:
    cloud_init.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    cloud_init.chmod(0o755)
    began = time.monotonic()
    assert answers(1.0)[-1]["cloud_init"] == "running"
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_cloud_init_complaints_are_read_from_result_json(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert ready.complaints(result) == []
    result.write_text('{"v1": {"datasource": "DataSourceOracle", "errors": ["(\'scripts_user\', 1)"]}}')
    assert ready.complaints(result) == ["('scripts_user', 1)"]
    result.write_text("{")
    assert ready.complaints(result) == []


def test_bus_counts_nvidia_gpus_and_nvswitches(tmp_path: Path) -> None:
    for name, vendor, kind, device in (
        ("0000:00:04.0", "0x10de", "0x030200", "0x2330"),
        ("0000:00:05.0", "0x10de", "0x030000", None),
        ("0000:00:05.1", "0x10de", "0x040300", "0x10f8"),
        ("0000:00:06.0", "0x1d0f", "0x020000", "0xec20"),
        ("0000:00:07.0", "0x10de", "0x068000", "0x22a3"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
        if device is not None:
            (tmp_path / name / "device").write_text(device + "\n")
    assert gpus.bus(tmp_path) == gpus.Bus(gpus=[0x2330, 0], switches=1)
    assert gpus.bus(tmp_path / "none") == gpus.Bus(gpus=[], switches=0)


@pytest.mark.parametrize(
    ("devices", "switches", "needed"),
    [([0x2330], 4, True), ([0x2236], 0, False), ([0x2901], 0, True), ([0x2941], 0, False), ([], 4, False)],
    ids=["hgx-h100", "a10", "hgx-b200", "gb200", "switches-alone"],
)
def test_needs_fabric_is_true_for_nvswitch_gpus(devices: list[int], switches: int, needed: bool) -> None:
    assert gpus.needs_fabric(gpus.Bus(gpus=devices, switches=switches)) == needed


CSV = """\
0, GPU-1a2b, NVIDIA A10, 23028, 580.95.05
1, GPU-3c4d, NVIDIA A10, 23028, 580.95.05
Warning: something else
"""


@pytest.mark.parametrize(
    ("visible", "indices"),
    [(None, [0, 1]), ("1", [1]), ("GPU-1a", [0]), ("", []), ("7", []), ("0,1", [0, 1])],
)
def test_parse_gpus_respects_cuda_visible_devices(visible: str | None, indices: list[int]) -> None:
    assert [gpu["index"] for gpu in gpus.parse_gpus(CSV, visible)] == indices


def test_nvidia_smi_timeout_is_reported_though_its_pipe_stays_open(tmp_path: Path) -> None:
    """A child process holds the pipe, as a process stuck in the driver would."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/pid\nwait\n")
    program.chmod(0o755)
    began = time.monotonic()
    try:
        assert gpus.ask(str(program), timeout_s=1.5) == (-1, "nvidia-smi did not answer within 1.5 s")
        assert time.monotonic() - began < 30
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_gpus_read_counts_gpus_hidden_from_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{CSV}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    result = gpus.read()
    assert (len(result["gpus"]), result["driver"]["listed"], result["driver"]["smi_exit"]) == (1, 2, 0)


FABRIC = "GPU 00000000:{}:00.0\n    Product Name                : NVIDIA H100\n    Fabric\n        State       : {}\n"


@pytest.mark.parametrize(
    ("systemd", "smi", "state"),
    [
        ("echo active", "exit 9", "active"),
        ("echo failed; exit 3", FABRIC.format("18", "Completed"), "failed"),
        ("exit 1", FABRIC.format("18", "Completed"), "unknown"),
        ("echo inactive; exit 3", FABRIC.format("18", "Completed") + FABRIC.format("2A", "Completed"), "active"),
        ("echo inactive; exit 3", FABRIC.format("18", "Completed") + FABRIC.format("2A", "In Progress"), "inactive"),
        ("echo inactive; exit 3", "GPU 00000000:18:00.0\n", "inactive"),
    ],
    ids=["at-work", "failed", "no-systemd", "outside-this-container", "not-yet", "says-nothing"],
)  # fmt: skip
def test_fabric_state_asks_systemd_then_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemd: str, smi: str, state: str
) -> None:
    for name, text in (("systemctl", systemd), ("nvidia-smi", f"cat <<'END'\n{smi}END\n")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpus.fabric_state(str(tmp_path / "nvidia-smi")) == state


def test_holders_lists_processes_that_hold_gpus(tmp_path: Path) -> None:
    for pid, name, opened in (
        ("20", "python3", "/dev/nvidia0"),
        ("3", "nvidia-persiste", "/dev/nvidiactl"),
        ("4", "bash", "/dev/null"),
        ("100", "jupyter", "/dev/nvidia-uvm"),
    ):
        (tmp_path / pid / "fd").mkdir(parents=True)
        (tmp_path / pid / "fd" / "7").symlink_to(opened)
        (tmp_path / pid / "comm").write_text(name + "\n")
    (tmp_path / "5").mkdir()
    assert gpus.holders(tmp_path) == ["20 (python3)", "100 (jupyter)"]


@pytest.mark.parametrize("judged", [True, False])
def test_facts_after_reboot_checks_cloud_init_only_when_judged(
    monkeypatch: pytest.MonkeyPatch, judged: bool
) -> None:
    node = SimpleNamespace(name="gpu-0", close=lambda: None)
    monkeypatch.setattr(readiness, "connect_booting", lambda *_, **__: node)
    failed = SetUp(cloud_init="failed", complaints=())
    monkeypatch.setattr(readiness, "watch_cloud_init", lambda *_, **__: failed)
    monkeypatch.setattr(readiness, "gather", lambda *_: facts(boot_id="b1"))
    with pytest.raises(NotReady, match="cloud-init failed") if judged else nullcontext():
        result = readiness.facts_after_reboot(
            node,
            ClusterFolder(Path("nowhere")),
            (),
            boot_id="b0",
            deadline_s=5,
            say=lambda _: None,
            judged=judged,  # type: ignore[arg-type]
        )
        assert result.boot_id == "b1"
