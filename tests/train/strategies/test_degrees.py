"""Test the division of the ranks, and its name in the result."""

import pytest

from train.distributed.environment import DistributedEnvironment
from train.errors import BadOptions
from train.options import Options
from train.strategies.degrees import Degrees, degrees, micro_batches, refusal, strategy_name


def ranks(world, local):
    return DistributedEnvironment(world_size=world, local_world_size=local)


@pytest.mark.parametrize(
    ("options", "world", "local", "name", "sizes"),
    [
        ({"strategy": "ddp"}, 8, 4, "ddp", Degrees(replicate=8)),
        ({"strategy": "tp"}, 8, 4, "tp 4 x ddp 2", Degrees(replicate=2, tp=4)),
        ({"strategy": "tp", "tp": 2}, 2, 1, "tp 2", Degrees(tp=2)),
        ({"strategy": "tp", "pp": 2}, 4, 4, "tp 2 x pp 2", Degrees(pp=2, tp=2)),
        ({"strategy": "pp"}, 8, 4, "pp 2 x ddp 4", Degrees(pp=2, replicate=4)),
        ({"strategy": "pp"}, 1, 1, "pp 1", Degrees()),
        ({"strategy": "fsdp", "tp": 2}, 8, 4, "fsdp 4 x tp 2", Degrees(shard=4, tp=2)),
        ({"strategy": "hsdp", "tp": 2}, 8, 4, "hsdp 4 x tp 2", Degrees(replicate=2, shard=2, tp=2)),
        ({"strategy": "zero3", "pp": 2}, 8, 4, "zero3 4 x pp 2", Degrees(pp=2, shard=4)),
        ({"strategy": "pp", "pp": 2, "tp": 2}, 8, 4, "pp 2 x tp 2 x ddp 2", Degrees(pp=2, replicate=2, tp=2)),
    ],
)
def test_ranks_are_divided_as_the_options_say(options, world, local, name, sizes):
    job = Options(**options)
    assert degrees(job, ranks(world, local)) == sizes
    assert strategy_name(job, sizes) == name


def test_degrees_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(BadOptions, match=r"6 ranks can't be divided by pp 2 x tp 2: start a multiple of 4"):
        degrees(Options(pp=2, tp=2), ranks(6, 3))
    with pytest.raises(BadOptions, match=r"1 rank can't be divided by tp 2"):
        degrees(Options(tp=2), ranks(1, 1))
    with pytest.raises(BadOptions, match="splits layers among the ranks of a node, and a node has one rank"):
        degrees(Options(strategy="tp"), ranks(2, 1))


def test_ranks_of_a_layer_are_neighbours_and_stages_are_far_apart():
    sizes = Degrees(pp=2, replicate=2, tp=2)
    assert [sizes.stage(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [sizes.replica(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [rank for rank in range(8) if sizes.counts(rank)] == [4, 6]
    assert sizes.place(7) == "stage 2 of 2, part 2 of 2, replica 2 of 2"
    assert Degrees(pp=4).place(1) == "stage 2 of 4"
    assert Degrees(tp=2, shard=2).place(2) == "part 1 of 2, replica 2 of 2"
    assert Degrees(shard=4).place(1) == Degrees().place(0) == ""


def test_pipeline_has_four_micro_batches_a_stage_and_never_fewer_than_stages():
    pipeline = Degrees(pp=4)
    assert micro_batches(Options(), pipeline, batch_size=64) == 16
    assert micro_batches(Options(), pipeline, batch_size=5) == 5
    assert micro_batches(Options(), Degrees(replicate=4), batch_size=64) == 1
    with pytest.raises(BadOptions, match="stages needs at least 4 micro-batches a batch, and has 3"):
        micro_batches(Options(gradient_accumulation_steps=3), pipeline, batch_size=64)


@pytest.mark.parametrize(
    ("options", "nodes", "words"),
    [
        ({"strategy": "tp", "tp": 4}, [1, 1], "2 ranks can't be divided by tp 4"),
        ({"strategy": "pp", "gradient_accumulation_steps": 1}, [1, 1], "needs at least 2 micro-batches"),
        ({"strategy": "hsdp"}, [1, 2], "one node has 1 rank, another one 2"),
        ({"strategy": "tp"}, [2, 3], "5 ranks can't be divided by tp 2"),
        ({"tp": 2}, [3, 3], "among 2 neighbours on a node, and a node has 3 ranks"),
        ({"strategy": "fsdp", "cpu_offload": True, "tp": 2}, [2], "and 2 ranks here have none: start more"),
        ({"strategy": "dp"}, [2], "one process for all GPUs of one node, and there are 2 ranks"),
    ],
)
def test_job_that_can_not_run_so_is_refused_before_it_starts(options, nodes, words):
    assert words in (refusal(Options(**options), nodes) or "")
    assert refusal(Options(strategy="fsdp"), nodes) is None
