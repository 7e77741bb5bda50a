"""Test which runs can end by the use of their GPUs, and what their nodes get."""

from dataclasses import replace

import pytest
from node_facts import facts
from support import a_run

from gpuctl.errors import Usage
from gpuctl.workflow.runs.gpus import check_gpus, with_gpu_watch
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.runs.run import RunNode

ENDS = replace(TrainRequest(), gpu_below=0.1)


def test_node_without_gpu_is_refused() -> None:
    with_gpu, without = facts(gpus=({"name": "NVIDIA A10"},)), facts(gpus=())
    check_gpus(ENDS, {"gpu-0": with_gpu})
    check_gpus(TrainRequest(), {"gpu-0": without})
    with pytest.raises(
        Usage, match="needs a GPU on every node, and gpu-1 has none for the run: leave it out"
    ):
        check_gpus(ENDS, {"gpu-0": with_gpu, "gpu-1": without})


def test_every_node_gets_the_limit_and_the_way_to_the_first_one() -> None:
    nodes = tuple(
        RunNode(name=f"gpu-{rank}", rank=rank, nproc=1, first_rank=rank, run_dir=f"/r/{rank}")
        for rank in (0, 1)
    )
    run = a_run(nodes=nodes, master_addr="10.0.0.4", master_port=20001)
    launches = {node.name: {"node": node.name} for node in nodes}
    assert with_gpu_watch(launches, run, TrainRequest()) == launches
    watches = [launch.pop("gpu_watch") for launch in with_gpu_watch(launches, run, ENDS).values()]
    assert watches[0] == watches[1]
    assert watches[0]["port"] != 20001
    assert len(watches[0]["key"]) == 32
    assert {**watches[0], "port": 0, "key": ""} == {
        "below": 0.1, "for_s": 3600.0, "nodes": ["gpu-0", "gpu-1"], "address": "10.0.0.4", "port": 0, "key": "",
    }  # fmt: skip
