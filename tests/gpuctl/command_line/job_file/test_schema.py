"""Test that the schema of a job's file accepts the reader's keys and refuses misspelt keys."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import inventories
from gpuctl.command_line.job_file.keys import option_keys, section_of
from gpuctl.command_line.job_file.schema import schema

SAMPLES = sorted(
    path
    for path in (Path(inventories.__file__).parent / "samples").glob("*.yaml")
    if path.name != "hosts.yaml"
)


@pytest.fixture(scope="module")
def checker() -> Any:
    made = schema()
    jsonschema.Draft7Validator.check_schema(made)
    return jsonschema.Draft7Validator(made)


def wrong(checker: Any, text: str) -> list[str]:
    return [error.message for error in checker.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_schema_takes_sample_specs_as_the_cluster(checker: Any, sample: Path) -> None:
    text = "".join(f"  {line}\n" for line in sample.read_text().splitlines())
    assert wrong(checker, f"cluster:\n{text}") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cluster: a10",
        "cluster:\nrun:",
        "cluster: {setup: [a, fab: b, run: c], driver: 580, network: {public_ip: false}}",
        "environment: {variables: {A: 1, B: x, C: , D: true}, pip: einops}",
        "run: {nnodes: 1:4, nproc_per_node: auto, arguments: [--lr, 0.1, true], detach: true}",
        "run: {nnodes: 2, hang_after: 'off', max_restarts: 3, mode: ray}",
        "outputs: none\ninclude: [data]\nroot: ..",
    ],
)
def test_schema_takes_what_the_reader_takes(checker: Any, text: str) -> None:
    assert wrong(checker, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "inclde: data",
        "run: {scritp: a}",
        "cluster: {shap: a}",
        "cluster: {network: {subnet: a}}",
        "run: {mode: slurm}",
        "run: {max_restarts: 2000}",
        "run: {detach: 1}",
        "cluster: {ttl: soon}",
        "environment: {variables: [A]}",
        "[]",
    ],
)
def test_schema_refuses_what_the_reader_refuses(checker: Any, text: str) -> None:
    assert wrong(checker, text)


def test_every_key_is_described(checker: Any) -> None:
    for key in option_keys():
        within = checker.schema["properties"]
        within = within[section_of(key)]["properties"] if section_of(key) else within
        assert within[key.path[-1]]["description"], key.path
    assert {("run", "nproc_per_node"), ("environment", "pip"), ("include",), ("outputs",)} <= {
        key.path for key in option_keys()
    }
