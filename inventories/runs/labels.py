"""Labels of a run: its name, its note and its tags."""

import re
from collections.abc import Mapping, Sequence

from inventories.errors import InvalidInput
from inventories.text import shown

LATEST, BEST = "latest", "best"
"""Words in the place of a run that no run can have as its name."""
MAX_NAME, MAX_VALUE, MAX_NOTE = 60, 100, 500
"""Characters."""
_NAME = re.compile(rf"\w[\w.=+-]{{0,{MAX_NAME - 1}}}")
_ID = re.compile(r"[0-9a-f-]+")
_LINE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def is_like_id(word: str) -> bool:
    """Return whether a word may be a part of a run's id, and so is no name."""
    return bool(_ID.fullmatch(word))


def check_run_name(name: object) -> str:
    """Return a run's name, which no part of an id is like."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"Run name {shown(name)} can't be used: a name is 1 to {MAX_NAME} letters, digits and '. _ = + -', and "
            "begins with a letter, a digit or '_'."
        )
    if is_like_id(name):
        raise InvalidInput(
            f"Run name {shown(name)} can't be used: with only 0-9, a-f and '-' it reads as a part of a run's id. "
            "Add another letter."
        )
    if name in (LATEST, BEST):
        raise InvalidInput(
            f"Run name {shown(name)} can't be used: the word stands for a run. Choose another."
        )
    return name


def check_note(note: object) -> str:
    """Return the note on a run: a line of text."""
    if isinstance(note, str) and len(note) <= MAX_NOTE and _LINE.fullmatch(note) and note.strip():
        return note.strip()
    raise InvalidInput(f"Note {shown(note)} can't be used: it is one line of up to {MAX_NOTE} characters.")


def check_tag(word: str) -> tuple[str, str]:
    """Return the name and the value of a tag, `K=V`."""
    name, equals, value = word.partition("=")
    if equals and _NAME.fullmatch(name) and len(value) <= MAX_VALUE and _LINE.fullmatch(value):
        return name, value
    raise InvalidInput(
        f"Tag {shown(word)} can't be used: write K=V, such as sweep=lr. K is letters, digits and '. _ + -', V a "
        f"text of up to {MAX_VALUE} characters."
    )


def check_tags(tags: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Return the tags of a run: of several with one name, the last."""
    words = [f"{name}={value}" for name, value in tags.items()] if isinstance(tags, Mapping) else tags
    return dict(check_tag(word) for word in words)


def tags_of_run(words: Sequence[str]) -> dict[str, str]:
    """Return the tags by which runs are chosen. Raises InvalidInput for two values of one tag, which no run has."""
    tags = check_tags(words)
    for name, value in map(check_tag, words):
        if tags[name] != value:
            raise InvalidInput(
                f"No run has the tag {name} with two values, {shown(value)} and {shown(tags[name])}. Leave one of "
                "them out."
            )
    return tags
