"""Test how a node's part in a run on Ray reports its end: text in the launcher's log, data in the run's folder."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from remote.node import end_reasons
from remote.node.ray import ranks
from remote.node.runs import supervisor
from remote.shared.files import read_json


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (
            end_reasons.not_started("python3", OSError(errno.ENOENT, os.strerror(errno.ENOENT))),
            "python3 could not be started: No such file or directory",
        ),
        (end_reasons.ended(end_reasons.RAY_ENDED, detail="killed"), "Ray ended during the run: killed"),
        (end_reasons.ended(end_reasons.RAY_ENDED, detail=""), "Ray ended during the run"),
        (
            end_reasons.ended(end_reasons.RAY_LATE, rank=3, seconds=300.0),
            "Ray did not start rank 3 within 300 s",
        ),
    ],
)
def test_the_log_ends_with_words_and_the_reason_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ended: dict[str, Any], words: str
) -> None:
    assert ranks._fail(tmp_path, ended, 3) == 3
    assert capfd.readouterr().err == f"gpuctl: this node's part ended: {words}\n"
    assert read_json(tmp_path / supervisor.REASON) == ended
