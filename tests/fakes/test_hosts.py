"""Instances of a fake cloud as real SSH servers, and the effect of their user-data."""

import gzip
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from provision.ssh_keys import make_key
from tests.fakes.cloud_init import read_user_data
from tests.fakes.hosts import Host, Hosts, end_hosts

LIMIT_S = 20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path / "hosts", free_port())
    yield made
    made.stop_all()
    assert marked(made.home) == []


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Key pairs by name: the private half's file, the public half's text."""
    folder = tmp_path_factory.mktemp("keys")
    return {name: (folder / name, make_key(folder / name)) for name in ("own", "api", "host", "stranger")}


def marked(home: Path) -> list[int]:
    """Live processes of hosts, found without the code under test."""
    result = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("GPUCTL_LOCAL_CLUSTER") == str(home)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                result.append(process.pid)
        except psutil.Error:
            continue
    return result


def cloud_config(**fields: object) -> bytes:
    return ("#cloud-config\n" + yaml.safe_dump(fields)).encode()


def ssh(host: Host, key: Path, known_hosts: Path, *words: str, user: str | None = None) -> list[str]:
    options = {
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "IdentityFile": str(key),
        "User": user or host.user,
        "Port": str(host.port),
    }
    return [
        "ssh",
        "-F",
        "/dev/null",
        *(f"-o{key}={value}" for key, value in options.items()),
        host.address,
        *words,
    ]


def run(*args: object, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ssh(*args, **options), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )  # type: ignore[arg-type]


def pin(tmp_path: Path, host: Host, public_key: str) -> Path:
    known_hosts = tmp_path / "known_hosts"
    with known_hosts.open("a") as file:
        file.write(f"[{host.address}]:{host.port} {public_key}\n")
    return known_hosts


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def sleepers(host: Host) -> list[psutil.Process]:
    """Return the processes of `sleep 300` below a host's server."""
    below = psutil.Process(host.pid).children(recursive=True) if host.pid else []
    return [process for process in below if process.cmdline() == ["sleep", "300"]]


def accepts_connections(host: Host) -> bool:
    with socket.socket() as client:
        return client.connect_ex((host.address, host.port)) == 0


class TestUserData:
    def test_user_data_keys_go_to_the_image_user(self, keys):
        local, api = keys["own"][1], keys["api"][1]
        boot = read_user_data(cloud_config(ssh_authorized_keys=[local]), authorized_keys=[api])
        assert (boot.user, boot.authorized_keys, boot.host_key) == ("ubuntu", (api, local), None)

    def test_user_data_user_beside_default_is_the_login_user(self, keys):
        users = ["default", {"name": "worker", "ssh_authorized_keys": keys["own"][1]}]
        boot = read_user_data(cloud_config(users=users))
        assert (boot.user, boot.authorized_keys) == ("worker", (keys["own"][1],))

    def test_user_data_without_default_user_drops_its_keys(self, keys):
        users = [{"name": "worker"}]
        boot = read_user_data(
            cloud_config(users=users, ssh_authorized_keys=[keys["own"][1]]), authorized_keys=[keys["api"][1]]
        )
        assert boot.authorized_keys == ()

    def test_user_data_uses_the_given_image_user(self, keys):
        boot = read_user_data(b"", authorized_keys=[keys["api"][1]], image_user="opc")
        assert (boot.user, boot.authorized_keys) == ("opc", (keys["api"][1],))

    def test_user_data_may_be_gzipped(self, keys):
        boot = read_user_data(gzip.compress(cloud_config(ssh_authorized_keys=[keys["own"][1]])))
        assert boot.authorized_keys == (keys["own"][1],)

    @pytest.mark.parametrize(
        "wrong",
        [
            b"users: []\n",
            b"#!/bin/sh\ntrue\n",
            b"#cloud-config\n{",
            b"#cloud-config\n- 1\n",
            b"\xff\xfe",
            b"\x1f\x8bnot gzip",
            gzip.compress(b"#cloud-config\n" * 99, mtime=0)[:-9],
        ],
    )
    def test_unreadable_user_data_is_ignored_and_reported(self, keys, wrong):
        boot = read_user_data(wrong, authorized_keys=[keys["api"][1]])
        assert boot.problem
        assert boot.authorized_keys == (keys["api"][1],)

    def test_user_data_with_an_invalid_key_leaves_it_out(self, keys):
        boot = read_user_data(cloud_config(ssh_authorized_keys=["ssh-ed25519 AAAA", keys["own"][1]]))
        assert boot.authorized_keys == (keys["own"][1],)
        assert "ssh-ed25519 AAAA" in (boot.problem or "")


class TestHosts:
    def test_host_uses_its_host_key_and_authorized_keys(self, hosts, keys, tmp_path):
        private, public = keys["host"][0].read_text(), keys["host"][1]
        data = cloud_config(
            users=["default"],
            ssh_authorized_keys=[keys["own"][1]],
            ssh_keys={"ed25519_private": private, "ed25519_public": public},
        )
        host = hosts.start("i-1", hosts.address(), data, authorized_keys=[keys["api"][1]])
        known_hosts = pin(tmp_path, host, public)
        until(lambda: accepts_connections(host), "the host did not answer")
        for name in ("own", "api"):
            done = run(host, keys[name][0], known_hosts, "pwd; echo $SSH_CONNECTION")
            assert done.returncode == 0, done.stderr
            where, connection = done.stdout.splitlines()
            assert where == str(hosts.home / "i-1" / "home")
            assert connection.endswith(f"{host.address} {host.port}")
        stranger = run(host, keys["stranger"][0], known_hosts, "true")
        assert "Permission denied (publickey)" in stranger.stderr
        other_user = run(host, keys["own"][0], known_hosts, "true", user="root")
        assert "Permission denied (publickey)" in other_user.stderr
        assert host.folder.log_path.read_text() == ""

    def test_host_without_user_data_refuses_every_key(self, hosts, keys, tmp_path):
        host = hosts.start("i-1", hosts.address(), b"")
        until(lambda: accepts_connections(host), "the host did not answer")
        public = subprocess.run(
            ["ssh-keygen", "-y", "-f", host.folder.host_key_path], capture_output=True, text=True, check=True
        ).stdout.strip()
        done = run(host, keys["own"][0], pin(tmp_path, host, public), "true")
        assert "Permission denied (publickey)" in done.stderr

    def test_host_start_does_not_wait_for_the_server(self, hosts):
        started = [hosts.start(f"i-{n}", hosts.address(), b"") for n in range(3)]
        assert not accepts_connections(started[-1]), "it was waited for"
        until(lambda: all(accepts_connections(host) for host in started), "not all answer")
        assert len({host.address for host in started}) == 3

    def test_host_stop_ends_its_processes_and_no_others(self, hosts, keys, tmp_path):
        data = cloud_config(
            ssh_authorized_keys=[keys["own"][1]], ssh_keys={"ed25519_private": keys["host"][0].read_text()}
        )
        doomed, spared = (hosts.start(name, hosts.address(), data) for name in ("i-1", "i-2"))
        until(lambda: accepts_connections(doomed) and accepts_connections(spared), "not all answer")
        for host in (doomed, spared):
            known_hosts = pin(tmp_path, host, keys["host"][1])
            # Detached, and one without the mark in its environment.
            script = "setsid sleep 300 >/dev/null 2>&1 & setsid env -i sleep 300 >/dev/null 2>&1 & echo up"
            assert run(host, keys["own"][0], known_hosts, script).stdout == "up\n"
        until(lambda: len(sleepers(doomed)) == len(sleepers(spared)) == 2, "the commands did not start")
        ended, saved = sleepers(doomed), sleepers(spared)
        hosts.stop("i-1", wait=True)
        assert [lives(process) for process in ended + saved] == [False, False, True, True]
        assert not accepts_connections(doomed)
        assert accepts_connections(spared)
        assert not doomed.folder.home.exists()
        assert hosts.host("i-1") is None
        hosts.stop_all()
        assert not any(lives(process) for process in saved)

    def test_host_stop_works_before_the_server_started(self, hosts):
        started = [hosts.start(f"i-{n}", hosts.address(), b"") for n in range(8)]
        for n in range(8):
            hosts.stop(f"i-{n}")
        hosts.stop("never there")
        hosts.stop_all()
        assert marked(hosts.home) == []
        assert not any(accepts_connections(host) for host in started)

    def test_host_addresses_of_two_fakes_never_collide(self, hosts, tmp_path):
        # As though the other process had an id from which the same addresses follow.
        other = Hosts(tmp_path / "other", hosts.ssh_port)
        result = [made.address() for made in (hosts, other) for _ in range(300)]
        assert len(set(result)) == 600
        assert all(address.startswith("127.77.") for address in result)
        other.stop_all()

    def test_end_hosts_ends_hosts_of_a_killed_fake(self, tmp_path):
        program = (
            "import os, pathlib, time\nfrom tests.fakes.hosts import Hosts\n"
            f"hosts = Hosts(pathlib.Path({str(tmp_path)!r}) / 'hosts', {free_port()})\n"
            "host = hosts.start('i-1', hosts.address(), b'')\n"
            "while host.pid is None: time.sleep(0.01)\n"
            "print(host.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        server = psutil.Process(int(done.stdout))
        assert lives(server)
        end_hosts(tmp_path)
        assert not lives(server)


def test_host_refuses_an_address_off_loopback(hosts):
    host = hosts.start("i-1", "0.0.0.0", b"")
    until(lambda: "not on loopback" in _log(host), "the host did not refuse")
    assert host.pid is None


def _log(host: Host) -> str:
    return host.folder.log_path.read_text() if host.folder.log_path.exists() else ""
