"""cloud-init's text for a new machine: who logs in, whom its firewall lets in, its host key, when it ends.

Pure: the same input gives the same bytes, as a cloud refuses a repeated request whose user-data differs.
The only secret in it is the machine's own host key, which whoever is on the machine has anyway.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import yaml

EXPIRE_UNIT = "gpuctl-expire"
"""The systemd timer and service on the machine that end it."""
MAX_BYTES = 16 * 1024
"""What AWS takes, before base64; OCI takes more."""

_UNITS = "/etc/systemd/system"
_RULES = "/etc/iptables/rules.v4"


def user_data(
    *,
    user: str,
    authorized_key: str,
    host_private_key: str,
    host_public_key: str,
    ssh_port: int,
    expires_at: str | None,
    peer_cidr: str | None = None,
    boot_commands: Sequence[str] = (),
) -> str:
    """A `#cloud-config` document of at most MAX_BYTES.

    `user` becomes the image's default user, whatever its own name for that is. Keys are in OpenSSH's
    format, `expires_at` is ISO 8601; with None the machine never ends by itself. `peer_cidr`: the IPv4 range
    of the cluster's machines, which the machine's own firewall lets in, where it has one; None: as it is.
    `boot_commands`: what the image needs, shell text, run last.
    """
    files: list[dict[str, str]] = []
    commands: list[list[str] | str] = []
    if expires_at is not None:
        end = datetime.fromisoformat(expires_at).astimezone(UTC)
        files += [_file(f"{_UNITS}/{name}", text) for name, text in expire_units(end).items()]
        commands += [
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", "--now", f"{EXPIRE_UNIT}.timer"],
        ]
    if peer_cidr is not None:
        commands.append(_let_peers_in(str(ipaddress.IPv4Network(peer_cidr, strict=False))))
    if ssh_port != 22:
        files.append(_file("/etc/ssh/sshd_config.d/10-gpuctl.conf", f"Port {ssh_port}\n"))
        commands.append(_move_ssh(ssh_port))
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
    text = "#cloud-config\n" + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000)
    assert len(text.encode()) <= MAX_BYTES, f"{len(text.encode())} bytes of user-data"
    return text


def expire_units(end: datetime) -> Mapping[str, str]:
    """Name → text of the systemd units that power the machine off at `end` (UTC), or at a later boot.

    The service looks at the clock itself: what a timer does with a date that has passed differs between
    releases of systemd, and a machine that is started again afterwards has to end every time.
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


def _let_peers_in(cidr: str) -> str:
    """Shell text that lets everything in that comes from `cidr`."""
    return _open(
        firewalld=f"--zone=trusted --add-source={cidr}",
        ufw=f"allow from {cidr}",
        rule=f"-s {cidr} -j ACCEPT",
    )


def _move_ssh(port: int) -> str:
    """Shell text that makes sshd listen on `port`, and the machine's own firewall and SELinux let it.

    Where systemd listens for sshd (Ubuntu from 24.04), its socket has to be made anew; where sshd_config
    includes no other files (OpenSSH before 8.2), the port goes into it.
    """
    let_in = _open(
        firewalld=f"--add-port={port}/tcp",
        ufw=f"allow {port}/tcp",
        rule=f"-p tcp -m tcp --dport {port} -j ACCEPT",
    )
    return f"""\
grep -qi '^ *include' /etc/ssh/sshd_config || sed -i '1i Port {port}' /etc/ssh/sshd_config
if command -v semanage >/dev/null; then semanage port -a -t ssh_port_t -p tcp {port}; fi
{let_in}systemctl daemon-reload
if systemctl is-active --quiet ssh.socket; then
  systemctl stop ssh.service
  systemctl restart ssh.socket
else
  systemctl restart ssh.service || systemctl restart sshd.service
fi
"""


def _open(*, firewalld: str, ufw: str, rule: str) -> str:
    """Shell text that adds a rule to the machine's own firewall, now and for later boots; once, if run again.

    Oracle's Ubuntu rejects in iptables, by a file that is read at boot, what no rule before has accepted.
    Nothing is flushed: the same file keeps everybody but root from the boot volume. firewalld and ufw get
    the rule in their own words where they are active, and are never switched on.
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
    """Texts of several lines as they are, so that a person can read them on the machine."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
