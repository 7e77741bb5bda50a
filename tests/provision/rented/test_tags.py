"""The tags: whose something is, and the ranks that one request stands for."""

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.records import read_time
from provision.rented import tags


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(st.sets(st.integers(0, 999), min_size=1))
def test_ranks_text_and_read_ranks_round_trip(ranks: set[int]) -> None:
    assert tags.read_ranks(tags.ranks_text(ranks)) == tuple(sorted(ranks))


@given(st.integers(1, 1000))
def test_ranks_text_of_a_contiguous_range_is_short(count: int) -> None:
    assert len(tags.ranks_text(range(count))) <= 5


@pytest.mark.parametrize(
    ("text", "index", "rank"),
    [("0-3,7", 4, 7), ("5", 0, 5), ("0-1", 2, None), ("", 0, None), ("x", 0, None), ("3-", 0, 3)],
)
def test_rank_at_returns_the_rank_of_the_nth_machine(text: str, index: int, rank: int | None) -> None:
    assert tags.rank_at({tags.RANKS: text}, index) == rank


def test_tags_mark_cluster_and_shared_network_resources() -> None:
    cluster = tags.of_cluster("default", "0a1b", "ada@desk", "2026-11-21T16:00:00+00:00")
    assert cluster == {
        "gpuctl": "default",
        "gpuctl-cluster-id": "0a1b",
        "gpuctl-owner": "ada@desk",
        "gpuctl-expires": "2026-11-21T16:00:00+00:00",
    }
    assert tags.of_cluster("default", "0a1b", "ada@desk", idle_s=1800.0).get("gpuctl-idle") == "1800"
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
def test_is_ours_rejects_foreign_or_partial_tags(of: dict[str, str]) -> None:
    assert not tags.is_ours(of)
    assert not tags.is_shared(of)


def test_read_time_accepts_iso_formats_and_rejects_others() -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert read_time("2026-11-21T12:00:00+00:00") == noon
    assert read_time("2026-11-21T12:00:00Z") == noon
    assert read_time("2026-11-21T12:00:00") == noon
    assert read_time("2026-11-21T14:00:00+02:00") == noon
    for text in (None, "", "never", "tomorrow noon", "2026-13-01", "21.11.2026"):
        assert read_time(text) is None
