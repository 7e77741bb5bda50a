"""Test the parts that each sharded part gathers ahead, in a group of one process."""

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from train.strategies.fsdp import gather_ahead


@pytest.fixture
def alone():
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_parts_gather_those_that_follow_in_each_pass():
    root = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    for part in [*root, root]:
        fully_shard(part)
    gather_ahead(root, list(root), 2)
    number = {part._get_fsdp_state(): name for name, part in [("root", root), *root.named_children()]}

    def of(attribute):
        states = {name: getattr(state, f"_states_to_{attribute}_prefetch") for state, name in number.items()}
        return {name: "".join(number[state] for state in ahead) for name, ahead in states.items()}

    assert of("forward") == {"root": "01", "0": "12", "1": "23", "2": "3", "3": ""}
    assert of("backward") == {"root": "32", "3": "21", "2": "10", "1": "0", "0": ""}
