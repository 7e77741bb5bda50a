"""Values of options: as a person or a program gives them, and as a request has them."""

import os
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gpuctl.environment_variables import variable
from gpuctl.errors import Usage
from inventories.option import Option, options_of
from inventories.specs.checks import parse_duration_s
from inventories.text import did_you_mean
from remote.shared.notify.target import check_mail_server, key_of
from remote.shared.notify.target import parse as parse_target

if TYPE_CHECKING:
    from gpuctl.scaling.measurements import Layout

Value = TypeVar("Value")
MAX_PROCESSES = 1024
"""On a node."""


def read_options(options: Mapping[str, Any], *classes: type) -> dict[str, Any]:
    """Return field → value for the options that the classes declare. None and a default count as absent.

    Raises Usage and InvalidInput for a value that is not possible, TypeError for a str in place of a list.
    """
    return {
        option.name: read_value(option, value)
        for option in options_of(*classes)
        if (value := options.get(option.keyword)) is not None and value is not option.default
    }


def read_value(option: Option, value: Any) -> Any:  # noqa: ANN401 - an option's value is its own
    """Return an option's value as the request has it."""
    if option.multiple and not isinstance(value, Mapping):
        value = tuple(several(option.keyword, value))
    if option.read is not None:
        return option.read(value)
    if option.kind is Path:
        if option.multiple:
            return tuple(map(Path, value))
        path = Path(value)
        if (option.exists == "file" and not path.is_file()) or (
            option.exists == "folder" and not path.is_dir()
        ):
            raise Usage(f"{option.flag}: there is no {option.exists} {path}.")
        return path.absolute() if option.absolute else path
    if isinstance(option.kind, tuple) and value not in option.kind:
        words = (" or " if len(option.kind) == 2 else ", ").join(option.kind)
        raise Usage(f"{option.flag} {value} is not possible: give {words}.")
    if option.kind in (bool, int, float) and not option.multiple:
        _check_number(option, value)
    return value


def _check_number(option: Option, value: object) -> None:
    """Raise TypeError for a value of another type, and Usage for a number out of bounds, as click does."""
    assert isinstance(option.kind, type)
    if type(value) not in ((int, float) if option.kind is float else (option.kind,)):
        raise TypeError(
            f"{option.keyword} is a value of type {option.kind.__name__}, not {type(value).__name__}"
        )
    assert isinstance(value, int | float)
    if (
        (option.min is None or value >= option.min)
        and (option.above is None or value > option.above)
        and (option.max is None or value <= option.max)
    ):
        return
    if option.min is not None:
        bounds = f"of at least {option.min}" if option.max is None else f"from {option.min} to {option.max}"
    else:
        bounds = f"of at most {option.max}" if option.above is None else f"above {option.above}"
    raise Usage(f"{option.flag} {value} is not possible: give a number {bounds}.")


def several(name: str, values: Sequence[Value]) -> Sequence[Value]:
    """Return these values. Raises TypeError for a str, which would count as one value for each letter."""
    if isinstance(values, str | bytes | PathLike):
        items = values.split() if isinstance(values, str) and name == "args" else [values]
        raise TypeError(f"{name} is a list, such as {name}={items!r}, and not a {type(values).__name__}")
    return values


def refuse_unknown(function: str, options: Mapping[str, Any], known: type) -> None:
    """Raise TypeError, as Python does, for a keyword that does not exist: it would be ignored."""
    for name in options:
        if name not in known.__annotations__:
            near = did_you_mean(name, known.__annotations__)
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'{near}")


def variables(value: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the ranks. Raises Usage for a name that is not possible."""
    return dict(variable(f"{name}={value}") for name, value in value.items())


def max_nodes(value: int | str) -> int:
    """Return the number of nodes, or MAX of `MIN:MAX`. Raises Usage."""
    return _nnodes(value)[1]


def min_nodes(value: int | str | None) -> int | None:
    """Return MIN of `MIN:MAX`, for an elastic run. Raises Usage."""
    return None if value is None else _nnodes(value)[0]


def _nnodes(value: int | str) -> tuple[int | None, int]:
    text = str(value)
    lowest, colon, highest = text.rpartition(":")
    if not highest.isdecimal() or (colon and not lowest.isdecimal()):
        raise Usage(f"--nnodes {text} is not possible: give a number of nodes, or MIN:MAX, such as 1:4.")
    if int(highest) < 1:
        raise Usage(f"--nnodes {text} is not possible: it must be at least 1.")
    if colon and not 1 <= int(lowest) <= int(highest):
        raise Usage(f"--nnodes {text} is not possible: MIN must be at least 1, and MAX at least MIN.")
    return int(lowest) if colon else None, int(highest)


def processes(value: int | str) -> int | Literal["auto"]:
    """Return the number of processes on each node. Raises Usage."""
    text = str(value)
    if text == "auto":
        return "auto"
    if not text.isdigit() or not 1 <= int(text) <= MAX_PROCESSES:
        raise Usage(
            f"--nproc-per-node {text} is not possible: give auto, or a number from 1 to {MAX_PROCESSES}."
        )
    return int(text)


def names(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the names in texts such as `0,2`, each once."""
    words = (word.strip() for text in texts for word in str(text).split(","))
    return tuple(dict.fromkeys(filter(None, words)))


def patterns(names: Sequence[str]) -> tuple[str, ...]:
    """Return patterns of files to download, as the nodes take them. Raises Usage for a wrong pattern."""
    names = tuple(pattern.removeprefix("./") for pattern in names)
    if "none" in names and len(set(names)) > 1:
        raise Usage("--bring none brings nothing back: leave it out, or leave out the patterns.")
    for pattern in names:
        if not pattern.strip("/") or pattern.startswith("/") or ".." in pattern.split("/"):
            raise Usage(
                f"--bring {pattern!r} names nothing in the project's folder: give a name such as '*.pt', or a path "
                "in it such as 'runs/*'."
            )
    return names


def hang_after_s(value: str) -> float | Literal["off"]:
    """Return the seconds without progress after which a run counts as hung. Raises InvalidInput."""
    return "off" if value == "off" else parse_duration_s(value, "--hang-after")


def notify_targets(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the targets of notifications, also from each `@FILE`. Raises Usage, without any secret."""
    targets: list[str] = []
    for text in texts:
        if text.startswith("@"):
            path = Path(text[1:]).expanduser()
            lines = map(str.strip, private_text(path, f"--notify @{path}").splitlines())
            targets += [line for line in lines if line and not line.startswith("#")]
        else:
            targets.append(text)
    for target in targets:
        try:
            kind = parse_target(target).kind
            if kind == "mail":
                check_mail_server(os.environ.get("GPUCTL_SMTP", ""))
            elif kind == "url":
                key_of(os.environ.get("GPUCTL_NOTIFY_SECRET", ""))
        except ValueError as error:
            raise Usage(f"--notify: {error}.") from error
    return tuple(dict.fromkeys(targets))


def private_text(path: Path, option: str) -> str:
    """Return the text of a file with secrets. `option`: as a person wrote it. Raises Usage, without any secret."""
    try:
        if path.stat().st_mode & 0o077:
            raise Usage(f"{option}: others can read this file, and it holds secrets: chmod 600 {path}")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Usage(f"{option} can't be read: it is no text in UTF-8") from error
    except OSError as error:
        raise Usage(f"{option} can't be read: {error}") from error


def gpu_fraction(value: str) -> float:
    """Return the limit of GPUs' use as a fraction, from `10%` or `10`. Raises Usage."""
    digits = str(value).strip().removesuffix("%").strip()
    if not re.fullmatch(r"\d{1,3}(\.\d{1,9})?", digits) or not 0 < float(digits) <= 100:
        raise Usage(
            f"--end-if-gpu-below {value} is not possible: give a use of the GPUs above 0 %, up to 100 %, such as 10%."
        )
    return float(digits) / 100


def gpu_below_s(value: str) -> float:
    """Return the seconds for which GPUs are below the limit before the run ends. Raises InvalidInput."""
    return parse_duration_s(value, "--for")


def read_layouts(names: Sequence[str], *, flag: str) -> "tuple[Layout, ...]":
    """Return layouts of nodes and processes. Raises Usage, which names the flag."""
    from gpuctl.scaling.measurements import parse_layouts

    names = several(flag.removeprefix("--"), names)
    return parse_layouts(",".join(names), flag) if names else ()
