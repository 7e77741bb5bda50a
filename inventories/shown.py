"""Values as messages show them: in one line, and shortened."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Foreign:
    """A value with a tag that isn't ours to understand, such as Ansible's `!vault`."""

    tag: str


def shown(value: object) -> str:
    """Return a value in one line, for a message."""
    import json  # only messages need it, not the options of a command

    if isinstance(value, Foreign):
        return f"a value with the tag {value.tag}"
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=shown)
    return text if len(text) <= 60 else text[:57] + "..."
