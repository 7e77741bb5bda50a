"""YAML that a person wrote: plain values, and the line of each for the error message.

More strict than YAML itself: a key may be there once, aliases are refused (a few lines of them can expand
to gigabytes), and so are tags beyond the plain types.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from inventories.errors import InvalidInput
from inventories.text import Foreign, shown
from inventories.threads import read_file

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_PROBLEMS = 20

_PREFIX = "tag:yaml.org,2002:"
_LIBYAML_TOO_DEEP = "exceeded maximum nesting depth"
"""libyaml's scanner, which reads ahead of the events, ends with it at a depth of 1,000 (from PyYAML 6.0.4)."""

Keys = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A YAML document: dictionaries with text keys, lists, text, numbers, booleans and `None`."""

    path: Path
    data: Any
    lines: dict[Keys, int] = field(repr=False)
    texts: dict[Keys, str] = field(repr=False)
    """Numbers and booleans as they are written: `1.10`, `1e+4`, `yes`."""
    ended: bool
    """Whether the document has an explicit end, `...`."""

    def line(self, *keys: str | int) -> int:
        """The line, from 1, of the key or item that `keys` lead to, or of the nearest one above it."""
        while keys not in self.lines:
            keys = keys[:-1]
        return self.lines[keys]

    def text(self, *keys: str | int) -> str | None:
        """A value as it is written: text, a number, a word such as `true`; `None` where it is null, or has parts."""
        value = self.value(*keys)
        return value if isinstance(value, str) or value is None else self.texts.get(keys)

    def value(self, *keys: str | int) -> Any:  # noqa: ANN401 - whatever was written
        """Return the value at `keys`."""
        value = self.data
        for key in keys:
            value = value[key]
        return value


class Problems:
    """The errors of one file, gathered so that a person sees all of them at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[tuple[int, str]] = []

    def add(self, line: int, text: str) -> None:
        """`text` begins in the middle of a sentence: the file and line come before it."""
        self.found.append((line, text))

    def raise_if_any(self) -> None:
        """Raise InvalidInput with a line for each problem, in the file's order."""
        if self.found:
            ordered = sorted(set(self.found))
            shown_lines = [f"{self.path}:{line}: {text}" for line, text in ordered[:MAX_PROBLEMS]]
            if len(ordered) > MAX_PROBLEMS:
                shown_lines.append(f"{self.path}: {len(ordered) - MAX_PROBLEMS} more like these.")
            raise InvalidInput("\n".join(shown_lines))


def read(path: Path, *, foreign_tags: bool = False) -> Source:
    """Read a file of one YAML document. Raises InvalidInput, which names the file and the line.

    With `foreign_tags`, a value with an unknown tag becomes `Foreign`, else it is refused.
    """
    return parse(_text(path), path, foreign_tags=foreign_tags)


def parse(text: str, path: Path, *, foreign_tags: bool = False) -> Source:
    """Return the document in the text of a file, as `read` does."""
    loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth, ended = 0, False
        for event in yaml.parse(text, Loader=loader_class):
            if isinstance(event, yaml.AliasEvent):
                raise InvalidInput(
                    f"{path}:{_line(event.start_mark)}: aliases ('*{event.anchor}') are not supported. "
                    "Write the value out."
                )
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.DocumentEndEvent):
                ended = bool(event.explicit)
            if depth > MAX_DEPTH:
                line = _line(event.start_mark)
                raise _too_deep(path, line)
        root = yaml.compose(text, Loader=loader_class)
    except yaml.YAMLError as error:
        raise _no_yaml(path, text, error) from error
    builder = _Builder(path, foreign_tags=foreign_tags)
    data = None if root is None else builder.value(root, ())
    builder.problems.raise_if_any()
    return Source(path=path, data=data, lines={(): 1} | builder.lines, texts=builder.texts, ended=ended)


def _text(path: Path) -> str:
    try:
        data = read_file(path, MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"Can't read '{path}': {error.strerror or error}.") from error
    if len(data) > MAX_BYTES:
        raise InvalidInput(
            f"'{path}' is larger than {MAX_BYTES >> 20} MiB, which no file of this kind needs."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{path}:{line}: this is no UTF-8 text. Save the file as UTF-8.") from error


def _too_deep(path: Path, line: int) -> InvalidInput:
    return InvalidInput(f"{path}:{line}: this is nested more than {MAX_DEPTH} deep.")


def _no_yaml(path: Path, text: str, error: yaml.YAMLError) -> InvalidInput:
    line, problem = 1, str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        line = _line(error.problem_mark)
        problem = error.problem or problem
        if problem == _LIBYAML_TOO_DEEP:
            return _too_deep(path, line)
    elif isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1
        problem = error.reason
    lines = text.splitlines()
    line = max(1, min(line, len(lines)))
    tab = line <= len(lines) and lines[line - 1].lstrip(" ").startswith("\t")
    hint = " Indent with spaces, not with tabs." if tab else ""
    if any(re.match(r"\[[\w:.-]+\]\s*$", text_line) for text_line in lines[:20]):
        hint = (
            " It looks like an INI file, and gpuctl reads YAML. Ansible turns an inventory into YAML: "
            "ansible-inventory --list --yaml -i FILE."
        )
    return InvalidInput(f"{path}:{line}: this can't be read as YAML: {problem}.{hint}")


def _line(mark: "yaml.Mark | yaml._yaml.Mark | None") -> int:
    return 1 if mark is None else mark.line + 1


class _Builder:
    """Values out of composed nodes, noting the line of each."""

    def __init__(self, path: Path, *, foreign_tags: bool) -> None:
        self.problems = Problems(path)
        self.lines: dict[Keys, int] = {}
        self.texts: dict[Keys, str] = {}
        self._foreign_tags = foreign_tags
        self._construct = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, keys: Keys) -> object:
        """The value of a node; `keys` lead to it."""
        line = _line(node.start_mark)
        self.lines.setdefault(keys, line)
        kind = node.tag.removeprefix(_PREFIX)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._mapping(node, keys)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self.value(item, (*keys, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and kind in ("str", "timestamp", "value"):
            return node.value
        if isinstance(node, yaml.ScalarNode) and kind in ("int", "float", "bool", "null"):
            self.texts[keys] = node.value
            construct = getattr(self._construct, f"construct_yaml_{kind}")
            try:
                return construct(node)
            except (ValueError, KeyError, IndexError):
                self.problems.add(_line(node.start_mark), f"{shown(node.value)} is no {kind}.")
                return None
        if self._foreign_tags:
            return Foreign(node.tag)
        self.problems.add(line, f"the tag '{node.tag}' is not supported.")
        return None

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = _line(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add(line, "a key should be text.")
                continue
            key = str(key_node.value)
            if key in values:
                first = self.lines[(*keys, key)]
                self.problems.add(
                    line,
                    f"key '{key}' is there a second time; the first is in line {first}. Remove one of them.",
                )
                continue
            self.lines[(*keys, key)] = line
            values[key] = self.value(value_node, (*keys, key))
        return values
