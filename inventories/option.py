"""Options of the command line, each declared once: as a field of a dataclass.

From the declaration come the option of every command that has it, its help, the library's keyword and its check, the
key of gpuctl.yaml or of a spec file, and the reference pages. This module imports nothing of gpuctl's.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

Kind: TypeAlias = type | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option: its flags, values and help, and its names in the library and in files."""

    flags: tuple[str, ...] = ()
    """Names on the command line, as click takes them. Empty: it has no option there."""
    name: str = ""
    """The field that declares it."""
    keyword: str = ""
    """Its name in the library and in a command's function."""
    help: str = ""
    metavar: str | None = None
    kind: Kind | None = None
    """Type of a value on the command line, or the possible words. Default: that of the field."""
    multiple: bool = False
    """Whether it may be typed several times."""
    mapping: bool = False
    """Whether its values are names with values: `K=V` on the command line, keys in a file."""
    default: Any = None
    exists: Literal["file", "folder"] | None = None
    """A path has to lead to a file or a folder of this computer."""
    absolute: bool = False
    """Whether the field has the absolute path."""
    min: float | None = None
    max: float | None = None
    above: float | None = None
    """A lower bound that is not possible itself."""
    read: Callable[[Any], Any] | None = None
    """Returns the field's value for a value of the command line or the library. Default: as `kind` says."""
    annotation: str = ""
    """Type of the library's keyword. Empty: that of the field."""
    key: str = ""
    """Key of a gpuctl.yaml or a spec file, with its section. Empty: no file has it."""
    meaning: str = ""
    """Text on the key of a spec file."""
    providers: str = ""
    """Providers that take it: `clouds`, or names, separated by spaces. Empty: every provider does."""
    resumed: Literal["", "always", "environment", "project", "script"] = ""
    """When a run that resumes another one takes it over, unless it is set: always, or together with what the ranks
    find installed, the project or the script. Empty: never, or as `workflow.runs.resume` says."""
    commands: tuple[str, ...] = ()
    """Commands that have it. Empty: each command that uses its dataclass."""
    help_in: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Command → its help there, where that is another one."""
    completes: str = ""
    """Function of `completions` that offers values to a shell."""
    after: str = ""
    """The keyword that it follows in the help. Empty: that of the field above."""
    distinctive: bool = False
    """Whether few scripts have an option of this name."""

    @property
    def flag(self) -> str:
        """The name that messages use: `--no-public-ip`."""
        return next((name for name in self.flags if name.startswith("--")), f"--{self.keyword}")

    @property
    def path(self) -> tuple[str, ...]:
        """The parts of its key in a file."""
        return tuple(self.key.split("."))

    @property
    def setting(self) -> str:
        """Its name on the command line, or else in a spec file."""
        return self.flag if self.flags else self.key


def option(*flags: str, default: Any = None, **about: Any) -> Any:  # noqa: ANN401 - a field of any type
    """Declare an option of the command line as a field of a dataclass. `about`: fields of `Option`.

    count: int | None = option("--count", metavar="N", help="Number of machines.")
    """
    metadata = {"option": Option(flags=flags, **about)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@cache
def options_of(*classes: type, command: str = "") -> tuple[Option, ...]:
    """Return the options that dataclasses declare, or the options of a command among them."""
    declared = [_completed(each) for cls in classes for each in fields(cls) if "option" in each.metadata]
    declared = [each for each in declared if not (command and each.commands) or command in each.commands]
    return tuple(declared)


def in_order(options: Iterable[Option]) -> list[Option]:
    """Return options in the order of the help: one with `after` follows the option that it names."""
    declared = list(options)
    ordered = [option for option in declared if not option.after]
    for option in declared:
        if option.after:
            ordered.insert(1 + [other.keyword for other in ordered].index(option.after), option)
    return ordered


def _completed(declared: "Field[Any]") -> Option:
    """Return a field's option with all that follows from the field."""
    about: Option = declared.metadata["option"]
    kind, multiple = _kind_of(declared.type)
    return replace(
        about,
        name=declared.name,
        keyword=about.keyword or declared.name,
        kind=about.kind or kind,
        multiple=multiple or about.multiple,
        mapping=get_origin(declared.type) is Mapping,
        default=None if declared.default is MISSING else declared.default,
    )


def _kind_of(annotation: Any) -> tuple[Kind, bool]:  # noqa: ANN401 - a type
    """Return the kind of a field's values, and whether it holds several."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    first = next(part for part in parts if part is not NoneType)
    if get_origin(first) is tuple:
        return _kind_of(get_args(first)[0])[0], True
    if get_origin(first) is Literal:
        return get_args(first), False
    return (first, False) if first in (bool, int, float, Path) else (str, False)
