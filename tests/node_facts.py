"""Facts of a plain Ubuntu node, as input for tests."""

import itertools

from remote.facts import NO_GPU, Facts

__all__ = ["NO_GPU", "facts"]

_NUMBERS = itertools.count()


def facts(**changed: object) -> Facts:
    """Return a node's facts with some of them changed; each call is another machine."""
    values: dict[str, object] = {
        "hostname": "h", "os": "Ubuntu 22.04", "home": "/home/ubuntu", "python": "/usr/bin/python3",
        "python_version": "3.10.12", "torch": "2.13.0", "ray": None, "packages": None, "gpus": (), "driver": NO_GPU,
        "cloud": None, "rdma": (), "cpus": 8, "disk_free_bytes": 10**12, "boot_id": "b0", "clock_offset_s": 0.0,
        "addresses": {}, "interfaces": {"10.0.0.1": "ens3", "10.0.0.2": "ens3"}, "free_port": 20001,
        "cant_listen": None, "active_runs": (), "sudo": True, "firewall": None, "machine": f"m{next(_NUMBERS)}",
    }  # fmt: skip
    return Facts(**{**values, **changed})  # type: ignore[arg-type]
