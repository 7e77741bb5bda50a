"""Test the ranks of Ray's workers."""

import pytest

from train.on_ray.ranks import Rank, assign_ranks, parse_layout


def test_assign_ranks_numbers_by_node_and_gpu_like_torchrun() -> None:
    workers = [("a", 1), ("b", 0), ("a", 0), ("a", 2), ("b", 1)]
    ranks = assign_ranks(workers, {"b": 2, "a": 3})
    assert [(rank.rank, rank.local_rank, rank.local_world_size, rank.node_rank) for rank in ranks] == [
        (3, 1, 3, 1),
        (0, 0, 2, 0),
        (2, 0, 3, 1),
        (4, 2, 3, 1),
        (1, 1, 2, 0),
    ]
    assert {rank.world_size for rank in ranks} == {5}


def test_assign_ranks_workers_without_gpus_keeps_their_order() -> None:
    assert [rank.rank for rank in assign_ranks([("a", 0), ("a", 0), ("b", 0)], {"a": 2, "b": 1})] == [0, 1, 2]


@pytest.mark.parametrize("workers", [[("a", 0)], [("a", 0), ("a", 0)], [("a", 0), ("c", 0)]])
def test_assign_ranks_refuses_a_layout_that_differs(workers: list[tuple[str, int]]) -> None:
    with pytest.raises(ValueError, match=r"where \{'a': 1, 'b': 1\} were asked for"):
        assign_ranks(workers, {"a": 1, "b": 1})


def test_rank_variables_are_those_of_torchrun() -> None:
    rank = Rank(rank=3, world_size=5, local_rank=1, local_world_size=3, node_rank=1)
    assert rank.variables("10.0.0.1:20001") == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20001",
    }


def test_parse_layout_parses_node_counts() -> None:
    assert list(parse_layout("gpu-0.lan:2,gpu-1:1").items()) == [("gpu-0.lan", 2), ("gpu-1", 1)]
