"""The interface that carries an address, whichever of the interface's addresses it is."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from remote.node import network
from remote.shared.constants import RENDEZVOUS_PORTS

ROOT = Path(__file__).parents[3]
NETWORK = """
ip link add ens3 type veth peer name other
ip address add 203.0.113.5/24 dev ens3
ip address add 10.8.0.5/24 dev ens3 label ens3:1
ip address add 10.9.0.5/24 dev ens3
ip link set ens3 up
ip link set other up
ip link set lo up
"""
ASK = """
import json
from remote.node import network
from remote.node.checks import health
print(json.dumps({
    "of": {ip: network.interface_of(ip) for ip in ("203.0.113.5", "10.8.0.5", "10.9.0.5", "10.8.0.6", "127.0.0.1")},
    "to": {peer: network.route_interface(peer) for peer in ("203.0.113.9", "10.8.0.9", "10.9.0.9", "8.8.8.8")},
    "mtu": health.read("10.8.0.5")["mtu"],
}))
"""


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs a network namespace: Linux, and root"
)
def test_interface_is_found_for_each_of_its_addresses() -> None:
    script = f"set -e\n{NETWORK}\nexec {sys.executable} -c '{ASK}'"
    argv = ["unshare", "--net", "--mount", "sh", "-c", f"mount -t sysfs none /sys\n{script}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "of": {
            "203.0.113.5": "ens3",
            "10.8.0.5": "ens3",
            "10.9.0.5": "ens3",
            "10.8.0.6": None,
            "127.0.0.1": "lo",
        },
        "to": {
            "203.0.113.9": "ens3",
            "10.8.0.9": "ens3",
            "10.9.0.9": "ens3",
            "8.8.8.8": None,
        },
        "mtu": 1500,
    }


def test_free_port_says_why_it_cannot_listen() -> None:
    port, problem = network.free_port("127.0.0.1")
    assert port in RENDEZVOUS_PORTS
    assert problem is None
    for address in ("192.0.2.77", "fd00::7"):
        port, problem = network.free_port(address)
        assert port is None
        assert problem
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert network.free_port("127.0.0.1", [server.getsockname()[1]]) == (None, None)
