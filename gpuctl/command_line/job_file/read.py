"""Read a job's file. Reads only this file, and checks that the files it names exist."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gpuctl.command_line.job_file.keys import ARGUMENTS, OTHER_WORDS, RUN, SCRIPT, option_keys, words_for
from gpuctl.command_line.options import click_option
from gpuctl.environment_variables import variable
from gpuctl.errors import GpuctlError
from inventories.errors import InvalidInput
from inventories.option import Option
from inventories.runs.labels import check_tag
from inventories.specs.checks import check_cluster_name
from inventories.specs.job_file import repository_above
from inventories.specs.spec import Spec
from inventories.specs.validate import CLUSTER, spec_at, spec_keys
from inventories.text import did_you_mean, shown
from inventories.yaml_source import Keys, Problems, Source, read

NO_LIST = "it should be a list, each item after '- '."
NO_TEXT = "it should be text; put it in quotes if it is."


@dataclass(frozen=True, kw_only=True)
class Job:
    """The content of a job's file."""

    path: Path
    spec: Spec | None
    """None: the file has no cluster."""
    options: Mapping[Option, Any]
    """Values as click gives them to a command. Paths are absolute."""
    script: Path | None
    """Absolute."""
    arguments: tuple[str, ...]
    """Of the script, of the module, or of the built-in job where neither is named."""

    @property
    def folder(self) -> Path:
        """The folder in whose copy the script runs."""
        return _folder_of(self.path)

    @property
    def module(self) -> str | None:
        """The module that runs in place of a script."""
        return next((value for option, value in self.options.items() if option.keyword == "module"), None)


def read_job(path: Path) -> Job:
    """Read the file. Raises InvalidInput with a line for each problem in it."""
    source = read(path)
    problems = Problems(path)
    reader = _Reader(source, problems)
    job = reader.job()
    problems.raise_if_any()
    reader.check_together(job)
    problems.raise_if_any()
    return job


class _Reader:
    """Reads one file into a job, and gathers all mistakes."""

    def __init__(self, source: Source, problems: Problems) -> None:
        self._source = source
        self._problems = problems
        self._folder = _folder_of(source.path)
        self._repository = repository_above(self._folder)
        self._keys = {option.path: option for option in option_keys()}

    def job(self) -> Job:
        options: dict[Option, Any] = {}
        script: Path | None = None
        arguments: tuple[str, ...] = ()
        spec = None
        for path in self._paths():
            try:
                if path == (CLUSTER,):
                    value = self._source.value(CLUSTER)
                    if isinstance(value, dict):
                        spec = spec_at(self._source, (CLUSTER,), self._problems)
                    elif value is not None:
                        spec = Spec(cluster=check_cluster_name(value))
                elif path == (RUN, SCRIPT):
                    file = self._path(path)
                    if not os.path.isfile(file):  # noqa: PTH113 - never raises
                        raise InvalidInput(f"there is no file {file}.")
                    self._check_inside(file)
                    script = file
                elif path == (RUN, ARGUMENTS):
                    arguments = tuple(self._texts(path))
                elif (option := self._keys[path]).mapping:
                    options[option] = tuple(self._pairs(option))
                elif option.multiple:
                    options[option] = tuple(self._each(option))
                else:
                    options[option] = self._single(option, path)
            except InvalidInput as error:
                self._problem(path, f"key '{'.'.join(path)}': {error}")
        if script is not None and (RUN, "module") in [option.path for option in options]:
            self._problem((RUN, "module"), f"key 'run.{SCRIPT}' is there, too: leave out one of them.")
        return Job(path=self._source.path, spec=spec, options=options, script=script, arguments=arguments)

    def _paths(self) -> "Sequence[tuple[str, ...]]":
        """Return the paths of the known keys in the file. Any other key is a problem."""
        known = [(CLUSTER,), (RUN, SCRIPT), (RUN, ARGUMENTS), *self._keys]
        sections = {path[0] for path in known if len(path) > 1}
        paths: list[tuple[str, ...]] = []
        for name in self._mapping(()):
            if name not in sections:
                paths.append((name,))
            elif self._source.value(name) is not None:  # `None` is a heading with only comments below it
                paths += [(name, inner) for inner in self._mapping((name,))]
        for path in paths:
            if path not in known:
                self._unknown(path, known)
        return [path for path in paths if path in known]

    def _mapping(self, keys: tuple[str, ...]) -> Mapping[str, Any]:
        data = self._source.value(*keys)
        if data is None or isinstance(data, dict):
            return data or {}
        subject = f"key '{'.'.join(keys)}'" if keys else "the file"
        way = "it should be keys with values."
        if keys == (RUN,) and isinstance(data, str):
            way = f"put it under '{RUN}', as in '{SCRIPT}: {data}'."
        self._problem(keys, f"{subject} holds {shown(data)}; {way}")
        return {}

    def _unknown(self, path: tuple[str, ...], known: "Sequence[tuple[str, ...]]") -> None:
        """Report a key that does not exist, with the nearest one."""
        depth = len(path) - 1
        siblings = list(dict.fromkeys(key[depth] for key in known if key[:depth] == path[:-1]))
        name = path[-1]
        elsewhere = [key for key in known if key[-1] == name]
        if elsewhere:
            above = elsewhere[0][:-1]
            hint = f" here; put it under '{above[0]}'." if above else " here; put it at the top."
        elif name in spec_keys():
            hint = f" here; put it under '{CLUSTER}'."
        elif OTHER_WORDS.get(name) in {part for key in known for part in key}:
            meant = next(key for key in known if OTHER_WORDS[name] in key)
            hint = f"; did you mean '{'.'.join(meant[: meant.index(OTHER_WORDS[name]) + 1])}'?"
        else:
            hint = did_you_mean(name, siblings) or "."
        self._problem(path, f"key '{'.'.join(path)}' is not known{hint} Allowed: {', '.join(siblings)}.")

    def _each(self, option: Option) -> Iterator[object]:
        """Yield the values of a list. A mistake in one is a problem at its own line."""
        for at in self._items(option.path):
            try:
                value = self._single(option, at)
            except InvalidInput as error:
                self._problem(at, f"key '{option.key}': {error}")
            else:
                yield value.absolute() if isinstance(value, Path) else value

    def _single(self, option: Option, at: Keys) -> object:
        """Return a value that is no list, as click gives it to a command."""
        value = self._source.value(*at)
        if option.kind is bool:
            if not isinstance(value, bool):
                raise InvalidInput(f"{shown(value)} can't be used: it should be true or false.")
            return value
        if option.kind is Path:
            path = Path(_converted(option, str(self._path(at))))
            if not os.path.lexists(path):
                raise InvalidInput(f"there is no file or folder {path}.")
            if option.keyword != "wheels":
                self._check_inside(path)
            return path
        if option.kind is int:
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidInput(f"{shown(value)} can't be used: it should be a whole number.")
            return _converted(option, value)
        if isinstance(value, list | dict | None) and (words := words_for(option)):
            raise InvalidInput(f"{shown(value)} can't be used: it should be {words}.")
        # As it is written: `off` is a truth value in YAML.
        return _converted(
            option, self._source.text(*at) if isinstance(value, int | float) else self._text(at)
        )

    def _text(self, at: Keys) -> str:
        value = self._source.value(*at)
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise InvalidInput(f"{shown(value)} can't be used: {NO_TEXT}")
        return value.strip()

    def _path(self, at: Keys) -> Path:
        return self._folder / os.path.expanduser(self._text(at))  # noqa: PTH111 - never raises

    def _check_inside(self, path: Path) -> None:
        """Raise InvalidInput for a path outside the project, so that a file of others sends nothing else of yours."""
        if self._repository is None:
            return
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._repository)):
            raise InvalidInput(
                f"{path} leads out of {self._repository}, the project's repository. Copy what the script needs into "
                "it, or type the path as an option of the command."
            )

    def _items(self, at: Keys) -> list[Keys]:
        """Return the places of a list's items. A single value is a list, too."""
        value = self._source.value(*at)
        if value is None or isinstance(value, dict):
            raise InvalidInput(f"{shown(value)} can't be used: {NO_LIST}")
        return [(*at, index) for index in range(len(value))] if isinstance(value, list) else [at]

    def _texts(self, at: Keys) -> list[str]:
        """Return a list of words, each as it is written: 1e-4, 007, true."""
        value = self._source.value(*at)
        if isinstance(value, str):
            raise InvalidInput(
                f"{shown(value)} can't be used: it should be a list, as in [{', '.join(value.split())}]."
            )
        if not isinstance(value, list):
            raise InvalidInput(f"{shown(value)} can't be used: {NO_LIST}")
        return [self._as_written(item) for item in self._items(at)]

    def _pairs(self, option: Option) -> list[str]:
        """Return `NAME=VALUE`; of variables also `NAME`, which takes its value from this computer when needed."""
        at, mapping = option.path, self._source.value(*option.path)
        if not isinstance(mapping, dict):
            raise InvalidInput(f"{shown(mapping)} can't be used: it should be lines such as NAME: value.")
        words = []
        for name, value in mapping.items():
            try:
                word = name if value is None else f"{name}={self._as_written((*at, name))}"
                if option.keyword == "env":
                    variable(f"{name}=")
                else:
                    check_tag(word)
                words.append(word)
            except GpuctlError as error:
                self._problem((*at, name), f"key '{'.'.join((*map(str, at), name))}': {error}")
        return words

    def _as_written(self, at: Keys) -> str:
        text = self._source.text(*at)
        if text is None or "\0" in text:
            raise InvalidInput(f"{shown(self._source.value(*at))} can't be used: {NO_TEXT}")
        return text

    def _problem(self, at: Keys, text: str) -> None:
        self._problems.add(self._source.line(*at), text)

    def check_together(self, job: Job) -> None:
        """Add the problem of options that exclude each other, at the line of one of these options."""
        from gpuctl.library.options import train_request

        words = (*(() if job.script is None else ("script",)), *job.arguments)
        options = {option: value for option, value in job.options.items() if option.keyword != "env"}

        def refusal(*some: Option) -> str | None:
            keywords: Any = {option.keyword: options[option] for option in some}
            try:
                train_request(words, keywords)
            except GpuctlError as error:
                return str(error)
            return None

        if (why := refusal(*options)) is None:
            return
        alone = next((option for option in options if refusal(option) == why), None)
        about = alone or next(
            (option for option in options if any(flag in why for flag in option.flags)), None
        )
        keys = {option.flag: option.key for option in option_keys()}
        key, sentence = (
            about.key if about else "",
            re.sub(r"--[a-z][a-z-]*", lambda flag: keys.get(flag[0], flag[0]), why),
        )
        where = "" if key in sentence else f"key '{key}': "
        self._problem(about.path if about else (RUN,), where + sentence)


def _folder_of(path: Path) -> Path:
    """Return the folder of a file, or of a link to it; `../gpuctl.yaml` without its `..`."""
    return Path(os.path.abspath(path)).parent  # noqa: PTH100 - links stay


def _converted(option: Option, value: str | int | None) -> Any:  # noqa: ANN401 - an option's value is its own
    """Return a value as click converts a typed one. Raises InvalidInput."""
    parameter = click_option(option)
    try:
        return parameter.type.convert(value, parameter, None)
    except click.BadParameter as error:
        raise InvalidInput(error.message) from error
