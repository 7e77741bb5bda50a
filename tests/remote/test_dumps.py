"""Dumps are read in a process of their own, which a made one can neither keep busy nor have fill the memory."""

import pickle
from pathlib import Path

from remote.runs.run_files import read_files

ENTRY = {"process_group": ("0", "default_pg"), "collective_seq_id": 7, "profiling_name": "nccl:all_reduce"}


def endless() -> bytes:
    """A pickle of a few bytes: a dictionary whose key is a tuple of tuples, which has 2**60 of them to hash."""
    key = pickle.EMPTY_TUPLE + b"".join(
        pickle.BINPUT + bytes([n]) + pickle.BINGET + bytes([n]) + pickle.TUPLE2 for n in range(60)
    )
    return pickle.EMPTY_DICT + key + pickle.NONE + pickle.SETITEM + pickle.STOP


def test_dump_that_takes_for_ever_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    good = pickle.dumps({"entries": [ENTRY]}, protocol=2)
    paths = {rank: tmp_path / f"nccl-{rank}" for rank in range(5)}
    for rank, body in enumerate((good, endless(), b"no dump", good)):
        paths[rank].write_bytes(body)
    result = read_files(paths, cpu_s=0.1)
    assert sorted(result) == [0, 3]
    assert result[0][0]["name"] == "all_reduce"


def test_dump_that_asks_for_much_memory_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    large = pickle.EMPTY_DICT + pickle.LONG_BINPUT + (0x0400_0000).to_bytes(4, "little") + pickle.STOP
    (tmp_path / "large").write_bytes(large)
    (tmp_path / "good").write_bytes(pickle.dumps({"entries": [ENTRY]}, protocol=2))
    assert list(read_files({0: tmp_path / "large", 1: tmp_path / "good"})) == [1]
