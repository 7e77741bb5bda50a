"""Waits on this computer's own side end, too."""

import os
import threading
from pathlib import Path

import pytest

from inventories import deadline, yaml_source
from inventories.errors import InvalidInput


def test_within_raises_named_timeout() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError, match=r"^nobody came within 0 s$"):
        deadline.within(0.05, never.wait, what="nobody came")
    never.set()


def test_within_returns_value_or_raises_error_of_call() -> None:
    assert deadline.within(30, lambda: 7, what="no seven") == 7
    assert deadline.within(30, lambda: None, what="nothing") is None
    with pytest.raises(KeyError, match="mine"):
        deadline.within(30, lambda: {}["mine"], what="no value")


def test_yaml_read_times_out_on_silent_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "READ_S", 0.1)
    silent, pipe = tmp_path / "spec.yaml", tmp_path / "other.yaml"
    os.mkfifo(silent)
    os.mkfifo(pipe)
    with pytest.raises(InvalidInput, match=r"spec.yaml': it did not come to its end within 0 s"):
        yaml_source.read(silent)
    monkeypatch.setattr(deadline, "READ_S", 30.0)
    writing = threading.Thread(target=pipe.write_text, args=("count: 2\n",))
    writing.start()
    assert yaml_source.read(pipe).data == {"count": 2}
    writing.join(30)
    silent.write_text("")  # lets the thread go that still waits
