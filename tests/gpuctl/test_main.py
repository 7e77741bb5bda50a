"""Test the start of the program: answers that need no imports, and the modules imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuctl.command_line import root_help

ROOT = Path(__file__).parents[2]
HOSTILE = (
    "click.py",
    "gpuctl.yaml",
    "inventories.py",
    "json.py",
    "provision/__init__.py",
    "queue.py",
    "remote.py",
    "rich.py",
    "train.py",
)
STARTS = {
    "module": ["-m", "gpuctl"],
    # Same code as an installed console script.
    "script": ["-c", "import sys; from gpuctl.__main__ import main; sys.exit(main())"],
}
IMPORTED = """
import atexit, os, sys
atexit.register(lambda: os.write(2, ("\\nMODULES " + " ".join(sys.modules)).encode()))
from gpuctl.__main__ import main
sys.exit(main())
"""


def start(
    *words: str, how: str = "module", cwd: Path = ROOT, path: str | None = str(ROOT), **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | environment
    if path is not None:
        env["PYTHONPATH"] = path
    return subprocess.run(
        [sys.executable, *STARTS[how], *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Create a folder whose modules report their import."""
    for name in HOSTILE:
        file = tmp_path / "project" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("import os; os.write(2, b'HOSTILE'); raise SystemExit(66)")
    return tmp_path / "project"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["--no-color", "--help"]])
def test_help_options_and_no_arguments_print_same_overview(words: list[str]) -> None:
    done = start(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == root_help.text() + "\n"


def test_overview_lists_every_command_and_global_option() -> None:
    text = root_help.text()
    for word in (*root_help.COMMANDS, "--cluster", "--json", "--yes", "--verbose", "--no-color", "130"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 100


def test_overview_commands_exist_and_have_help() -> None:
    import importlib

    import click

    for name in root_help.COMMANDS:
        command = importlib.import_module(root_help.module_of(name)).command
        assert isinstance(command, click.Command), name
        assert command.help, name


def test_version_option_prints_version() -> None:
    done = start("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "gpuctl")
    assert start("--json", "--version").stdout == done.stdout


def test_help_exits_0_when_stdout_is_closed_by_reader() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gpuctl", "--help"],
            cwd=ROOT,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--help"], {"click", "rich", "typing", "dataclasses", "json", "re", "importlib.metadata"}),
        (["train", "--help"], {"rich", "psutil"}),
    ],
)
def test_help_imports_nothing_heavy(words: list[str], unwanted: set[str]) -> None:
    # -I: without the test environment's own path entries, and without an editable install's hooks.
    code = f"import sys; sys.path.append({str(ROOT)!r})\n"
    code += f"sys.path.append({str(Path(pytest.__file__).parents[1])!r})\n{IMPORTED}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    modules = set(done.stderr.rpartition("MODULES ")[2].split())
    assert "gpuctl.command_line.root_help" in modules
    assert not modules & (unwanted | {"torch", "paramiko", "asyncssh", "fabric", "invoke", "oci", "boto3"})


@pytest.mark.parametrize("manner", STARTS)
@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["completion", "bash"]])
def test_main_ignores_modules_in_current_folder(hostile: Path, manner: str, words: list[str]) -> None:
    # The current folder is first on sys.path with -m and -c, and again through PYTHONPATH.
    for path in (
        str(ROOT),
        os.pathsep.join([".", str(ROOT)]),
        os.pathsep.join([str(hostile), "", str(ROOT)]),
    ):
        done = start(*words, how=manner, cwd=hostile, path=path)
        assert done.returncode == 0, done.stderr
        assert "HOSTILE" not in done.stderr


def test_demote_user_folders_keeps_pythonpath_importable(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("FOUND = True")
    code = "import sys; from gpuctl.__main__ import demote_user_folders as demote; demote(); "
    code += f"import only_here; assert sys.path[-1] == {str(tmp_path)!r}, sys.path"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    subprocess.run([sys.executable, "-P", "-c", code], env=env, check=True, timeout=60)


def test_demote_prefers_own_packages_in_editable_install(hostile: Path) -> None:
    """An editable install finds gpuctl's packages by a hook that Python consults after `sys.path`."""
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "gpuctl", {str(ROOT / "gpuctl/__init__.py")!r}, submodule_search_locations=[{str(ROOT / "gpuctl")!r}]
)
sys.modules["gpuctl"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from gpuctl.__main__ import demote_user_folders as demote
sys.path[:] = [entry for entry in sys.path if entry != {str(ROOT)!r}]
demote()
import inventories, remote
assert remote.__file__.startswith({str(ROOT)!r}), remote
"""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=hostile, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_help_works_in_deleted_current_folder(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    env = os.environ | {"PYTHONPATH": str(ROOT), "GONE": str(folder)}
    code = "import os, sys; os.chdir(os.environ['GONE']); os.rmdir(os.environ['GONE'])\n"
    code += "from gpuctl.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, root_help.text() + "\n")


def test_queue_add_imports_neither_results_nor_clouds_nor_asyncio() -> None:
    names = ("gpuctl.commands.queue", "gpuctl.library.options", "gpuctl.workflow.jobs.queue_add")
    code = f"import {', '.join(names)}, remote.transport.ssh, sys; print(*sys.modules)\n"
    code += "from invoke import MockContext, Result; print(MockContext(run=Result('made')).run('ls').stdout)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    modules, mocked = done.stdout.splitlines()
    unused = {
        "asyncio",
        "rich",
        "provision.records",
        "unittest.mock",
        "provision.rented",
        "inventories.runs.result",
        "gpuctl.run_results",
        "gpuctl.scaling.measurements",
        "gpuctl.workflow.clusters.bill",
    }
    assert not unused & set(modules.split())
    assert mocked == "made"
