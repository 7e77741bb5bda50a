"""The tags: whose something is, and the ranks that one request stands for."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision import tags


@given(st.sets(st.integers(0, 999), min_size=1))
def test_ranks_survive_the_tag(ranks: set[int]) -> None:
    assert tags.read_ranks(tags.ranks_text(ranks)) == tuple(sorted(ranks))


@given(st.integers(1, 1000))
def test_the_ranks_of_a_whole_cluster_fit_into_a_tag(count: int) -> None:
    assert len(tags.ranks_text(range(count))) <= 5


@pytest.mark.parametrize(
    ("text", "index", "rank"),
    [("0-3,7", 4, 7), ("5", 0, 5), ("0-1", 2, None), ("", 0, None), ("x", 0, None), ("3-", 0, 3)],
)
def test_the_rank_of_the_nth_machine(text: str, index: int, rank: int | None) -> None:
    assert tags.rank_at({tags.RANKS: text}, index) == rank


def test_whose_something_is() -> None:
    cluster = tags.of_cluster("default", "0a1b", "ada@desk", "2026-11-21T16:00:00+00:00")
    assert cluster == {
        "gpuctl": "default",
        "gpuctl-cluster-id": "0a1b",
        "gpuctl-owner": "ada@desk",
        "gpuctl-expires": "2026-11-21T16:00:00+00:00",
    }
    network = tags.of_network("ada@desk")
    assert tags.is_ours(cluster)
    assert tags.is_ours(network)
    assert not tags.is_ours({"Name": "gpuctl"})
    assert tags.is_shared(network)
    assert not tags.is_shared(cluster)


@pytest.mark.parametrize(
    "of",
    [
        {"Name": "gpuctl"},
        {"gpuctl": "my-bastion"},
        {"gpuctl": "my-bastion", "gpuctl-cluster-id": ""},
        {"gpuctl": ""},
        {"gpuctl": "", "gpuctl-cluster-id": "0a1b"},
        {"gpuctl-cluster-id": "0a1b"},
        {"gpuctl-owner": "ada@desk"},
    ],
)
def test_what_others_tagged_is_theirs(of: dict[str, str]) -> None:
    assert not tags.is_ours(of)
    assert not tags.is_shared(of)


def test_times_that_people_may_have_edited() -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert tags.read_time("2026-11-21T12:00:00+00:00") == noon
    assert tags.read_time("2026-11-21T12:00:00Z") == noon
    assert tags.read_time("2026-11-21T12:00:00") == noon
    assert tags.read_time("2026-11-21T14:00:00+02:00") == noon
    for text in (None, "", "never", "tomorrow noon", "2026-13-01", "21.11.2026"):
        assert tags.read_time(text) is None
