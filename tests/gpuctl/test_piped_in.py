"""Test standard input of `gpuctl train`: piped input is noticed, as no rank reads it."""

import os
from pathlib import Path

from gpuctl.commands.train import something_is_piped_in


def test_pipe_counts_when_there_is_something_in_it() -> None:
    reading, writing = os.pipe()
    assert not something_is_piped_in(reading)
    os.write(writing, b"data")
    assert something_is_piped_in(reading)
    os.close(writing)
    assert something_is_piped_in(reading), "a program that wrote and ended"
    os.close(reading)
    assert not something_is_piped_in(reading), "standard input may be closed"


def test_file_counts_when_it_is_not_empty_and_devices_never(tmp_path: Path) -> None:
    for text, piped in (("", False), ("data", True)):
        (tmp_path / "file").write_text(text)
        with (tmp_path / "file").open() as file:
            assert something_is_piped_in(file.fileno()) == piped
    with Path(os.devnull).open() as nothing:
        assert not something_is_piped_in(nothing.fileno())
