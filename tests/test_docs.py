"""The documentation: the build works, the reference is current, and examples can be typed."""

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

from gpuctl.command_line import root_help
from gpuctl.command_line.cli import group
from remote.node.__main__ import ANSWERING, CONVERSING
from remote.shared import frames

BLOCKS = [pytest.param(block, id=f"{page.stem}:{block.line}") for page in PAGES for block in blocks_of(page)]
IN_PROSE = re.compile(r"`gpuctl ([a-z][^`]*)`")

PROMISE = re.compile(r"^- \*\*(.+?)\.\*\* ", re.MULTILINE)
FOLDERS = ("gpuctl", "provision", "remote", "inventories", "train", "tests", "tools", "docs", "bench")
DEVELOPER_PAGES = (
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "architecture.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
)
"""Their paths exist, except paths of the past: write these as `remote/old.py`."""
KEPT = {
    ("README.md", "Machines"): (
        "integration/test_clouds.py",
        "test_up_train_and_down_complete_on_fake_cloud",
    ),
    ("README.md", "Cost"): ("integration/test_clouds.py", "test_up_enforces_max_cost_and_records_ttl"),
    ("README.md", "Before the run"): (
        "integration/test_environment.py",
        "test_train_builds_environment_of_built_in_job_from_wheels",
    ),
    ("README.md", "The run"): (
        "integration/test_faults.py",
        "test_train_stops_all_ranks_and_shows_first_failed_rank",
    ),
    ("README.md", "After the run"): (
        "integration/test_resume.py",
        "test_resume_starts_run_from_checkpoint_of_earlier_run",
    ),
    ("clouds.md", "All or none"): (
        "integration/test_clouds.py",
        "test_up_removes_all_if_capacity_is_for_some_only",
    ),
    ("clouds.md", "Nothing lost, nothing twice"): (
        "integration/test_crash_sweep.py",
        "test_up_killed_at_each_call_can_be_rerun_or_removed",
    ),
    ("clouds.md", "Closed by default"): (
        "integration/test_clouds.py",
        "test_up_replaces_ssh_address_in_firewall_rules",
    ),
    ("clouds.md", "Time limits"): (
        "provision/oci/test_scheduled_end.py",
        "test_cloud_terminates_the_machines_with_every_computer_shut",
    ),
    ("clouds.md", "Guards that are armed"): (
        "integration/test_end_timers.py",
        "test_up_starts_a_timer_that_stands_and_shows_all_as_armed",
    ),
    ("clouds.md", "One TTL for the cluster"): (
        "provision/rented/test_provider.py",
        "test_up_refuses_changed_options_while_machines_live",
    ),
    ("clouds.md", "Unused machines"): (
        "integration/test_idle.py",
        "test_unused_cluster_ends_as_one_in_the_clouds_record",
    ),
    ("clouds.md", "Unused machines on OCI"): (
        "integration/test_idle.py",
        "test_reap_ends_unused_machines_of_oci_and_none_that_it_cannot_ask",
    ),
    ("clouds.md", "Cost limits"): ("integration/test_clouds.py", "test_up_enforces_max_cost_and_records_ttl"),
    ("clouds.md", "Find what is left"): (
        "integration/test_clouds.py",
        "test_reap_lists_and_removes_with_no_local_state",
    ),
    ("clouds.md", "One network for each region"): (
        "integration/test_clouds.py",
        "test_down_keeps_shared_network_until_last_cluster",
    ),
    ("clouds.md", "Private machines"): (
        "integration/test_clouds.py",
        "test_private_cluster_is_created_once_and_removed",
    ),
    ("clouds.md", "GPUs that work"): (
        "integration/test_gpu_machines.py",
        "test_up_on_oci_ends_with_working_gpus_whichever_image_there_is",
    ),
    ("checks.md", "Firewall"): (
        "integration/test_vm_hosts.py",
        "test_train_opens_firewall_and_down_closes_it",
    ),
    ("checks.md", "Interface"): (
        "remote/launchers/test_nccl.py",
        "test_nccl_variables_fit_cloud_gpu_and_rdma",
    ),
    ("checks.md", "Preflight"): (
        "integration/test_probe.py",
        "test_doctor_names_oci_firewall_and_working_fix",
    ),
    ("checks.md", "Fast networks"): (
        "remote/checks/test_preflight.py",
        "test_preflight_names_oracles_image_where_rdma_devices_are_missing",
    ),
    ("checks.md", "Transport"): (
        "integration/test_user_scripts.py",
        "test_nccl_transport_is_in_log_and_result",
    ),
}
"""A page's promise in a list → a test of it."""


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
    pages = [
        page.relative_to(ROOT / "docs") for page in (*PAGES[1:], *(ROOT / "docs" / "reference").glob("*.md"))
    ]
    assert [str(page) for page in pages if f'"{page}"' not in settings] == []


@pytest.mark.parametrize("page", DEVELOPER_PAGES, ids=lambda page: page.stem)
def test_paths_of_this_repository_in_developer_pages_exist(page: Path) -> None:
    ours = re.findall(rf"(?<!then )`((?:{'|'.join(FOLDERS)})/[^`\s*<]*)`", page.read_text())
    assert [path for path in ours if not (ROOT / path).exists()] == []


def test_architecture_page_lists_every_command_of_a_node_with_its_frames() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("## The protocol with a node")[2]
    rows = re.findall(r"^\| (`[^|]+) \| `([^`]+)\.py` \| ([^|]+\|[^|]+) \|$", section, re.MULTILINE)
    listed = {command: module for cell, module, _ in rows for command in re.findall(r"`(\w+)`", cell)}
    shown = {frame for *_, cells in rows for frame in re.findall(r"`(\w+)`", cells)}
    assert shown <= {value for name, value in vars(frames).items() if name.isupper()}
    commands = {**ANSWERING, **CONVERSING}
    assert listed == {command: module.replace(".", "/") for command, module in commands.items()}


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
    run = block.title or block.program
    assert block.language in ("console", "text") or run or "not run" in block.notes


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


def test_every_promise_in_a_list_has_a_test() -> None:
    names = {name for name, _ in KEPT}
    made = {
        (page.name, report)
        for page in PAGES
        if page.name in names
        for report in PROMISE.findall(page.read_text())
    }
    assert made == set(KEPT)
    for file, name in KEPT.values():
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{file} has no {name}"


def parsed(words: list[str]) -> None:
    """Parse a command line as gpuctl does, without running the command."""
    while words[0].startswith("-"):
        words = words[1 if words[0] in ("--json", "--yes", "--version") else 2 :]
    assert words[0] in root_help.COMMANDS, words
    command = group.get_command(click.Context(group), words[0])
    with group.make_context("gpuctl", [words[0]], resilient_parsing=True) as parent:
        try:
            command.make_context(words[0], words[1:], parent=parent)
        except click.exceptions.Exit as left:
            assert left.exit_code == 0
