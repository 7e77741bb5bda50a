"""Options of a VM-like host: only values."""

from dataclasses import dataclass
from typing import Literal

Firewall = Literal["none", "oci", "oci-legacy", "nftables", "ufw"]
FIREWALLS: tuple[Firewall, ...] = ("none", "oci", "oci-legacy", "nftables", "ufw")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a host; the defaults are a cloud's Ubuntu image whose only oddity is its docker0."""

    firewall: Firewall = "none"
    """`oci`: the rules of OCI's Ubuntu image by iptables-nft; `oci-legacy`: the same by iptables-legacy."""
    user: str = "ubuntu"
    sudo: bool = True
    """Whether the user may sudo, without a password."""
    own_name: Literal["loopback", "address"] = "loopback"
    """The host's own name resolves to 127.0.1.1, as in cloud images, or to its address."""
    docker0: bool = True
    """A bridge 172.17.0.1/16 with a carrier, the same on all hosts."""
    mtu: int = 1500
    mbit_per_s: int | None = None
    """Limit of the network interface, each direction for itself."""
    home_mb: int | None = None
    """The home as a file system of this size; it is made anew at each boot."""
    sshd: tuple[str, ...] = ()
    """Further lines of sshd_config; they win over the image's: `("MaxSessions 2",)`."""
    pci: tuple[str, ...] = ()
    """Devices on the PCI bus, in place of this machine's: class and device id of NVIDIA's, `030200 2236`."""
    kernel: str | None = None
    """The release that the running kernel is said to have."""
    first_boot: str = ""
    """Shell commands that root runs before sshd, at the first boot alone."""
    clock_skew_s: int = 0
    """How far the clock is ahead, for every dynamically linked program; needs libfaketime (`lacking_clock`)."""

    def __post_init__(self) -> None:
        assert self.firewall in FIREWALLS, f"no such firewall: {self.firewall}"
