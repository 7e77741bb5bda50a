"""Test parsing torch's flight recorder, whose files come from a node and must run no code here."""

import os
import pickle
from pathlib import Path

import pytest

from remote.shared.flight_recorder import MOST_TRACE_BYTES, NotATrace, in_dump, in_file, in_trace


def test_flight_recorder_keeps_what_is_under_way_and_the_last() -> None:
    def entry(number: int, retired: bool) -> dict[str, object]:
        return {
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "is_p2p": False,
            "process_group": ["0", "default_pg"],
            "profiling_name": "gloo:all_reduce",
            "input_sizes": [[4]],
            "state": "scheduled",
            "retired": retired,
            "time_created_ns": number * 10**9,
        }

    entries = [entry(number, retired=number != 3) for number in range(1, 201)]
    saved = in_trace({"entries": entries})
    assert [item["sequence"] for item in saved] == [3, *range(137, 201)]
    assert saved[0] == {
        "group": "0",
        "title": "default_pg",
        "point_to_point": False,
        "sequence": 3,
        "name": "all_reduce",
        "sizes": "[[4]]",
        "over": False,
        "entered_at": 3.0,
    }
    assert in_trace({"version": "2.10"}) == []


def test_dump_is_read_without_running_what_is_in_it(tmp_path: Path) -> None:
    entry = {
        "collective_seq_id": 5,
        "process_group": ("0", "default_pg"),
        "profiling_name": "nccl:all_reduce",
    }
    (read,) = in_dump(pickle.dumps({"version": "2.10", "entries": [entry]}, protocol=2))
    assert (read["name"], read["sequence"], read["over"]) == ("all_reduce", 5, False)

    class Evil:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(NotATrace, match=r"it asks for posix\.mkdir"):
        in_dump(pickle.dumps({"entries": [Evil()]}))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "dump",
    [b"", b"{}", b"\x80", pickle.dumps([]), pickle.dumps({"entries": [7]}), b"0" * (MOST_TRACE_BYTES + 1)],
    ids=["empty", "json", "cut", "list", "number", "large"],
)
def test_what_is_no_dump_is_refused(dump: bytes) -> None:
    with pytest.raises(NotATrace):
        in_dump(dump)


@pytest.mark.parametrize(
    "place",
    ["entries", "process_group", "profiling_name", "input_sizes", "collective_seq_id", "time_created_ns"],
)
def test_dump_that_refers_to_itself_again_and_again_is_refused_unexpanded(place: str) -> None:
    many: list[object] = [1]
    for _ in range(60):
        many = [many, many]
    entry = {"collective_seq_id": 5, "profiling_name": "nccl:all_reduce", place: many}
    with pytest.raises(NotATrace):
        in_dump(pickle.dumps({"entries": many if place == "entries" else [entry]}))


def test_what_is_kept_of_an_entry_is_bounded() -> None:
    entry = {"collective_seq_id": 5, "profiling_name": "n" * 10_000, "input_sizes": [[7] * 1000] * 1000}
    (read,) = in_trace({"entries": [entry]})
    assert (len(read["name"]), len(read["sizes"])) == (200, 200)
    with pytest.raises(NotATrace):
        in_dump(pickle.dumps({"entries": [{**entry, "collective_seq_id": 10**100}]}))


def test_large_file_is_refused_before_all_of_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    with path.open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(NotATrace, match=f"more than {MOST_TRACE_BYTES} bytes"):
        in_file(path)
