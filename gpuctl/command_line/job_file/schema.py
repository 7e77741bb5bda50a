"""The JSON schema of a job's file, for editors, made from the options' declarations. Pure."""

from pathlib import Path
from typing import Any

from gpuctl.command_line.job_file.keys import (
    ARGUMENTS,
    ENVIRONMENT,
    RUN,
    SCRIPT,
    TOP,
    option_keys,
    section_of,
    words_for,
)
from inventories.option import Option
from inventories.specs.job_file import NAME
from inventories.specs.validate import CLUSTER, spec_keys

Schema = dict[str, Any]
SECTIONS = {
    CLUSTER: "The machines, as in the spec file of gpuctl up -f; or only the name of the cluster.",
    ENVIRONMENT: "What the ranks find installed, and their variables.",
    RUN: "What is run, and how it is started.",
}
SCRIPT_HELP = (
    "The script, from this file's folder, in which it runs. Without a script and a module: the built-in job."
)
ARGUMENTS_HELP = (
    "Arguments of the script, the module or the built-in job, each an item, as it is to be passed."
)
VARIABLES_HELP = "Variables of every rank. One without a value takes its value from where gpuctl is started."
TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "string"}
"""Kind of an option → the type of its value in the file."""


def schema() -> Schema:
    """Return the whole schema, of draft 7, which editors know."""
    keys = option_keys()
    run = {
        SCRIPT: {"type": "string", "description": SCRIPT_HELP},
        ARGUMENTS: {"type": "array", "items": _scalar(), "description": ARGUMENTS_HELP},
    }
    properties: Schema = {}
    for path, option in spec_keys().items():  # also the keys under `network`
        above, _, name = path.rpartition(".")
        within = properties.setdefault(above, _mapping({}, "object"))["properties"] if above else properties
        within[name] = _field(option) | {"description": option.meaning}
    sections = {
        ENVIRONMENT: _mapping(_of_options(keys, ENVIRONMENT)),
        RUN: _mapping(run | _of_options(keys, RUN)),
        CLUSTER: _mapping(properties, "object", "string", "null"),
    }
    described = {
        name: sections[name] | {"description": described} for name, described in SECTIONS.items()
    } | _of_options(keys, TOP)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": NAME,
        "description": "A job of gpuctl's: what it needs, what is run, what comes back.",
        **_mapping(described),
    }


def _mapping(properties: Schema, *types: str) -> Schema:
    """Return the schema of keys with values.

    `types`: JSON types that are allowed. Default: an object, or null for only comments.
    """
    return {
        "type": list(types or ("object", "null")),
        "additionalProperties": False,
        "properties": properties,
    }


def _scalar(*more: str) -> Schema:
    """Return the schema of a value that is passed on as it is written."""
    return {"type": ["string", "number", "boolean", *more]}


def _of_options(options: tuple[Option, ...], section: str) -> Schema:
    """Return key → schema for the options of a section."""
    return {option.path[-1]: _option(option) for option in options if section_of(option) == section}


def _option(option: Option) -> Schema:
    """Return the schema of an option's key."""
    if option.keyword == "env":
        return {
            "type": "object",
            "additionalProperties": _scalar("null"),
            "description": VARIABLES_HELP,
        }
    text = option.help.removesuffix(" Repeatable.")
    if option.mapping:
        return {"type": "object", "additionalProperties": _scalar(), "description": text}
    if option.multiple:
        return {"type": ["array", "string"], "items": {"type": "string"}, "description": text}
    return _value(option) | {"description": text}


def _value(option: Option) -> Schema:
    if isinstance(option.kind, tuple):
        return {"enum": list(option.kind)}
    if option.kind is int:
        limits = {"minimum": option.min, "maximum": option.max}
        return {"type": "integer"} | {name: limit for name, limit in limits.items() if limit is not None}
    return {"type": ["string", "integer"] if words_for(option) else TYPES[option.kind]}


def _field(option: Option) -> Schema:
    """Return the schema of a value of a spec's key."""
    if option.name in ("ttl_s", "idle_s"):
        return {"type": "string", "pattern": r"^(none|([0-9]+(\.[0-9]+)?[smhd])+)$"}
    if option.name == "driver":
        return {"type": ["string", "integer"]}
    if option.name == "setup":
        step = {"type": "object", "maxProperties": 1, "additionalProperties": False}
        named = step | {"properties": {"run": {"type": "string"}, "fab": {"type": "string"}}}
        return {"type": "array", "items": {"anyOf": [{"type": "string"}, named]}}
    if option.multiple:
        return {"type": "array", "items": {"type": "string"}}
    return {"type": TYPES[option.kind]}
