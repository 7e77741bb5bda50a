"""Generate the files in which a host differs from this machine, as text: of a cloud's image and its first boot.

No function here touches a disk.
"""

from dataclasses import dataclass

from tests.fakes.vms.options import Options

RULES_V4 = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:InstanceServices - [0:0]
-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p icmp -j ACCEPT
-A INPUT -i lo -j ACCEPT
-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT
-A INPUT -j REJECT --reject-with icmp-host-prohibited
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
-A OUTPUT -d 169.254.0.0/16 -j InstanceServices
-A InstanceServices -d 169.254.0.2/32 -p tcp -m owner --uid-owner 0 -m tcp --dport 3260 -j ACCEPT
-A InstanceServices -d 169.254.169.254/32 -p tcp -m tcp --dport 80 -j ACCEPT
-A InstanceServices -d 169.254.169.254/32 -p udp -m udp --dport 53 -j ACCEPT
-A InstanceServices -d 169.254.169.254/32 -p tcp -m tcp --dport 53 -j ACCEPT
-A InstanceServices -d 169.254.0.0/16 -p tcp -m tcp -j REJECT --reject-with tcp-reset
-A InstanceServices -d 169.254.0.0/16 -p udp -m udp -j REJECT --reject-with icmp-port-unreachable
COMMIT
"""
"""The firewall of OCI's Ubuntu image, its InstanceServices chain shortened."""

NFTABLES_CONF = """\
#!/usr/sbin/nft -f
flush ruleset

table inet filter {
\tchain input {
\t\ttype filter hook input priority filter; policy drop;
\t\tct state established,related accept
\t\tct state invalid drop
\t\tiif "lo" accept
\t\tmeta l4proto { icmp, ipv6-icmp } accept
\t\ttcp dport 22 ct state new accept
\t\treject with icmpx type admin-prohibited
\t}
\tchain forward {
\t\ttype filter hook forward priority filter; policy drop;
\t}
\tchain output {
\t\ttype filter hook output priority filter; policy accept;
\t}
}
"""

NETFILTER_PERSISTENT = """\
#!/bin/sh
# In place of the package netfilter-persistent, which this machine lacks: IPv4 only.
case "$1" in
    save) iptables-save > /etc/iptables/rules.v4 ;;
    start|restart|reload) iptables-restore < /etc/iptables/rules.v4 ;;
    flush) iptables -P INPUT ACCEPT && iptables -F && iptables -X ;;
    *) echo "usage: netfilter-persistent start|restart|reload|flush|save" >&2; exit 1 ;;
esac
"""

BASHRC = """\
# ~/.bashrc: executed by bash for shells that are not login shells.
case $- in
    *i*) ;;
      *) return;;
esac
HISTCONTROL=ignoreboth
PS1='\\u@\\h:\\w\\$ '
"""


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of the image; `owner` is a uid and gid."""

    path: str
    text: str
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Link:
    """A symbolic link of the image."""

    path: str
    target: str


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """The account files of this machine, as text."""

    passwd: str
    group: str
    shadow: str


@dataclass(frozen=True, kw_only=True)
class Login:
    """The keys of a host: the one that may log in, and its own."""

    authorized_key: str
    host_key: str
    host_key_public: str


def free_id(accounts: Accounts) -> int:
    """Return the first number from 1000 on that is free as a uid and as a gid."""
    lines = (accounts.passwd + accounts.group).splitlines()
    values = {line.split(":")[2] for line in lines if line.count(":") >= 3}
    return next(number for number in range(1000, 60000) if str(number) not in values)


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Properties of this machine on which hosts are based."""

    accounts: Accounts
    netfilter_persistent: bool
    """Whether it has that command."""
    faketime: str | None
    """The library that shifts clocks."""


def image(
    options: Options, *, name: str, address: str, login: Login, ground: Ground
) -> tuple[tuple[File, ...], tuple[Link, ...]]:
    """Return the files of a host that differ from this machine's."""
    accounts = ground.accounts
    user, uid = options.user, free_id(accounts)
    home, local = f"/home/{user}", (uid, uid)
    files = [
        File(path="/etc/hostname", text=f"{name}\n"),
        File(path="/etc/hosts", text=hosts_text(options, name=name, address=address)),
        File(path="/etc/resolv.conf", text="# No name server.\n"),
        File(
            path="/etc/passwd", text=_with(accounts.passwd, f"{user}:x:{uid}:{uid}:Ubuntu:{home}:/bin/bash")
        ),
        File(path="/etc/group", text=_with(accounts.group, f"{user}:x:{uid}:")),
        File(path="/etc/shadow", text=_with(accounts.shadow, f"{user}:!:19000:0:99999:7:::"), mode=0o640),
        File(path="/etc/ssh/sshd_config", text=sshd_text(options)),
        File(path="/etc/ssh/ssh_host_ed25519_key", text=login.host_key, mode=0o600),
        File(path="/etc/ssh/ssh_host_ed25519_key.pub", text=login.host_key_public + "\n"),
        File(path=f"{home}/.bashrc", text=BASHRC, owner=local),
        File(path=f"{home}/.ssh/authorized_keys", text=login.authorized_key + "\n", mode=0o600, owner=local),
    ]
    links: list[Link] = []
    if options.sudo:
        rule = f"{user} ALL=(ALL) NOPASSWD:ALL\n"
        files.append(File(path="/etc/sudoers.d/90-cloud-init-users", text=rule, mode=0o440))
    if options.firewall in ("oci", "oci-legacy"):
        files.append(File(path="/etc/iptables/rules.v4", text=RULES_V4, mode=0o640))
        if not ground.netfilter_persistent:
            path = "/usr/sbin/netfilter-persistent"
            files.append(File(path=path, text=NETFILTER_PERSISTENT, mode=0o755))
    if options.firewall == "nftables":
        files.append(File(path="/etc/nftables.conf", text=NFTABLES_CONF, mode=0o755))
    if options.clock_skew_s:
        assert ground.faketime is not None
        files += [
            File(path="/etc/ld.so.preload", text=f"{ground.faketime}\n"),
            File(path="/etc/faketimerc", text=f"{options.clock_skew_s:+d}\n"),
            # What waits, waits as long as it says.
            File(path="/etc/environment", text="FAKETIME_DONT_FAKE_MONOTONIC=1\n"),
        ]
    kind = "legacy" if options.firewall == "oci-legacy" else "nft"
    for command in ("iptables", "ip6tables"):
        for suffix in ("", "-save", "-restore"):
            path = f"/etc/alternatives/{command}{suffix}"
            links.append(Link(path=path, target=f"/usr/sbin/{command}-{kind}{suffix}"))
    return tuple(files), tuple(links)


def hosts_text(options: Options, *, name: str, address: str) -> str:
    """/etc/hosts as cloud-init writes it, or with the host's name at its address."""
    local = "127.0.1.1" if options.own_name == "loopback" else address
    return f"{local} {name} {name}\n127.0.0.1 localhost\n\n::1 ip6-localhost ip6-loopback\n"


def sshd_text(options: Options) -> str:
    """sshd_config of a cloud image; of two lines for one keyword sshd takes the first."""
    lines = [
        *options.sshd,
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "UsePAM yes",
        "X11Forwarding yes",
        "PrintMotd no",
        "AcceptEnv LANG LC_*",
        "HostKey /etc/ssh/ssh_host_ed25519_key",
        "Subsystem sftp internal-sftp",
    ]
    return "\n".join(lines) + "\n"


def _with(text: str, line: str) -> str:
    """Return an account file with one more line, which replaces a line of the same name."""
    name = line.split(":")[0]
    saved = [old for old in text.splitlines() if old.split(":")[0] != name]
    return "\n".join([*saved, line]) + "\n"
