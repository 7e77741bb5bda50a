"""Which driver packages are chosen, and what is read out of apt's words."""

import pytest

from remote.node import apt
from remote.node.driver import check_system
from remote.node.driver_packages import Machine, branches, choose, pattern, tracks

A10, V100, K80, B200, GB200 = 0x2236, 0x1DB1, 0x102D, 0x2901, 0x2941
ORACLE, AWS, HWE = "6.8.0-1035-oracle", "6.8.0-1031-aws", "6.8.0-45-generic"


def machine(
    *gpus: int, kernels: tuple[str, ...] = (ORACLE,), fabric: bool = False, **more: object
) -> Machine:
    return Machine(
        kernels=kernels, gpus=gpus or (A10,), fabric=fabric, installed=frozenset(more.get("installed", ()))
    )  # type: ignore[arg-type]


def branch(number: int, *modules: str, kind: str = "-open", dkms: bool = True) -> set[str]:
    """The packages of a branch, with modules for these kernels or flavours."""
    return {
        *(f"linux-modules-nvidia-{number}-server{kind}-{what}" for what in modules),
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
def test_modules_that_are_built_already(
    offered: set[str], its: Machine, version: str | None, modules: list[str], kind: str, number: int
) -> None:
    assert choose(offered, its, version) == {
        "branch": str(number),
        "built": True,
        "packages": [
            *(f"linux-modules-nvidia-{number}-server{kind}-{what}" for what in modules),
            f"nvidia-headless-no-dkms-{number}-server{kind}",
            f"nvidia-utils-{number}-server",
        ],
    }


def test_modules_are_built_on_the_machine_where_there_are_none() -> None:
    headers = f"linux-headers-{ORACLE}"
    wanted = ["nvidia-headless-580-server-open", "nvidia-utils-580-server"]
    assert choose(branch(580) | {headers}, machine(), None)["packages"] == [headers, *wanted]
    assert choose(branch(580), machine(installed=[headers]), None)["packages"] == wanted


def test_switches_get_the_fabric_manager_of_the_branch() -> None:
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
def test_a_reason_is_given_where_no_packages_fit(
    offered: set[str], its: Machine, version: str | None, reason: str
) -> None:
    with pytest.raises(apt.Failed) as failed:
        choose(offered, its, version)
    assert failed.value.reason == reason
    assert failed.value.facts["branches"] == branches(offered) or reason in ("kernel", "no_fabric")


def test_the_flavour_of_a_kernel_is_in_its_release() -> None:
    assert tracks("6.8.0-1035-oracle-64k", set()) == ["oracle-64k-6.8"]
    assert tracks(AWS, {"linux-image-aws-lts-22.04", "linux-image-generic"}) == ["aws-lts-22.04", "aws-6.8"]
    assert tracks("6.1.0-custom", set()) == []


def test_apt_is_asked_for_names_that_it_can_match() -> None:
    assert pattern([AWS]).endswith("|(linux-headers-6[.]8[.]0-1031-aws)$)")


BY_APT = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1806 (unattended-upgr)"
OF_LISTS = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 9 (apt-get)\nE: Unable to"
WAITED = (
    "Waiting for cache lock: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (dpkg)...\n"
    "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?"
)


@pytest.mark.parametrize(
    ("said", "lock", "holder"),
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
def test_a_lock_that_is_held_and_its_holder(said: str, lock: str | None, holder: str | None) -> None:
    assert apt.lock_of(said) == (None if lock is None else {"lock": lock, "holder": holder})


def test_the_mirror_that_could_not_be_reached() -> None:
    said = (
        "Hit:1 http://security.ubuntu.com/ubuntu noble-security InRelease\n"
        "W: Failed to fetch http://archive.ubuntu.com/ubuntu/dists/noble/InRelease  Could not connect to "
        "archive.ubuntu.com:80 (185.125.190.36), connection timed out\n"
        "W: Some index files failed to download. They have been ignored, or old ones used instead.\n"
    )
    assert apt.unfetched(said) == (
        "archive.ubuntu.com",
        "Could not connect to archive.ubuntu.com:80 (185.125.190.36), connection timed out",
    )
    cut_off = (
        "Err:1 http://archive.ubuntu.com/ubuntu noble InRelease\n  Connection failed [IP: 192.0.2.1 80]\n"
    )
    assert apt.unfetched(cut_off) == ("archive.ubuntu.com", "Connection failed [IP: 192.0.2.1 80]")
    assert apt.unfetched("Hit:1 http://a/ubuntu noble InRelease\n") is None


def test_mirrors_and_proxies_in_apts_settings() -> None:
    uris = (
        "'http://a.test/ubuntu/dists/noble/InRelease' a.test_ubuntu_dists_noble_InRelease 0 \n"
        "'http://a.test/ubuntu/dists/noble-updates/InRelease' x 0 \n'https://b.test:8443/x/InRelease' y 0 \n"
        "'file:/srv/x' z 0 \n"
    )
    assert [apt.host_of(url) for url in apt.mirrors_of(uris)] == ["a.test", "b.test"]
    assert apt.has_proxy('Acquire::http::Proxy "http://10.0.0.1:3128";')
    assert apt.has_proxy('Acquire::http::Proxy-Auto-Detect "/usr/bin/find-proxy";')
    assert not apt.has_proxy('Acquire::http::Proxy "";\nAcquire::http::Proxy::a.test "DIRECT";\nAcquire "";')


def test_what_apt_failed_over() -> None:
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
def test_only_ubuntu_is_installed_on(tmp_path, text: str | None, system: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "os-release"
    if text is not None:
        path.write_text(text)
    with pytest.raises(apt.Failed) as failed:
        check_system(path)
    assert failed.value.facts == {"os": system}
    path.write_text('NAME="Ubuntu"\nID=ubuntu\nPRETTY_NAME="Ubuntu 24.04"\n')
    check_system(path)
