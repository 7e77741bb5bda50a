"""Notes on an environment before its build."""

from types import SimpleNamespace
from typing import Any

import pytest
from node_facts import facts

from gpuctl.workflow.runs.request.build import Build
from remote.python_env.requirements import Requirements


@pytest.mark.parametrize(
    ("same_machine", "where"),
    [(True, "once for all local hosts"), (False, "on each node that does not have them")],
)
def test_large_download_is_noted_once_with_the_python_that_it_replaces(
    same_machine: bool, where: str
) -> None:
    packages = Requirements(
        source="requirements.txt", kind="requirements", files=(("requirements.txt", "torch\n"),)
    )
    build = Build(
        environment=packages, backend="cpu", states={}, constraints=(), indexes={}, same_machine=same_machine
    )
    noted: list[str] = []
    view: Any = SimpleNamespace(note=noted.append)
    for size in (999_000_000, 2_900_000_000, 3_000_000_000):
        build.note_size(view, facts(python="/opt/python", torch="2.13.0"), size)
    assert noted == [
        f"2.9 GB of packages are downloaded {where}, for the environment of requirements.txt. Ranks use it in "
        "place of /opt/python, with torch 2.13.0. Later runs use it as it is."
    ]
