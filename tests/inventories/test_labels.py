"""Names, notes and tags of runs."""

import re

import pytest

from inventories.errors import InvalidInput
from inventories.runs.labels import check_note, check_run_name, check_tags


@pytest.mark.parametrize("name", ["warmup-fix", "lr=0.1", "v2", "_x", "Größe-3", "n" * 60])
def test_run_name_is_kept(name: str) -> None:
    assert check_run_name(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "1 to 60 letters"),
        ("n" * 61, "1 to 60 letters"),
        ("a b", "1 to 60 letters"),
        ("-x", "1 to 60 letters"),
        ("<script>", "1 to 60 letters"),
        ("x\n", "1 to 60 letters"),
        (3, "1 to 60 letters"),
        ("3fa9", "part of a run's id. Add another letter"),
        ("20261121-054625-3fa9", "part of a run's id"),
        ("face", "part of a run's id"),
        ("latest", "stands for a run"),
        ("best", "stands for a run"),
    ],
)
def test_run_name_that_may_mean_another_run_is_refused(name: object, why: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(why)):
        check_run_name(name)


@pytest.mark.parametrize("note", ["", " ", "two\nlines", "bell\x07", "n" * 501, None])
def test_note_is_one_line(note: object) -> None:
    with pytest.raises(InvalidInput, match="it is one line of up to 500 characters"):
        check_note(note)
    assert check_note(" lower rate, <b>longer</b> warm-up ") == "lower rate, <b>longer</b> warm-up"


def test_tags_are_names_with_values() -> None:
    assert check_tags(("sweep=lr", "a=b=c", "sweep=wd")) == {"sweep": "wd", "a": "b=c"}
    assert check_tags({"sweep": "lr"}) == {"sweep": "lr"}
    for word in ("sweep", "=lr", "sweep=", "a b=c", "a=" + "x" * 101, "a=\x1b[2J"):
        with pytest.raises(InvalidInput, match="write K=V, such as sweep=lr"):
            check_tags((word,))
