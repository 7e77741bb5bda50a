"""What would fail later, found in the facts."""

from inventories.machine import Machine
from remote import preflight
from remote.facts import Facts


def facts(**changed: object) -> Facts:
    values: dict[str, object] = {
        "hostname": "h", "os": "Ubuntu", "home": "/home/u", "python": "/usr/bin/python3", "python_version": "3.11",
        "torch": "2.13.0", "gpus": (), "driver": NO_GPU, "cloud": None, "rdma": (), "cpus": 8,
        "disk_free_bytes": 10**12, "boot_id": "b", "clock_offset_s": 0.0,
        "interfaces": {}, "free_port": 20001, "active_runs": (),
    }  # fmt: skip
    return Facts(**{**values, **changed})  # type: ignore[arg-type]


MASTER = Machine(
    name="a", rank=0, state="running", host="203.0.113.1", user="u", private_ip="10.0.0.1", gpus=0, id="i"
)


def test_healthy_nodes_have_no_findings() -> None:
    assert preflight.findings({"a": facts(), "b": facts()}, master=MASTER) == []


def test_each_trap_is_found_on_its_node() -> None:
    found = preflight.findings(
        {
            "a": facts(free_port=None),
            "b": facts(torch=None),
            "c": facts(torch="2.12.0"),
            "d": facts(disk_free_bytes=1000),
            "e": facts(active_runs=("R1",)),
            "f": facts(clock_offset_s=-40.0),
        },
        master=MASTER,
    )
    by_node = {finding.node: finding for finding in found}
    assert len(found) == 6
    assert "nothing can listen at 10.0.0.1" in by_node["a"].problem
    assert "torch is not installed" in by_node["b"].problem
    assert "2.12.0 here, and 2.13.0 on a" in by_node["c"].problem
    assert "disk is full" in by_node["d"].problem
    assert "gpuctl stop R1" in by_node["e"].fix
    assert not by_node["f"].fatal
    assert all(finding.fix for finding in found)
