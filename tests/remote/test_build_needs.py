"""Packages whose build imports what they do not declare: the table that uv reads, and the advice that adds to it."""

import re
import tomllib
from pathlib import Path

import pytest

from remote.python_env import building
from remote.python_env.project_files import BadRequirements
from remote.python_env.requirements import Requirements, key_of, requirements_of

TABLE = (
    '[tool.uv.extra-build-dependencies]\n"other" = ["numpy", {requirement = "torch", match-runtime = true}]\n'
)
SENT = '[extra-build-dependencies]\nother = ["numpy", { requirement = "torch", match-runtime = true }]\n'
HINT = """\
             File "<string>", line 22, in <module>
         ModuleNotFoundError: No module named 'torch'

hint: This error likely indicates that `flash-attn@2.8.3.post2` depends on `torch`, but doesn't declare it as a \
build dependency. If `flash-attn` is a first-party package, consider adding `torch` to its `build-system.requires`. \
Otherwise, either add it to your `pyproject.toml` under:

[tool.uv.extra-build-dependencies]
flash-attn = ["torch"]

or `uv pip install torch` into the environment and re-run with `--no-build-isolation`.
""".splitlines()
"""The last lines of uv 0.13.9."""


def listing(text: str, settings: str = "") -> Requirements:
    """A list of requirements on the command line."""
    return Requirements(
        source="--pip", kind="requirements", files=(("named.txt", text),), build_settings=settings
    )


@pytest.mark.parametrize(
    ("files", "pip"),
    [
        ({"pyproject.toml": TABLE}, ["flash-attn"]),
        ({"pyproject.toml": TABLE, "requirements.txt": "flash-attn\n"}, []),
        ({"../pyproject.toml": TABLE, "pyproject.toml": "[tool.ruff]\n"}, ["flash-attn"]),
    ],
)
def test_list_of_requirements_is_sent_with_the_table_of_its_project(
    tmp_path: Path, files: dict[str, str], pip: list[str]
) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    wish = requirements_of(folder, root=tmp_path, pip=pip)
    assert wish is not None
    assert building.request(wish, None)["files"]["uv.toml"] == SENT
    assert (
        "uv.toml"
        not in building.request(Requirements(source="x", kind="requirements", files=wish.files), None)[
            "files"
        ]
    )
    plain = Requirements(source=wish.source, kind=wish.kind, files=wish.files)
    assert "uv.toml" not in building.request(plain, None)["files"]
    assert key_of(wish, None) != key_of(plain, None)
    assert wish.named == plain.named == ["flash-attn"], "the table names no requirements"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("tool = 1", "tool has to be a table"),
        ("[tool]\nuv = 1", "tool.uv has to be a table"),
        (
            '[tool.uv]\nextra-build-dependencies = ["torch"]',
            "tool.uv.extra-build-dependencies has to be a table",
        ),
        ('[tool.uv.extra-build-dependencies]\nx = "torch"', "extra-build-dependencies.x has to be a list"),
        (
            "[tool.uv.extra-build-dependencies]\nx = [2026-01-01]",
            "dependencies.x.1 has to be a text in quotes, or a table",
        ),
        (
            "[tool.uv.extra-build-dependencies]\nx = [{a = 2026-01-01}]",
            "x.1.a has to be a text in quotes, true or false",
        ),
        ("[project", None),
        ("project = 1", None),
    ],
)
def test_list_of_requirements_refuses_only_a_table_of_a_wrong_type(
    tmp_path: Path, text: str, wrong: str | None
) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "r.txt").write_text("flash-attn\n")
    for pip, file in ((["flash-attn"], None), ([], tmp_path / "r.txt")):
        if wrong is None:
            assert requirements_of(tmp_path, pip=pip, requirements=file) is not None
        else:
            with pytest.raises(BadRequirements, match=f"/pyproject.toml: .*{re.escape(wrong)}"):
                requirements_of(tmp_path, pip=pip, requirements=file)


@pytest.mark.parametrize(
    ("wish", "table"),
    [
        (listing("flash-attn\n"), {"flash-attn": ["torch"]}),
        (listing("torch==2.6.0\nflash-attn\ntorchvision\n"), {"flash-attn": ["torch==2.6.0"]}),
        (
            listing("x\n", SENT),
            {"other": ["numpy", {"requirement": "torch", "match-runtime": True}], "flash-attn": ["torch"]},
        ),
        (
            Requirements(
                source="pyproject.toml",
                kind="project",
                files=(("pyproject.toml", '[tool.uv.extra-build-dependencies]\nflash-attn = ["packaging"]\n'),),
            ),
            {"flash-attn": ["packaging", "torch"]},
        ),
    ],
)  # fmt: skip
def test_failed_build_comes_with_the_table_that_mends_it(
    wish: Requirements, table: dict[str, list[object]]
) -> None:
    text = str(building.failure("node-1", wish, "uv pip install", HINT))
    assert "No module named 'torch'\n  The build of flash-attn imports torch, and flash-attn does not" in text
    assert "--no-build-isolation" not in text, "no option of gpuctl"
    end = text.partition("type the command again:\n")[2]
    assert ("Replace the table tool.uv.extra-build-dependencies" in text) is (
        len(table) > 1 or len(table["flash-attn"]) > 1
    )
    lines, _, python = end.rpartition("\n  ")
    assert tomllib.loads(lines) == {"tool": {"uv": {"extra-build-dependencies": table}}}
    assert python == "Or name an interpreter that has flash-attn with --python PATH."
