"""The file of a text's tokens: who can read it, which ones stay, and how long a process waits for another one."""

import fcntl

import numpy as np
import pytest

from train.data.token_file import load_tokens, lock
from train.errors import BadData, MissingData

SOME = (np.arange(5, dtype=np.int32), np.arange(3, dtype=np.int32))


def test_tokens_are_those_given_and_another_digest_is_of_others(tmp_path):
    tokens = load_tokens(tmp_path, "book", "one", SOME)
    assert tokens.tokens.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    again = load_tokens(tmp_path, "book", "one", iter(()))
    assert (again.tokens.tolist(), again.digest) == (tokens.tokens.tolist(), tokens.digest)
    assert load_tokens(tmp_path, "copy", "two", SOME).digest == tokens.digest
    assert load_tokens(tmp_path, "other", "one", SOME[:1]).digest != tokens.digest


def test_nobody_else_can_read_tokens(tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir(mode=0o755)
    load_tokens(folder, "book", "one", SOME)
    assert folder.stat().st_mode & 0o777 == 0o700
    (made,) = folder.glob("*.tokens")
    assert made.stat().st_mode & 0o777 == 0o600


def test_tokens_of_another_version_are_removed_and_those_of_other_texts_stay(tmp_path):
    for source, version in [("book", "one"), ("other", "one"), ("book", "two")]:
        tokens = load_tokens(tmp_path, source, version, SOME)
    assert sorted(path.name for path in tmp_path.glob("*.tokens")) == ["book-two.tokens", "other-one.tokens"]
    assert len(tokens.tokens) == 8


def test_text_that_fails_halfway_leaves_no_tokens(tmp_path):
    def failing():
        yield SOME[0]
        raise BadData("it is not UTF-8")

    with pytest.raises(BadData):
        load_tokens(tmp_path, "book", "one", failing())
    assert [path.suffix for path in tmp_path.iterdir()] in ([], [".lock"])
    assert len(load_tokens(tmp_path, "book", "one", SOME).tokens) == 8


def test_process_that_writes_no_tokens_is_not_waited_for(tmp_path):
    with (tmp_path / "book.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(
            MissingData, match=r"has written none for 0\.01 s: it holds .*book\.lock\. If it hangs"
        ):
            load_tokens(tmp_path, "book", "one", SOME, stalled_s=0.01)


def test_process_is_waited_for_as_long_as_it_writes(tmp_path):
    sizes = iter([-1, 0, 10, 20])
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def written():
            size = next(sizes)
            if size == 20:
                fcntl.flock(file, fcntl.LOCK_UN)
            return size

        with lock(tmp_path / "lock", written, 0.01):
            assert next(sizes, None) is None
