"""The documentation: it can be built, its reference is current, and what it shows can be typed."""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from pages import PAGES, ROOT, SESSIONS, Block, blocks_of, gpuctl_words, session_of

from gpuctl import root_help
from gpuctl.cli import group

BLOCKS = [pytest.param(block, id=f"{page.stem}:{block.line}") for page in PAGES for block in blocks_of(page)]
IN_PROSE = re.compile(r"`gpuctl ([a-z][^`]*)`")


def python(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    settings = str(tmp_path / "zensical.toml")
    built = python("-m", "zensical", "build", "--strict", "--config-file", settings)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "build" / "site" / "quickstart" / "index.html").exists()


def test_reference_pages_are_current() -> None:
    checked = python("tools/reference.py", "--check")
    assert checked.returncode == 0, checked.stderr


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "zensical.toml").read_text()
    assert [page.name for page in PAGES[1:] if f'"{page.name}"' not in settings] == []


def test_readme_is_short_and_tests_are_its_second_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 900
    commands = [command.line for block in blocks_of(ROOT / "README.md") for command in block.commands()]
    assert commands[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_begins_with_a_session_that_there_is(page: Path) -> None:
    assert session_of(page) in SESSIONS


@pytest.mark.parametrize("block", BLOCKS)
def test_block_is_run_or_says_why_not(block: Block) -> None:
    commands = any(line.startswith("$ ") for line in block.text.splitlines())
    if block.language == "console":
        assert commands, "a block without a command is text"
    elif commands:
        assert "output" in block.notes, "commands that are not run say so"
    assert block.language in ("console", "text") or block.title or "not run" in block.notes


@pytest.mark.parametrize("block", BLOCKS)
def test_commands_of_block_have_options_that_there_are(block: Block) -> None:
    for command in block.commands():
        for words in gpuctl_words(command):
            parsed(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_prose_have_options_that_there_are(page: Path) -> None:
    for line in IN_PROSE.findall(page.read_text()):
        with contextlib.suppress(click.BadParameter):
            parsed(shlex.split(line))


def parsed(words: list[str]) -> None:
    """Parse a command line as gpuctl does, without running the command."""
    while words[0].startswith("-"):
        words = words[1 if words[0] in ("--json", "--yes", "--version") else 2 :]
    assert words[0] in root_help.COMMANDS, words
    command = group.get_command(click.Context(group), words[0])
    assert command is not None
    with group.make_context("gpuctl", [words[0]], resilient_parsing=True) as parent:
        try:
            command.make_context(words[0], words[1:], parent=parent)
        except click.exceptions.Exit as left:
            assert left.exit_code == 0
