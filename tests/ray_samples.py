"""Sample machines and a sample run on Ray, as input for tests."""

from support import a_machine, a_run

from inventories.machine import Machine
from inventories.runs.run import Run, RunNode

HEAD = "10.0.0.1:20100"
IDS = {"c-0": "1afe", "c-1": "07c2"}


def machine(rank: int, private_ip: str) -> Machine:
    return a_machine(name=f"c-{rank}", rank=rank, host="203.0.113.9", user="ubuntu", private_ip=private_ip)


def run_of(*nproc: int) -> Run:
    nodes = tuple(
        RunNode(
            name=f"c-{rank}", rank=rank, nproc=count, first_rank=sum(nproc[:rank]), run_dir=f"/run/c-{rank}"
        )
        for rank, count in enumerate(nproc)
    )
    return a_run(
        run="R",
        cluster="c",
        mode="ray",
        script="built-in",
        args=("--epochs", "1"),
        nodes=nodes,
        master_addr="10.0.0.1",
        master_port=20001,
        started_at="2026-01-01T00:00:00+00:00",
    )
