"""The text that cloud-init gets: as YAML, as systemd's units, and as commands that are run here."""

import ast
import base64
import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from provision.rented.launch import idle_watch
from provision.rented.launch.user_data import MAX_BYTES, expire_units, user_data
from provision.ssh_keys import make_key

END = "2026-07-01T12:00:00+00:00"


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "host"
    public = make_key(path)
    return path.read_text(), public


def text(key, **given) -> str:
    request = {"user": "ubuntu", "authorized_key": "ssh-ed25519 AAAA me", "ssh_port": 22, "expires_at": None}
    return user_data(host_private_key=key[0], host_public_key=key[1], **request | given)


def test_user_data_sets_login_user_and_host_keys(key):
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


IDLE = {"cluster": "0f" * 8, "idle_s": 1800.0, "power_off": True}
ALL = {"ssh_port": 2222, "expires_at": END, "idle": IDLE, "peer_cidr": "10.78.0.0/17"}


@pytest.mark.parametrize(
    ("typed", "share"), [({}, 0.25), ({"ssh_port": 2222, "expires_at": END}, 0.25), (ALL, 0.8)]
)
def test_user_data_is_deterministic_and_small(key, typed, share):
    assert text(key, **typed) == text(key, **typed)
    assert len(text(key, **typed).encode()) < MAX_BYTES * share


def test_user_data_with_idle_writes_the_watch_its_settings_and_its_service(key):
    document = yaml.safe_load(text(key, idle=IDLE))
    files = {file["path"]: file for file in document["write_files"]}
    watch = files["/usr/local/lib/gpuctl/idle_watch.py"]
    assert watch["encoding"] == "gz+b64"
    program = gzip.decompress(base64.b64decode(watch["content"])).decode()
    ast.parse(program, feature_version=(3, 6))
    assert '"""' not in program
    written, source = {}, vars(idle_watch)
    exec(compile(program, "watch", "exec"), written)
    assert written.keys() >= {name for name in source if not name.startswith("__")}
    assert written["step"].__code__.co_names == idle_watch.step.__code__.co_names
    settings = json.loads(files["/etc/gpuctl-idle.json"]["content"])
    assert settings == IDLE | {"user": "ubuntu", "ssh_port": 22}
    service = files["/etc/systemd/system/gpuctl-idle.service"]["content"]
    assert "\nRestart=always\n" in service
    sshd = files["/etc/ssh/sshd_config.d/10-gpuctl.conf"]["content"]
    assert sshd == "ClientAliveInterval 60\nClientAliveCountMax 1000\n"
    *units, script = document["runcmd"]
    assert units == [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", "gpuctl-idle.service"]]
    assert "reload" in script
    assert "restart ssh.socket" not in script


@pytest.mark.parametrize("includes", [True, False])
def test_idle_script_has_sshd_read_its_settings_without_a_restart(tmp_path, key, includes):
    config = tmp_path / "sshd_config"
    config.write_text("Include /etc/ssh/sshd_config.d/*.conf\n" if includes else "Protocol 2\n")
    stub(tmp_path / "bin", "systemctl", '[ "$2" != ssh.service ]')
    assert run(tmp_path, yaml.safe_load(text(key, idle=IDLE))["runcmd"][-1]) == [
        "systemctl try-reload-or-restart ssh.service",
        "systemctl try-reload-or-restart sshd.service",
    ]
    lines = [] if includes else ["ClientAliveInterval 60", "ClientAliveCountMax 1000"]
    assert config.read_text().splitlines()[:-1] == lines


def test_idle_service_runs_the_watch_with_the_machines_python(tmp_path, key):
    (service,) = (
        f for f in yaml.safe_load(text(key, idle=IDLE))["write_files"] if "idle.service" in f["path"]
    )
    (line,) = (row for row in service["content"].splitlines() if row.startswith("ExecStart="))
    argv = shlex.split(line.removeprefix("ExecStart=").replace("$$", "$").replace("%%", "%"))
    stub(tmp_path / "bin", "python3")
    subprocess.run(argv, env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}, check=True, timeout=20)
    assert (tmp_path / "calls").read_text() == (
        "python3 -I /usr/local/lib/gpuctl/idle_watch.py /etc/gpuctl-idle.json\n"
    )


def test_user_data_with_ttl_installs_an_expiry_timer(key):
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
def test_user_data_writes_the_expiry_in_utc(key, same):
    assert text(key, expires_at=same) == text(key, expires_at=END)


@pytest.mark.parametrize(("minutes", "off"), [(-1, True), (60, False)])
def test_expire_service_powers_off_only_after_the_end(tmp_path, minutes, off):
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
def test_expire_units_pass_systemd_verify(tmp_path):
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


def test_user_data_runs_boot_commands_last(key):
    document = yaml.safe_load(text(key, ssh_port=2222, boot_commands=("grow || echo no", "newer-python")))
    assert document["runcmd"][-2:] == ["grow || echo no", "newer-python"]
    assert len(document["runcmd"]) == 3


def test_user_data_with_ssh_port_configures_sshd(key):
    document = yaml.safe_load(text(key, ssh_port=2222))
    (file,) = document["write_files"]
    assert (file["path"], file["content"]) == ("/etc/ssh/sshd_config.d/10-gpuctl.conf", "Port 2222\n")
    (script,) = document["runcmd"]
    assert "systemctl restart ssh.socket" in script
    assert subprocess.run(["sh", "-n"], input=script, text=True, timeout=20).returncode == 0


RULES = """\
# Generated by iptables-save
*mangle
:INPUT ACCEPT [0:0]
-A INPUT -p tcp -j ACCEPT
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:InstanceServices - [0:0]
-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p icmp -j ACCEPT
-A INPUT -i lo -j ACCEPT
-A INPUT -p udp -m udp --sport 123 -j ACCEPT
-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT
-A INPUT -j REJECT --reject-with icmp-host-prohibited
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
-A OUTPUT -d 169.254.0.0/16 -j InstanceServices
-A InstanceServices -d 169.254.0.2/32 -p tcp -m owner --uid-owner 0 -m tcp --dport 3260 -j ACCEPT
COMMIT
"""
"""Rules of Oracle's Ubuntu images."""
FIRST_FILTER_RULE = RULES.splitlines().index("-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT")


def stub(folder: Path, tool: str, body: str = "") -> None:
    """Create a tool that records its arguments."""
    folder.mkdir(exist_ok=True)
    (folder / tool).write_text(f'#!/bin/sh\necho {tool} "$@" >> {folder.parent}/calls\n{body}\n')
    (folder / tool).chmod(0o755)


def run(tmp_path: Path, script: str) -> list[str]:
    """Run a script with only the stubs and the system's tools in PATH. Return the stubs' calls."""
    script = script.replace("/etc/iptables/rules.v4", str(tmp_path / "rules.v4"))
    script = script.replace("/etc/ssh/sshd_config", str(tmp_path / "sshd_config"))
    (tmp_path / "calls").write_text("")
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    subprocess.run(["sh"], input=script, text=True, check=True, env={"PATH": path}, timeout=20)
    return (tmp_path / "calls").read_text().splitlines()


def with_line(line: str, rules: str = RULES) -> str:
    """The rules with a line before all others of the table `filter`."""
    lines = rules.splitlines()
    return "\n".join([*lines[:FIRST_FILTER_RULE], line, *lines[FIRST_FILTER_RULE:]]) + "\n"


def peers_script(key, cidr: str = "10.78.0.0/17") -> str:
    (script,) = yaml.safe_load(text(key, peer_cidr=cidr))["runcmd"]
    return script


@pytest.mark.parametrize("includes", [True, False])
def test_ssh_port_script_opens_firewall_and_restarts_ssh_socket(tmp_path, key, includes):
    """Run the script unchanged, on test files and with tools that only record their arguments."""
    rules, config = tmp_path / "rules.v4", tmp_path / "sshd_config"
    rules.write_text(RULES)
    config.write_text("Include /etc/ssh/sshd_config.d/*.conf\n" if includes else "Protocol 2\n")
    stub(tmp_path / "bin", "systemctl", '[ "$3" != firewalld ]')
    stub(tmp_path / "bin", "iptables", '[ "$2" != -C ]')
    (script,) = yaml.safe_load(text(key, ssh_port=2222))["runcmd"]
    assert run(tmp_path, script) == [
        "systemctl is-active --quiet firewalld",
        "iptables -w -C INPUT -p tcp -m tcp --dport 2222 -j ACCEPT",
        "iptables -w -I INPUT 1 -p tcp -m tcp --dport 2222 -j ACCEPT",
        "systemctl daemon-reload",
        "systemctl is-active --quiet ssh.socket",
        "systemctl stop ssh.service",
        "systemctl restart ssh.socket",
    ]
    assert rules.read_text() == with_line("-A INPUT -p tcp -m tcp --dport 2222 -j ACCEPT")
    assert config.read_text().startswith("Include " if includes else "Port 2222\nProtocol 2\n")


def test_user_data_opens_the_firewall_to_peers_first(key):
    commands = yaml.safe_load(text(key, peer_cidr="10.78.0.9/17", ssh_port=2222, expires_at=END))["runcmd"]
    assert commands[2] == peers_script(key), "the range, not an address in it"
    assert "--dport 2222" in commands[3]
    with pytest.raises(ValueError, match="reboot"):
        text(key, peer_cidr="10.0.0.0/8; reboot")


def test_peers_script_inserts_and_saves_one_iptables_rule(tmp_path, key):
    rules = tmp_path / "rules.v4"
    rules.write_text(RULES)
    rules.chmod(0o640)
    stub(tmp_path / "bin", "systemctl", "false")
    # The stub finds the rule after it was added.
    stub(
        tmp_path / "bin",
        "iptables",
        f'if [ "$2" = -C ]; then [ -f {tmp_path}/in ]; else : >{tmp_path}/in; fi',
    )
    inserted = "iptables -w -I INPUT 1 -s 10.78.0.0/17 -j ACCEPT"
    assert inserted in run(tmp_path, peers_script(key))
    assert rules.read_text() == with_line("-A INPUT -s 10.78.0.0/17 -j ACCEPT")
    assert rules.stat().st_mode & 0o777 == 0o640
    assert inserted not in run(tmp_path, peers_script(key))
    assert rules.read_text() == with_line("-A INPUT -s 10.78.0.0/17 -j ACCEPT"), "once"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "calls", "in", "rules.v4"]


def test_peers_script_adds_a_rule_to_a_saved_rules_file(tmp_path, key):
    (tmp_path / "rules.v4").write_text("*filter\n:INPUT DROP [0:0]\nCOMMIT\n")
    stub(tmp_path / "bin", "systemctl", "false")
    stub(tmp_path / "bin", "iptables", "exit 1")
    run(tmp_path, peers_script(key))
    expected = "*filter\n:INPUT DROP [0:0]\n-A INPUT -s 10.78.0.0/17 -j ACCEPT\nCOMMIT\n"
    assert (tmp_path / "rules.v4").read_text() == expected


@pytest.mark.parametrize("active", [True, False])
def test_peers_script_allows_peers_in_active_ufw(tmp_path, key, active):
    stub(tmp_path / "bin", "systemctl", "false")
    stub(tmp_path / "bin", "ufw", f"echo 'Status: {'active' if active else 'inactive'}'")
    allow = ["ufw allow from 10.78.0.0/17"] if active else []
    assert run(tmp_path, peers_script(key)) == [
        "systemctl is-active --quiet firewalld",
        "ufw status",
        *allow,
    ]


def test_peers_script_trusts_peers_in_firewalld(tmp_path, key):
    (tmp_path / "rules.v4").write_text(RULES)
    stub(tmp_path / "bin", "systemctl")
    for tool in ("firewall-cmd", "iptables", "ufw"):
        stub(tmp_path / "bin", tool)
    assert run(tmp_path, peers_script(key)) == [
        "systemctl is-active --quiet firewalld",
        "firewall-cmd --zone=trusted --add-source=10.78.0.0/17",
        "firewall-cmd --permanent --zone=trusted --add-source=10.78.0.0/17",
    ]
    assert (tmp_path / "rules.v4").read_text() == RULES


def test_peers_script_without_firewall_changes_nothing(tmp_path, key):
    stub(tmp_path / "bin", "systemctl", "false")
    stub(tmp_path / "bin", "iptables")
    assert run(tmp_path, peers_script(key)) == ["systemctl is-active --quiet firewalld"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "calls"]


_NETWORKED = r"""
set -e
trap 'kill $peer $server' EXIT
iptables-restore {folder}/rules.v4
ip link set lo up
ip link add here type veth peer name there
ip addr add 10.78.0.2/17 dev here
ip addr add 192.0.2.2/24 dev here
unshare -n sleep 30 &
peer=$!
until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
ip link set there netns $peer
ip link set here up
in_peer="nsenter -t $peer -n"
$in_peer ip addr add 10.78.0.3/17 dev there
$in_peer ip addr add 192.0.2.3/24 dev there
$in_peer ip link set there up
{python} -c 'import socket,time; s=socket.create_server(("",29500)); print(1,flush=True); time.sleep(30)' \
  >{folder}/server & server=$!
until [ -s {folder}/server ]; do sleep 0.01; done
try() {{
  $in_peer {python} -c 'import socket,sys; socket.create_connection((sys.argv[1],29500),timeout=10)' $1 \
    2>/dev/null && echo "$2 $1: in" || echo "$2 $1: refused"
}}
try 10.78.0.2 before
sh {folder}/script
sh {folder}/script
try 10.78.0.2 after
try 192.0.2.2 after
iptables-save -t filter | grep -e '^-A' >{folder}/live
iptables-restore {folder}/rules.v4
try 10.78.0.2 booted
iptables-save -t filter | grep -e '^-A' >{folder}/booted
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks")
def test_peers_script_lets_peers_through_real_iptables(tmp_path, key):
    """Uses Oracle's rules in a test network, with a second machine behind a virtual cable."""
    needed = ("iptables", "iptables-restore", "iptables-save", "ip", "unshare", "nsenter")
    if missing := [tool for tool in needed if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if subprocess.run(["unshare", "-n", "iptables", "-S"], capture_output=True, timeout=20).returncode:
        pytest.skip("no networks or no iptables may be made here")
    (tmp_path / "rules.v4").write_text(RULES)
    script = peers_script(key).replace("/etc/iptables/rules.v4", str(tmp_path / "rules.v4"))
    (tmp_path / "script").write_text(script)
    text = _NETWORKED.format(folder=tmp_path, python=sys.executable)
    done = subprocess.run(
        ["unshare", "-n", "sh"], input=text, text=True, capture_output=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == [
        "before 10.78.0.2: refused",
        "after 10.78.0.2: in",
        "after 192.0.2.2: refused",
        "booted 10.78.0.2: in",
    ], done.stderr
    live = (tmp_path / "live").read_text().splitlines()
    assert live[0] == "-A INPUT -s 10.78.0.0/17 -j ACCEPT"
    assert len(live) == len([line for line in RULES.splitlines() if line.startswith("-A")]), "one, none lost"
    assert (tmp_path / "booted").read_text().splitlines() == live
