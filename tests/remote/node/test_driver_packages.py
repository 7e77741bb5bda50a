"""Test the choice of driver packages, and the parsing of apt's output."""

import contextlib
import io
import json
import os
import socket
from pathlib import Path

import pytest

from remote.node import process
from remote.node.gpu import apt
from remote.node.gpu import driver as node_driver
from remote.node.gpu.driver import check_system
from remote.node.gpu.driver_packages import Machine, branches, choose, pattern, tracks
from remote.shared import frames

A10, V100, K80, B200, GB200 = 0x2236, 0x1DB1, 0x102D, 0x2901, 0x2941
ORACLE, AWS, HWE = "6.8.0-1035-oracle", "6.8.0-1031-aws", "6.8.0-45-generic"


def machine(
    *gpus: int, kernels: tuple[str, ...] = (ORACLE,), fabric: bool = False, **more: object
) -> Machine:
    return Machine(
        kernels=kernels, gpus=gpus or (A10,), fabric=fabric, installed=frozenset(more.get("installed", ()))
    )  # type: ignore[arg-type]


def branch(number: int, *modules: str, kind: str = "-open", dkms: bool = True) -> set[str]:
    """Return the packages of a branch, with modules for these kernels or flavours."""
    return {
        *(f"linux-modules-nvidia-{number}-server{kind}-{module}" for module in modules),
        f"nvidia-headless-no-dkms-{number}-server{kind}",
        *([f"nvidia-headless-{number}-server{kind}"] if dkms else []),
        f"nvidia-utils-{number}-server",
        f"nvidia-fabricmanager-{number}",
    }


def closed(number: int, *modules: str, dkms: bool = True) -> set[str]:
    return branch(number, *modules, kind="", dkms=dkms)


BOTH = (
    branch(580, ORACLE)
    | closed(580, ORACLE)
    | branch(595, ORACLE)
    | closed(595, ORACLE)
    | closed(470, ORACLE)
)


@pytest.mark.parametrize(
    ("offered", "its", "version", "modules", "kind", "number"),
    [
        pytest.param(BOTH, machine(), None, [ORACLE], "-open", 595, id="the-newest"),
        pytest.param(BOTH, machine(), "580", [ORACLE], "-open", 580, id="the-one-asked-for"),
        pytest.param(BOTH, machine(V100), None, [ORACLE], "", 580, id="the-last-for-volta"),
        pytest.param(BOTH, machine(K80), None, [ORACLE], "", 470, id="the-last-for-kepler"),
        pytest.param(BOTH, machine(V100, A10), None, [ORACLE], "", 580, id="mixed-gpus"),
        pytest.param(BOTH, machine(), "470", [ORACLE], "", 470, id="a-branch-without-open-modules"),
        pytest.param(
            branch(580, ORACLE) | branch(595), machine(), None, [ORACLE], "-open", 580, id="built-before-newest"
        ),
        pytest.param(
            BOTH, machine(installed=["nvidia-utils-580-server"]), None, [ORACLE], "-open", 580, id="the-installed"
        ),
        pytest.param(
            branch(580, HWE, "generic", "generic-hwe-22.04"),
            machine(kernels=(HWE,), installed=["linux-image-generic-hwe-22.04", f"linux-image-{HWE}"]),
            None,
            ["generic-hwe-22.04", HWE],
            "-open",
            580,
            id="the-kernel-that-is-followed",
        ),
        pytest.param(
            branch(580, "aws-6.8"), machine(kernels=(AWS,)), None, ["aws-6.8"], "-open", 580, id="its-series-alone"
        ),
        pytest.param(
            branch(580, "6.8.0-1036-oracle"),
            machine(kernels=(ORACLE, "6.8.0-1036-oracle")),
            None,
            ["6.8.0-1036-oracle"],
            "-open",
            580,
            id="the-kernel-that-boots-next",
        ),
    ],
)  # fmt: skip
def test_choose_driver_takes_prebuilt_modules_that_fit(
    offered: set[str], its: Machine, version: str | None, modules: list[str], kind: str, number: int
) -> None:
    assert choose(offered, its, version) == {
        "branch": str(number),
        "built": True,
        "packages": [
            *(f"linux-modules-nvidia-{number}-server{kind}-{module}" for module in modules),
            f"nvidia-headless-no-dkms-{number}-server{kind}",
            f"nvidia-utils-{number}-server",
        ],
    }


def test_choose_driver_builds_modules_when_none_are_prebuilt() -> None:
    headers = f"linux-headers-{ORACLE}"
    expected = ["nvidia-headless-580-server-open", "nvidia-utils-580-server"]
    assert choose(branch(580) | {headers}, machine(), None)["packages"] == [headers, *expected]
    assert choose(branch(580), machine(installed=[headers]), None)["packages"] == expected


def test_choose_driver_adds_the_fabric_manager_for_nvswitches() -> None:
    assert choose(BOTH, machine(fabric=True), None)["packages"][-1] == "nvidia-fabricmanager-595"
    offered = BOTH | {"nvlsm"}
    assert choose(offered, machine(B200, fabric=True), None)["packages"][-2:] == [
        "nvidia-fabricmanager-595",
        "nvlsm",
    ]


@pytest.mark.parametrize(
    ("offered", "its", "version", "reason"),
    [
        (set(), machine(), None, "no_packages"),
        ({"nvidia-utils-580"}, machine(), None, "no_packages"),
        (BOTH, machine(), "535", "no_version"),
        (BOTH, machine(V100), "595", "too_new"),
        (branch(595, ORACLE), machine(V100), None, "too_new"),
        (branch(580, AWS), machine(), None, "kernel"),
        (closed(580, ORACLE), machine(B200), None, "kernel"),
        (BOTH, machine(B200, fabric=True), None, "no_fabric"),
        (branch(580, "6.8.0-12-oracle"), machine(kernels=("5.4.17-2136.uek",)), None, "kernel"),
    ],
)
def test_choose_driver_gives_the_reason_when_no_packages_fit(
    offered: set[str], its: Machine, version: str | None, reason: str
) -> None:
    with pytest.raises(apt.Failed) as failed:
        choose(offered, its, version)
    assert failed.value.reason == reason
    assert failed.value.facts["branches"] == branches(offered) or reason in ("kernel", "no_fabric")


def test_kernel_tracks_reads_the_kernel_flavour_from_its_release() -> None:
    assert tracks("6.8.0-1035-oracle-64k", set()) == ["oracle-64k-6.8"]
    assert tracks(AWS, {"linux-image-aws-lts-22.04", "linux-image-generic"}) == ["aws-lts-22.04", "aws-6.8"]
    assert tracks("6.1.0-custom", set()) == []


def test_apt_pattern_escapes_kernel_releases() -> None:
    assert pattern([AWS]).endswith("|(linux-headers-6[.]8[.]0-1031-aws)$)")


BY_APT = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1806 (unattended-upgr)"
OF_LISTS = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 9 (apt-get)\nE: Unable to"
WAITED = (
    "Waiting for cache lock: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (dpkg)...\n"
    "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?"
)


@pytest.mark.parametrize(
    ("message", "lock", "holder"),
    [
        (BY_APT, "/var/lib/dpkg/lock-frontend", "process 1806 (unattended-upgr)"),
        (OF_LISTS, "/var/lib/apt/lists/lock", "process 9 (apt-get)"),
        (WAITED, "/var/lib/dpkg/lock-frontend", "process 7 (dpkg)"),
        (WAITED.splitlines()[1], "/var/lib/dpkg/lock-frontend", "another process"),
        (
            "dpkg: error: dpkg frontend lock was locked by another process with pid 12",
            "/var/lib/dpkg/lock-frontend",
            "process 12",
        ),
        (WAITED.splitlines()[0] + "\nE: Unable to locate package x", None, None),
        (
            "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)",
            None,
            None,
        ),
    ],
)
def test_apt_lock_of_reads_the_apt_lock_and_its_holder(
    message: str, lock: str | None, holder: str | None
) -> None:
    assert apt.lock_of(message) == (None if lock is None else {"lock": lock, "holder": holder})


def test_apt_unfetched_reads_the_unreachable_mirror() -> None:
    output = (
        "Hit:1 http://security.ubuntu.com/ubuntu noble-security InRelease\n"
        "W: Failed to fetch http://archive.ubuntu.com/ubuntu/dists/noble/InRelease  Could not connect to "
        "archive.ubuntu.com:80 (185.125.190.36), connection timed out\n"
        "W: Some index files failed to download. They have been ignored, or old ones used instead.\n"
    )
    assert apt.unfetched(output) == (
        "archive.ubuntu.com",
        "Could not connect to archive.ubuntu.com:80 (185.125.190.36), connection timed out",
    )
    cut_off = (
        "Err:1 http://archive.ubuntu.com/ubuntu noble InRelease\n  Connection failed [IP: 192.0.2.1 80]\n"
    )
    assert apt.unfetched(cut_off) == ("archive.ubuntu.com", "Connection failed [IP: 192.0.2.1 80]")
    assert apt.unfetched("Hit:1 http://a/ubuntu noble InRelease\n") is None


def test_apt_settings_are_read_for_mirrors_and_proxies() -> None:
    uris = (
        "'http://a.test/ubuntu/dists/noble/InRelease' a.test_ubuntu_dists_noble_InRelease 0 \n"
        "'http://a.test/ubuntu/dists/noble-updates/InRelease' x 0 \n'https://b.test:8443/x/InRelease' y 0 \n"
        "'file:/srv/x' z 0 \n"
    )
    assert [apt.host_of(url) for url in apt.mirrors_of(uris)] == ["a.test", "b.test"]
    assert apt.has_proxy('Acquire::http::Proxy "http://10.0.0.1:3128";')
    assert apt.has_proxy('Acquire::http::Proxy-Auto-Detect "/usr/bin/find-proxy";')
    assert not apt.has_proxy('Acquire::http::Proxy "";\nAcquire::http::Proxy::a.test "DIRECT";\nAcquire "";')


def test_apt_error_of_reads_the_cause_of_an_apt_failure() -> None:
    unmet = (
        "The following packages have unmet dependencies:\n nvidia-utils-580-server : Depends: libc6 (>= 3) but it is "
        "not going to be installed\nE: Unable to correct problems, you have held broken packages.\n"
    )
    assert apt.error_of(unmet).endswith(
        "held broken packages. (nvidia-utils-580-server : Depends: libc6 (>= 3) but it is not going to be installed)"
    )
    assert apt.error_of("E: first\nE: second\n") == "first"
    assert apt.error_of("some words\n\n") == "some words"


@pytest.mark.parametrize(
    ("text", "system"),
    [('PRETTY_NAME="Oracle Linux 9"\nID="ol"\n', "Oracle Linux 9"), (None, "an unknown system")],
)
def test_check_system_accepts_only_ubuntu(tmp_path: Path, text: str | None, system: str) -> None:
    path = tmp_path / "os-release"
    if text is not None:
        path.write_text(text)
    with pytest.raises(apt.Failed) as failed:
        check_system(path)
    assert failed.value.facts == {"os": system}
    path.write_text('NAME="Ubuntu"\nID=ubuntu\nPRETTY_NAME="Ubuntu 24.04"\n')
    check_system(path)


class Said(apt.Apt):
    """A fake apt whose commands end with these statuses and outputs in turn."""

    def __init__(self, folder: Path, *answers: tuple[int, str]) -> None:
        super().__init__(folder / "apt.log", lock_s=1, tell=lambda *_: None)
        self._answers = list(answers)

    def root(self, words: list[str]) -> tuple[int, str]:
        return self._answers.pop(0)


UNFETCHED = "W: Failed to fetch http://a.test/ubuntu/InRelease  Could not connect\n"
SOME = "Hit:1 http://b.test/ubuntu noble InRelease\n"


@pytest.mark.parametrize(
    ("answers", "reason", "message"),
    [
        ([(100, "E: The list of sources could not be read.\n")], "apt", "The list of sources could not be read."),
        ([(100, SOME + "E: You don't have enough free space\n")], "apt", "You don't have enough free space"),
        ([(100, UNFETCHED)], "mirror", "Could not connect"),
        ([(124, "")], "mirror", "apt-get update had not ended after 50 s"),
        ([(124, SOME), (137, SOME)], "mirror", "apt-get update had not ended after 300 s"),
    ],
    ids=["sources", "space", "not-fetched", "nothing-in-time", "not-all-in-time"],
)  # fmt: skip
def test_apt_update_names_the_mirror_only_for_fetch_failures(
    tmp_path: Path, answers: list[tuple[int, str]], reason: str, message: str
) -> None:
    with pytest.raises(apt.Failed) as failed:
        Said(tmp_path, *answers).update()
    assert (failed.value.reason, failed.value.facts["said"]) == (reason, message)


def test_apt_update_accepts_partly_fetched_lists(tmp_path: Path) -> None:
    assert Said(tmp_path, (124, SOME), (0, SOME)).update() == ""
    assert (
        Said(tmp_path, (0, SOME + UNFETCHED), (0, SOME + UNFETCHED)).update() == "a.test: Could not connect"
    )


@pytest.mark.parametrize(
    ("text", "is_set"),
    [
        ('PATH="/usr/bin"\nhttp_proxy="http://10.0.0.1:3128"\n', True),
        ("export HTTPS_PROXY=http://10.0.0.1:3128\n", True),
        ('http_proxy=""\n#https_proxy=http://10.0.0.1\nno_proxy=localhost\n', False),
        (None, False),
    ],
)
def test_proxy_is_set_reads_etc_environment_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, is_set: bool
) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(apt, "ENVIRONMENT", tmp_path / "environment")
    if text is not None:
        apt.ENVIRONMENT.write_text(text)
    assert apt.proxy_is_set() == is_set
    monkeypatch.setenv("https_proxy", "http://10.0.0.1:3128")
    assert apt.proxy_is_set()


def test_check_mirrors_tries_the_next_address_after_a_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two addresses, like a machine with broken IPv6: the kernel drops connections to a full listener."""
    with (
        socket.create_server(("127.0.0.2", 0), backlog=0) as silent,
        socket.create_server(("127.0.0.1", silent.getsockname()[1])) as answers,
        contextlib.ExitStack() as full,
    ):
        port = answers.getsockname()[1]
        for _ in range(4):
            item = full.enter_context(socket.socket())
            item.setblocking(False)
            item.connect_ex(("127.0.0.2", port))
        both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, port)) for at in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        monkeypatch.setattr(apt, "ADDRESS_S", 0.2)
        apt.check_mirrors([f"http://mirror.test:{port}/ubuntu"], 20.0)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both[:1])
        with pytest.raises(apt.Failed, match="mirror") as failed:
            apt.check_mirrors([f"http://mirror.test:{port}/ubuntu"], 0.5)
    assert failed.value.facts["said"] == "no answer within 0.5 s"


def driver_answer(
    monkeypatch: pytest.MonkeyPatch, folder: Path, attempt: str, status: dict[str, object]
) -> object:
    """Return the node's answer about an attempt, with this status and no installation in progress."""
    monkeypatch.setattr(node_driver, "STATUS", folder / "status.json")
    node_driver.STATUS.write_text(json.dumps(status))
    output = io.BytesIO()
    node_driver._follow(output, attempt, 5.0)
    output.seek(0)
    (last,) = [header for header, _ in frames.decode(output.readline, output.read)]
    return last["result"]["state"]


def test_driver_result_of_another_attempt_counts_only_in_the_same_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = {"attempt": "a", "boot_id": "another", "phase": "install", "result": {"state": "installed"}}
    local = {**ended, "boot_id": process.boot_id()}
    assert driver_answer(monkeypatch, tmp_path, "b", ended) == "failed"
    assert driver_answer(monkeypatch, tmp_path, "a", ended) == "installed", "before a loss of power, say"
    assert driver_answer(monkeypatch, tmp_path, "b", local) == "installed", "it was followed"


def test_driver_folder_is_named_by_machine_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert node_driver.FOLDER.name == node_driver.machine_id()
    monkeypatch.setattr(node_driver, "MACHINE_ID", tmp_path / "machine-id")
    assert node_driver.machine_id() == os.uname().nodename
    node_driver.MACHINE_ID.write_text("")
    assert node_driver.machine_id() == os.uname().nodename
    node_driver.MACHINE_ID.write_text("0123abcd\n")
    assert node_driver.machine_id() == "0123abcd"
