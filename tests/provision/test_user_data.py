"""The text that cloud-init gets: as YAML, as systemd's units, and as commands that are run here."""

import os
import shlex
import shutil
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from provision.keys import make_key
from provision.user_data import MAX_BYTES, expire_units, user_data

END = "2026-07-01T12:00:00+00:00"


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "host"
    public = make_key(path)
    return path.read_text(), public


def text(key, **given) -> str:
    asked = {"user": "ubuntu", "authorized_key": "ssh-ed25519 AAAA me", "ssh_port": 22, "expires_at": None}
    return user_data(host_private_key=key[0], host_public_key=key[1], **asked | given)


def test_who_logs_in_and_what_the_machine_shows(key):
    made = text(key)
    assert made.startswith("#cloud-config\n")
    assert yaml.safe_load(made) == {
        "user": "ubuntu",
        "users": ["default"],
        "ssh_authorized_keys": ["ssh-ed25519 AAAA me"],
        "disable_root": True,
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": key[0], "ed25519_public": key[1]},
        "package_update": False,
        "package_upgrade": False,
    }
    assert key[0] in "\n".join(line.strip() for line in made.splitlines()) + "\n", "readable, not escaped"


@pytest.mark.parametrize("given", [{}, {"ssh_port": 2222, "expires_at": END}])
def test_same_input_same_bytes_and_small(key, given):
    assert text(key, **given) == text(key, **given)
    assert len(text(key, **given).encode()) < MAX_BYTES / 4


def test_the_time_limit(key):
    document = yaml.safe_load(text(key, expires_at=END))
    files = {file["path"]: file for file in document["write_files"]}
    assert list(files) == [
        "/etc/systemd/system/gpuctl-expire.service",
        "/etc/systemd/system/gpuctl-expire.timer",
    ]
    timer = files["/etc/systemd/system/gpuctl-expire.timer"]["content"]
    assert "\nOnCalendar=2026-07-01 12:00:00 UTC\n" in timer
    assert "\nOnBootSec=" in timer, "also when it is started again later"
    assert document["runcmd"] == [
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", "--now", "gpuctl-expire.timer"],
    ]


@pytest.mark.parametrize("same", ["2026-07-01T14:00:00+02:00", "2026-07-01T12:00:00Z"])
def test_the_end_is_in_utc(key, same):
    assert text(key, expires_at=same) == text(key, expires_at=END)


@pytest.mark.parametrize(("minutes", "off"), [(-1, True), (60, False)])
def test_the_machine_goes_off_by_the_clock(tmp_path, minutes, off):
    service = expire_units(datetime.now(UTC) + timedelta(minutes=minutes))["gpuctl-expire.service"]
    (line,) = (line for line in service.splitlines() if line.startswith("ExecStart="))
    argv = shlex.split(line.removeprefix("ExecStart=").replace("$$", "$").replace("%%", "%"))
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    systemctl.chmod(0o755)
    subprocess.run(argv, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=True, timeout=20)
    calls = tmp_path / "calls"
    assert (calls.read_text() if calls.exists() else "") == ("--no-block poweroff\n" if off else "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_units(tmp_path):
    end = datetime(2026, 7, 1, 12, tzinfo=UTC)
    for name, unit in expire_units(end).items():
        (tmp_path / name).write_text(unit)
    calendar = subprocess.run(
        ["systemd-analyze", "calendar", "2026-07-01 12:00:00 UTC"], capture_output=True, text=True, timeout=20
    )
    assert calendar.returncode == 0, calendar.stderr
    verify = ["systemd-analyze", "verify", "--recursive-errors=no", *map(str, tmp_path.iterdir())]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60)
    assert "gpuctl-expire" not in done.stderr, done.stderr


def test_another_port(key):
    document = yaml.safe_load(text(key, ssh_port=2222))
    (file,) = document["write_files"]
    assert (file["path"], file["content"]) == ("/etc/ssh/sshd_config.d/10-gpuctl.conf", "Port 2222\n")
    (script,) = document["runcmd"]
    assert "systemctl restart ssh.socket" in script
    assert subprocess.run(["sh", "-n"], input=script, text=True, timeout=20).returncode == 0


@pytest.mark.parametrize("includes", [True, False])
def test_another_port_where_ubuntu_listens_by_socket(tmp_path, key, includes):
    """The script as it is, on files of its own and with tools that only write down what they are asked."""
    rules, config = tmp_path / "rules.v4", tmp_path / "sshd_config"
    rules.write_text("-A INPUT -p tcp --dport 22 -j ACCEPT\n-A INPUT -j REJECT --reject-with x\nCOMMIT\n")
    config.write_text("Include /etc/ssh/sshd_config.d/*.conf\n" if includes else "Protocol 2\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("systemctl", "iptables"):
        (tools / tool).write_text(f'#!/bin/sh\necho {tool} "$@" >> {tmp_path}/calls\n[ "$3" != firewalld ]\n')
        (tools / tool).chmod(0o755)
    (script,) = yaml.safe_load(text(key, ssh_port=2222))["runcmd"]
    script = script.replace("/etc/iptables/rules.v4", str(rules)).replace("/etc/ssh/sshd_config", str(config))
    path = f"{tools}:/usr/bin:/bin"
    subprocess.run(["sh"], input=script, text=True, check=True, env={"PATH": path}, timeout=20)
    assert rules.read_text().splitlines()[1:3] == [
        "-A INPUT -p tcp -m tcp --dport 2222 -j ACCEPT",
        "-A INPUT -j REJECT --reject-with x",
    ]
    assert config.read_text().startswith("Include " if includes else "Port 2222\nProtocol 2\n")
    assert (tmp_path / "calls").read_text().splitlines() == [
        "systemctl is-active --quiet firewalld",
        "iptables -I INPUT 1 -p tcp --dport 2222 -j ACCEPT",
        "systemctl daemon-reload",
        "systemctl is-active --quiet ssh.socket",
        "systemctl stop ssh.service",
        "systemctl restart ssh.socket",
    ]
