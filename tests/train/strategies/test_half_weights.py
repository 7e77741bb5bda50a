"""Test the values in half precision when sharded weights are gathered: on one of two ranks, without the other."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from train.distributed.environment import DistributedEnvironment
from train.options import Options
from train.strategies.degrees import Degrees, gathers_in_half
from train.strategies.fsdp import FullyShard


@pytest.fixture
def two_ranks():
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def computed(network, **options):
    """The strategy, the kinds of numbers that the first layer computes with, and the network's output."""
    env = DistributedEnvironment(world_size=2, local_world_size=2)
    options_of_job = Options(strategy="fsdp", precision="bf16", wrap="size:10", **options)
    strategy = FullyShard(options_of_job, env, torch.device("cpu"), Degrees(shard=2))
    dtypes = []
    network[0].register_forward_hook(lambda layer, inputs, _: dtypes.extend([layer.weight, *inputs]))
    example = torch.rand(4, 6)
    strategy.shard(network, example[:1], micro_batches=1, micro_batch_size=4)
    with strategy.autocast():
        output = network(example)
    output.square().sum().backward()
    return strategy, [tensor.dtype for tensor in dtypes], output


@pytest.mark.usefixtures("two_ranks")
def test_gathered_weights_and_inputs_are_in_bf16_and_all_else_in_fp32():
    network = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    strategy, dtypes, output = computed(network)
    assert dtypes == [torch.bfloat16, torch.bfloat16]
    assert output.dtype == torch.float32
    for weight in network.parameters():
        assert (weight.dtype, weight.grad.dtype) == (torch.float32, torch.float32)
    assert isinstance(strategy.autocast(), nullcontext)
    policy = network._get_fsdp_state()._mp_policy
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.usefixtures("two_ranks")
def test_network_with_running_statistics_keeps_autocast():
    network = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    strategy, dtypes, _ = computed(network)
    assert dtypes == [torch.float32, torch.float32]
    assert isinstance(strategy.autocast(), torch.autocast)
    assert network[1].running_mean.dtype == torch.float32


@pytest.mark.parametrize(
    ("precision", "strategy", "sizes", "half"),
    [
        ("bf16", "fsdp", Degrees(shard=2), True),
        ("bf16", "hsdp", Degrees(replicate=2), True),
        ("bf16", "zero2", Degrees(shard=2, pp=2), True),
        ("fp16", "fsdp", Degrees(shard=2), False),
        ("bf16", "fsdp", Degrees(tp=2), False),
        ("bf16", "tp", Degrees(tp=2, replicate=2), False),
        ("bf16", "zero1", Degrees(replicate=2), False),
    ],
)
def test_only_weights_in_parts_are_gathered_in_bf16(precision, strategy, sizes, half):
    assert gathers_in_half(Options(precision=precision, strategy=strategy), sizes) is half
