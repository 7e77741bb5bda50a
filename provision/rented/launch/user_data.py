"""cloud-init's text for a new machine: login, firewall, host key, end, watch for use.

Pure: the same input gives the same bytes, as a cloud refuses a repeated request whose user-data differs. Its only
secret is the machine's own host key, which all users of the machine can read anyway.
"""

import ast
import base64
import gzip
import importlib.resources
import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

EXPIRE_UNIT = "gpuctl-expire"
"""The systemd timer and service on the machine that end it."""
IDLE_UNIT = "gpuctl-idle"
"""The systemd service on the machine that ends it after a time without use."""
MAX_BYTES = 16 * 1024
"""AWS's limit, before base64; OCI takes more."""

_RECORD = "# gpuctl: "
"""Begin of the line with the cluster's record, which cloud-init ignores."""
_UNITS = "/etc/systemd/system"
_WATCH = "/usr/local/lib/gpuctl/idle_watch.py"
_WATCH_SETTINGS = "/etc/gpuctl-idle.json"
_SSHD = "/etc/ssh/sshd_config"
_ASK_CLIENTS = ("ClientAliveInterval 60", "ClientAliveCountMax 1000")
"""sshd asks each quiet client once a minute, so the watch sees which logins are alive. A login stays for 16 h."""
_RULES = "/etc/iptables/rules.v4"


def user_data(
    *,
    user: str,
    authorized_key: str,
    host_private_key: str,
    host_public_key: str,
    ssh_port: int,
    expires_at: str | None,
    idle: Mapping[str, Any] | None = None,
    peer_cidr: str | None = None,
    boot_commands: Sequence[str] = (),
    record: Mapping[str, Any] | None = None,
) -> str:
    """Return a `#cloud-config` document of at most MAX_BYTES.

    Args:
        user: Becomes the image's default user, whatever its own default is.
        authorized_key: Public key of the login, in OpenSSH's format.
        host_private_key: The machine's host key, in OpenSSH's format.
        host_public_key: Its public half.
        ssh_port: Port of sshd.
        expires_at: Time of the power-off, ISO 8601. `None`: never.
        idle: Settings of the watch that ends the machine after a time without use, as `idle_watch.DEFAULTS` names
            them. `None`: no watch.
        peer_cidr: IPv4 range of the cluster's machines, which the machine's own firewall admits. `None`: no change.
        boot_commands: Shell text that the image needs, run last.
        record: The cluster's record, plain JSON without secrets, for another computer that takes the cluster over.
    """
    files: list[dict[str, str]] = []
    commands: list[list[str] | str] = []
    units: list[str] = []
    if expires_at is not None:
        end = datetime.fromisoformat(expires_at).astimezone(UTC)
        files += [_file(f"{_UNITS}/{name}", text) for name, text in expire_units(end).items()]
        units.append(f"{EXPIRE_UNIT}.timer")
    if idle is not None:
        files += _idle_files({**idle, "user": user, "ssh_port": ssh_port})
        units.append(f"{IDLE_UNIT}.service")
    if units:
        commands.append(["systemctl", "daemon-reload"])
        commands += [["systemctl", "enable", "--now", unit] for unit in units]
    if peer_cidr is not None:
        cidr = ipaddress.IPv4Network(peer_cidr, strict=False)
        source = f"--zone=trusted --add-source={cidr}"
        commands.append(_open(firewalld=source, ufw=f"allow from {cidr}", rule=f"-s {cidr} -j ACCEPT"))
    sshd = [f"Port {ssh_port}"] * (ssh_port != 22) + list(_ASK_CLIENTS if idle is not None else ())
    if sshd:
        files.append(_file(f"{_SSHD}.d/10-gpuctl.conf", "".join(f"{line}\n" for line in sshd)))
        commands.append(_let_ssh_in(ssh_port) + _configure_ssh(sshd, restart=ssh_port != 22))
    commands += boot_commands
    document: dict[str, Any] = {
        "user": user,
        "users": ["default"],
        "ssh_authorized_keys": [authorized_key.strip()],
        "disable_root": True,
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        # cloud-init generates no host keys of its own once it is given one.
        "ssh_keys": {
            "ed25519_private": host_private_key.strip() + "\n",
            "ed25519_public": host_public_key.strip(),
        },
        "package_update": False,
        "package_upgrade": False,
    }
    if files:
        document["write_files"] = files
    if commands:
        document["runcmd"] = commands
    head = "#cloud-config\n" if record is None else f"#cloud-config\n{_RECORD}{json.dumps(record)}\n"
    text = head + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000)
    assert len(text.encode()) <= MAX_BYTES, f"{len(text.encode())} bytes of user-data"
    return text


@dataclass(frozen=True, kw_only=True)
class FirstBoot:
    """The parts of a machine's user-data that another computer needs."""

    user: str
    host_key: str
    """Public host key."""
    record: Mapping[str, Any]


def read_user_data(text: str) -> FirstBoot | None:
    """Return the parts of a text of `user_data`. `None`: another program wrote it, or it has no record."""
    lines = [line for line in text.splitlines()[1:2] if line.startswith(_RECORD)]
    if not lines:
        return None
    try:
        document = yaml.safe_load(text)
        return FirstBoot(
            user=document["user"],
            host_key=document["ssh_keys"]["ed25519_public"],
            record=json.loads(lines[0].removeprefix(_RECORD)),
        )
    except (ValueError, KeyError, TypeError, yaml.YAMLError):
        return None


def expire_units(end: datetime) -> Mapping[str, str]:
    """Return name → text of the systemd units that power the machine off at `end` (UTC), or at a later boot.

    The service reads the clock itself: releases of systemd differ in timers with a past date, and a machine that is
    started again afterwards has to end every time.
    """
    date = end.strftime("%Y-%m-%d %H:%M:%S")
    service = f"""\
[Unit]
Description=End this machine once its time is over ({date} UTC)

[Service]
Type=oneshot
ExecStart=/bin/sh -c '[ "$$(date +%%s)" -lt {int(end.timestamp())} ] || systemctl --no-block poweroff'
"""
    timer = f"""\
[Unit]
Description=The time of this machine is over at {date} UTC

[Timer]
OnCalendar={date} UTC
OnBootSec=2min
AccuracySec=1s

[Install]
WantedBy=timers.target
"""
    return {f"{EXPIRE_UNIT}.service": service, f"{EXPIRE_UNIT}.timer": timer}


def _idle_files(settings: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the watch for use, with its settings and its service."""
    # The image's python3, or the one of Oracle Linux 8's own tools.
    python = "$$(command -v python3 || echo /usr/libexec/platform-python)"
    service = f"""\
[Unit]
Description=End this machine after {settings["idle_s"] / 60:g} minutes without use

[Service]
ExecStart=/bin/sh -c 'exec "{python}" -I {_WATCH} {_WATCH_SETTINGS}'
Restart=always
RestartSec=10

[Install]
WantedBy=multi-user.target
"""
    source = importlib.resources.files("provision.rented.launch").joinpath("idle_watch.py").read_text()
    # Comments and docstrings would fill a sixth of the user-data.
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [
                statement
                for statement in node.body
                if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
            ]
    program = gzip.compress((ast.unparse(tree) + "\n").encode(), 9, mtime=0)
    packed = {"encoding": "gz+b64"} | _file(_WATCH, base64.b64encode(program).decode())
    return [
        packed,
        _file(_WATCH_SETTINGS, json.dumps(settings) + "\n"),
        _file(f"{_UNITS}/{IDLE_UNIT}.service", service),
    ]


def _let_ssh_in(port: int) -> str:
    """Return shell text that opens the machine's own firewall and SELinux for sshd at `port`. Empty: both have it."""
    if port == 22:
        return ""
    let_in = _open(
        firewalld=f"--add-port={port}/tcp",
        ufw=f"allow {port}/tcp",
        rule=f"-p tcp -m tcp --dport {port} -j ACCEPT",
    )
    return (
        f"if command -v semanage >/dev/null; then semanage port -a -t ssh_port_t -p tcp {port}; fi\n{let_in}"
    )


def _configure_ssh(lines: Sequence[str], *, restart: bool) -> str:
    """Return shell text that has sshd use `lines`. Without `restart`, sshd only reads its files again.

    If systemd listens for sshd (Ubuntu from 24.04), its socket is restarted; if sshd_config includes no other files
    (OpenSSH before 8.2), the lines are written into it.
    """
    text = r"\n".join(lines)
    include = f"grep -qi '^ *include' {_SSHD} || sed -i '1i {text}' {_SSHD}\n"
    if not restart:
        reload = "systemctl try-reload-or-restart"
        return f"{include}{reload} ssh.service || {reload} sshd.service\n"
    return f"""\
{include}systemctl daemon-reload
if systemctl is-active --quiet ssh.socket; then
  systemctl stop ssh.service
  systemctl restart ssh.socket
else
  systemctl restart ssh.service || systemctl restart sshd.service
fi
"""


def _open(*, firewalld: str, ufw: str, rule: str) -> str:
    """Return shell text that adds a rule to the machine's own firewall, for now and for later boots. Idempotent.

    Oracle's Ubuntu rejects other traffic by a file of iptables that is read at boot. The text keeps its rules: the
    same file keeps all users but root from the boot volume. Active firewalld and ufw get the rule in their own
    syntax, and are never switched on.
    """
    line = f"-A INPUT {rule}"
    return f"""\
if systemctl is-active --quiet firewalld; then
  firewall-cmd {firewalld}
  firewall-cmd --permanent {firewalld}
else
  if command -v ufw >/dev/null && ufw status | grep -q '^Status: active'; then ufw {ufw}; fi
  if [ -f {_RULES} ]; then
    if command -v iptables >/dev/null; then
      iptables -w -C INPUT {rule} 2>/dev/null || iptables -w -I INPUT 1 {rule}
    fi
    if ! grep -qxF -e '{line}' {_RULES}; then
      cp -p {_RULES} {_RULES}.new
      awk '/^[*]/ {{f = $0 == "*filter"}} f && /^(-A INPUT |COMMIT)/ && !n++ {{print "{line}"}} {{print}}' \
        {_RULES} >{_RULES}.new && mv {_RULES}.new {_RULES}
    fi
  fi
fi
"""


def _file(path: str, text: str) -> dict[str, str]:
    return {"path": path, "owner": "root:root", "permissions": "0644", "content": text}


class _Dumper(yaml.SafeDumper):
    """A dumper that writes texts of several lines as blocks, so that a person can read them on the machine."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
