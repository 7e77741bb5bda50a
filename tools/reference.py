"""Write the reference pages of the documentation from the code.

    python tools/reference.py            write docs/reference/, docs/folders.md and docs/decisions/README.md
    python tools/reference.py --check    exit with 1 where a page there is not current

The commands come from the command line itself, the keys of a spec file from `inventories`, the built-in job's options
from `train`, the schema of gpuctl.yaml from both that it is made of. The map of folders comes from the docstrings of
their `__init__.py`, its floors from the contracts in `pyproject.toml`; the list of decisions from their first lines.
"""

import argparse
import ast
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click

from gpuctl.command_line import root_help
from gpuctl.command_line.job_file.schema import schema
from gpuctl.option_table.advise_options import AdviseSettings
from gpuctl.option_table.bench_options import BenchSettings
from gpuctl.option_table.train_options import TrainSettings
from gpuctl.option_table.up_options import UpSettings
from gpuctl.workflow.clusters.config import schema as config_schema
from inventories.option import Option, options_of
from inventories.specs.spec import Spec
from inventories.specs.validate import spec_keys
from train.command_line import option_groups

ROOT = Path(__file__).parent.parent
NOTE = "<!-- Made from the code by `make docs`: change the code, not this page. -->\n"

KEYWORDS_HEAD = '''"""Types of the library's keywords, written by `make docs`: change `gpuctl.option_table`."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, TypeAlias, TypedDict

File: TypeAlias = str | PathLike[str]
'''
SPEC_INTRODUCTION = """# Spec file

{note}
`gpuctl up -f SPEC.yaml` reads from a YAML file what the cluster is to be. Every key may be left out. An option on
the command line wins over the file. A mistake in the file is reported with its line and what is allowed.
`inventories/samples/` in the project's folder has samples with comments. `cluster:` in a
[gpuctl.yaml](../gpuctl-yaml.md) takes the same keys.

```yaml title="cluster.yaml"
cluster: a10
shape: VM.GPU.A10.2
count: 2
ttl: 4h
max_cost_usd: 50
network:
  public_ip: false
  bastion: opc@203.0.113.20
```
"""
JOB_INTRODUCTION = """# Options of the built-in job

{note}
`gpuctl train` without a script runs [the built-in job](../built-in-job.md). Its options are after `--`:

```text
gpuctl train -- --model mlp --epochs 3
```

`gpuctl bench` and `gpuctl tune` take them, too. `gpuctl train -- --help` prints them.
"""
FOLDERS_INTRODUCTION = """# All folders

{note}
[How it is built](architecture.md) explains how these folders work together. A folder imports folders on lower floors
only; import-linter checks it in `make check`, by the contracts in `pyproject.toml`. Folders on one floor with `|`
between them import nothing of each other.
"""
PACKAGES = {
    "gpuctl": "The command line and the library: from a request to results.",
    "provision": "Machines: from a spec to machines, and back to nothing.",
    "remote": "Nodes: connections, checks, preparation, runs. `remote/node` is sent to the nodes.",
    "inventories": "Documents on clusters and runs, and their files on disk.",
    "train": "The built-in job. It runs on the nodes, and imports none of the other packages.",
    "tests": "The same folders again, one for each package; here are those that other tests use.",
}
"""Top folder → what it is for."""
DECISIONS_INTRODUCTION = """# Decisions

{note}
Each note explains a choice that is not obvious from the code: its context, the decision, and the consequences. A
decision that changes gets a new note. The old note then has a line `State:` below its title, which names the new one.

"""
COMMANDS_INTRODUCTION = """Every command takes these options, before or after its name. Words after a script belong
to the script. `GPUCTL_JSON=1` in the environment is `--json` for every command.
"""


def commands_page() -> str:
    """The page about every command and its options."""
    parts = ["# Commands\n", NOTE, *_global_part()]
    for section, commands in root_help.SECTIONS:
        parts.append(f"## {section}\n")
        for name, _ in commands:
            parts += _command_part(name)
    return "\n".join(parts)


def spec_page() -> str:
    """The page about the keys of a spec file."""
    rows = [
        (
            f"`{key}`",
            f"`{option.flag}`" if option.flags else _GLOBAL.get(key, ""),
            _FORMS.get(option.name) or _KINDS[option.kind],
            _escaped(option.meaning),
        )
        for key, option in spec_keys().items()
    ]
    header = ("key", "option", "value", "meaning")
    return "\n".join([SPEC_INTRODUCTION.format(note=NOTE), *_table(header, rows), ""])


def job_page() -> str:
    """The page about the built-in job's options."""
    parts = [JOB_INTRODUCTION.format(note=NOTE)]
    for title, options in option_groups().items():
        rows = [
            (f"`{_typed(flag, arguments)}`", _escaped(arguments["help"]))
            for flag, arguments in options.items()
        ]
        parts += [f"## {title.capitalize()}\n", *_table(("option", "meaning"), rows), ""]
    return "\n".join(parts)


def folders_page() -> str:
    """Return the page about all folders, by the first lines of their docstrings."""
    parts = [FOLDERS_INTRODUCTION.format(note=NOTE)]
    for package, meaning in PACKAGES.items():
        parts.append(f"## {package}\n\n{meaning}\n")
        parts += [f"```text\n{floors}\n```\n" for floors in _floors(package)]
        rows = [(f"`{folder}/`", _escaped(meaning)) for folder, meaning in _folders(package)]
        parts += [*_table(("folder", "content"), rows), ""]
    return "\n".join(parts)


def _floors(package: str) -> Iterator[str]:
    """Yield the floors of a package, and of folders in it that have floors of their own."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    for contract in contracts:
        for container in contract.get("containers", ()):
            if container.partition(".")[0] == package:
                floors = "\n".join(f"  {line.replace('.', '/')}" for line in contract["layers"])
                yield f"{container.replace('.', '/')}/\n{floors}"


def _folders(package: str) -> Iterator[tuple[str, str]]:
    """Yield each folder of a package with the first sentence or line of its docstring."""
    for path in sorted((ROOT / package).rglob("__init__.py")):
        folder, text = path.parent.relative_to(ROOT), ast.get_docstring(ast.parse(path.read_text()))
        if text and folder.parts != (package,):
            yield str(folder), text.split("\n\n")[0].replace("\n", " ")


def decisions_page() -> str:
    """Return the list of decisions: number, subject, state."""
    notes = {int(path.name[:4]): path for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))}
    rows = []
    for number in range(1, max(notes) + 1):
        if number not in notes:
            rows.append((f"{number:04d}", "not used", ""))
            continue
        title, _, rest = notes[number].read_text().partition("\n")
        state = re.match(r"\nState: (.+)\.\n", rest)
        link = f"[{number:04d}]({notes[number].name})"
        rows.append((link, title.removeprefix("# "), state[1] if state else "stands"))
    return "\n".join(
        [DECISIONS_INTRODUCTION.format(note=NOTE) + "\n".join(_table(("note", "subject", "state"), rows)), ""]
    )


def keywords_module() -> str:
    """The module with the types of the library's keywords, for editors and type checkers."""
    classes = {
        "train": ("TrainOptions", (TrainSettings,)),
        "up": ("UpOptions", (Spec, UpSettings)),
        "advise": ("AdviseOptions", (AdviseSettings,)),
        "bench": ("BenchOptions", (BenchSettings, TrainSettings)),
    }
    parts = [KEYWORDS_HEAD]
    for command, (name, declared) in classes.items():
        parts.append(
            f'\n\nclass {name}(TypedDict, total=False):\n    """The options of `gpuctl {command}`."""\n\n'
        )
        parts += [
            f"    {option.keyword}: {_annotation(option, declared)}\n"
            for option in options_of(*declared, command=command)
            if option.flags or command != "up"
        ]
    return "".join(parts)


def _annotation(option: Option, declared: tuple[type, ...]) -> str:
    """The type of a keyword: that of its field, but for any path and any sequence."""
    if option.annotation:
        return option.annotation
    return _type_text(next(each.type for cls in declared for each in fields(cls) if each.name == option.name))


def _type_text(kind: Any) -> str:  # noqa: ANN401 - a type
    """A type as it is written."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " | ".join([*(_type_text(part) for part in parts if part is not NoneType), "None"])
    if origin is Literal:
        return f"Literal{json.dumps(parts)}"
    if origin is tuple:
        return f"Sequence[{_type_text(parts[0])}]"
    if origin is Mapping:
        return f"Mapping[{', '.join(map(_type_text, parts))}]"
    return "File" if kind is Path else str(kind.__name__)


def _typed(flag: str, arguments: Mapping[str, Any]) -> str:
    """How an option of argparse's is typed: `--epochs N`, `--stem imagenet|cifar`, `--save / --no-save`."""
    if arguments.get("action") is argparse.BooleanOptionalAction:
        return f"{flag} / --no-{flag.removeprefix('--')}"
    return f"{flag} {arguments.get('metavar') or '|'.join(arguments['choices'])}"


def _global_part() -> Iterator[str]:
    yield COMMANDS_INTRODUCTION
    rows = [
        (f"`{', '.join(names)}{' ' * bool(value)}{value}`", help_line)
        for names, value, help_line in root_help.GLOBAL_OPTIONS
    ]
    yield from _table(("option", "meaning"), [*rows, ("`-h, --help`", "Show help, also of a command.")])
    yield "\nThe exit status says what happened:\n"
    yield from _table(("exit status", "meaning"), root_help.EXIT_STATUSES)
    yield "\nFiles are under `$GPUCTL_HOME` (default `~/.gpuctl`):\n"
    yield from _table(("folder", "what is in it"), [(f"`{name}`", what) for name, what in root_help.FILES])
    yield ""


def _command_part(name: str) -> Iterator[str]:
    command: click.Command = import_module(root_help.module_of(name)).command
    yield from _part_of(command, name)
    if isinstance(command, click.Group):
        for action, part in command.commands.items():
            yield from _part_of(part, f"{name} {action}")


def _part_of(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=f"gpuctl {name}")
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    yield f"### gpuctl {name}\n"
    yield f"```text\n{' '.join(['gpuctl', name, '[OPTIONS]', *pieces])}\n```\n"
    yield from _help(inspect.cleandoc(command.help or ""))
    common = {help_line for _, _, help_line in root_help.GLOBAL_OPTIONS}
    rows = []
    for param in command.params:
        record = param.get_help_record(context)
        if isinstance(param, click.Option) and record is not None and record[1] not in common:
            rows.append((f"`{record[0]}`", _escaped(record[1])))
    if rows:
        yield from _table(("option", "meaning"), rows)
        yield ""


def _help(text: str) -> Iterator[str]:
    r"""A command's help text: paragraphs, and as code those that begin with `\b`."""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("\b"):
            yield f"```text\n{inspect.cleandoc(paragraph.removeprefix(chr(8)).strip(chr(10)))}\n```\n"
        else:
            yield _escaped(" ".join(paragraph.split())) + "\n"


_GLOBAL = {"cluster": "`--cluster`"}
"""Key of a spec file → the option of every command that sets it."""
_FORMS = {
    "ttl_s": "duration",
    "idle_s": "duration",
    "notify": "list",
    "setup": "list of shell lines, and of `fab: TASK`",
}
"""Field of Spec → what a person writes."""
_KINDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Path: "path, from the file's folder",
}
"""Kind of any other option → what a person writes."""


def _escaped(text: str) -> str:
    """Text whose signs Markdown would take for its own; what stands in back quotes stays."""
    parts = text.split("`")
    return "`".join(
        re.sub(r"([*_<>\[\]])", r"\\\1", part) if at % 2 == 0 else part for at, part in enumerate(parts)
    )


def _table(
    header: tuple[str, ...], rows: "list[tuple[str, ...]] | tuple[tuple[str, ...], ...]"
) -> Iterator[str]:
    for row in (header, ("---",) * len(header), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def main(words: list[str]) -> int:
    """Write the pages, or compare them with `--check`; the exit status."""
    pages = {
        "docs/reference/commands.md": commands_page(),
        "docs/reference/spec.md": spec_page(),
        "docs/reference/built-in-job.md": job_page(),
        "docs/reference/gpuctl.schema.json": json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
        "docs/reference/config.schema.json": json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n",
        "docs/folders.md": folders_page(),
        "docs/decisions/README.md": decisions_page(),
        "gpuctl/library/keywords.py": keywords_module(),
    }
    stale = {
        path: text
        for path, text in pages.items()
        if not (ROOT / path).exists() or (ROOT / path).read_text() != text
    }
    if "--check" in words and stale:
        print(f"Not current: {', '.join(stale)}. `make docs` writes these files.", file=sys.stderr)
        return 1
    for path, text in stale.items():
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
