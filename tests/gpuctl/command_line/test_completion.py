"""Shell completion, in the shells themselves where they are installed."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import a_machine, an_inventory
from terminal import ROOT

from gpuctl.command_line import root_help
from gpuctl.command_line.cli import group
from gpuctl.commands.completion import script_for
from inventories.disk.store import Store
from inventories.machine import Inventory


def complete(line: str, home: Path) -> tuple[list[str], str]:
    """Return the completions at the end of the line, and the names of the imported modules."""
    words = line.split(" ")
    code = "import sys\nsys.argv[1:] = []\nfrom gpuctl.__main__ import main\ntry:\n    main()\n"
    code += "finally:\n    sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "GPUCTL_HOME": str(home),
            "_GPUCTL_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    return [word.partition(",")[2] for word in done.stdout.splitlines() if word], done.stderr


def test_completion_offers_commands_without_importing_them(tmp_path: Path) -> None:
    offered, modules = complete("gpuctl ", tmp_path)
    assert offered == list(root_help.COMMANDS)
    assert "gpuctl.commands." not in modules
    assert complete("gpuctl s", tmp_path)[0] == ["status", "shapes", "stop", "ssh", "ssh-config"]


def test_completion_offers_options(tmp_path: Path) -> None:
    assert "--cluster" in complete("gpuctl --", tmp_path)[0]
    offered, _ = complete("gpuctl completion --", tmp_path)
    assert {"--json", "--help"} <= set(offered)
    assert "--cluster" not in offered, "it is about no cluster"
    assert complete("gpuctl completion z", tmp_path)[0] == ["zsh"]


def test_completion_offers_clusters(tmp_path: Path) -> None:
    for name in ("blue", "black", "red"):
        Store(tmp_path).cluster(name).save(
            Inventory(cluster=name, provider="local", created_at="2026-11-21T05:46:25+00:00", machines=())
        )
    assert complete("gpuctl down --cluster bl", tmp_path)[0] == ["black", "blue"]
    assert complete("gpuctl --cluster r", tmp_path)[0] == ["red"]
    assert complete("gpuctl advise --cl", tmp_path)[0] == ["--cluster"]
    assert complete("gpuctl advise --cluster r", tmp_path)[0] == ["red"]


def test_completion_offers_runs_latest_first(tmp_path: Path) -> None:
    runs = ["20261121-054625-3fa9", "20261121-054627-1c22", "20261122-010000-9bfd"]
    for run in runs:
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "run.json").touch()
    (tmp_path / "runs" / runs[0] / "run.json").write_text('{"options": {"name": "warmup-fix"}}')
    (tmp_path / "runs" / "20261122-020000-0000").mkdir()  # it was never launched
    for line in ("logs ", "stop ", "results ", f"results {runs[0]} ", "train --resume-from "):
        offered, modules = complete(f"gpuctl {line}", tmp_path)
        assert offered == [*runs[::-1], "warmup-fix"], line
        assert not {"rich", "paramiko", "gpuctl.workflow.runs.runs", "inventories.runs.run"} & set(
            modules.split()
        )
    assert complete("gpuctl results 20261121", tmp_path)[0] == runs[1::-1]


def test_completion_offers_nodes_of_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cluster in ("default", "red"):
        machine = a_machine(name=f"{cluster}-0")
        Store(tmp_path).cluster(cluster).save(
            an_inventory(
                cluster=cluster, machines=(machine, replace(machine, name=f"{cluster}-1", rank=1, port=23))
            )
        )
    offered, modules = complete("gpuctl ssh ", tmp_path)
    assert offered == ["default-0", "default-1"]
    assert not {"rich", "paramiko"} & set(modules.split())
    for command in ("exec", "push", "pull", "top"):
        assert complete(f"gpuctl {command} --cluster red --rank ", tmp_path)[0] == ["red-0", "red-1"]
    assert complete("gpuctl --cluster red ssh red-1", tmp_path)[0] == ["red-1"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpuctl.yaml").write_text("cluster: red")
    assert complete("gpuctl ssh ", tmp_path)[0] == ["red-0", "red-1"], "the project's cluster"


def test_completion_offers_the_tasks_of_the_fabfile_and_runs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "fabfile.py").write_text(
        "raise SystemExit('it was run')\n@task\ndef who_is(c):\n    'Say it.'\n\n@fabric.task(aliases=['x'])\n"
        "def deploy(c):\n    pass\n\ndef helper():\n    pass\n"
    )
    monkeypatch.chdir(tmp_path / "below")
    offered, modules = complete("gpuctl fab ", tmp_path)
    assert offered == ["who-is", "deploy"]
    assert complete("gpuctl fab who-is dep", tmp_path)[0] == ["deploy"]
    assert not {"rich", "paramiko", "fabric", "invoke"} & set(modules.split())


def test_completion_offers_providers_and_shapes(tmp_path: Path) -> None:
    offered, modules = complete("gpuctl up --provider ", tmp_path)
    assert offered == ["local", "hosts", "kubernetes", "oci", "aws", "eks", "oke"]
    for command in ("doctor", "reap"):
        assert complete(f"gpuctl {command} --provider ", tmp_path)[0] == ["oci", "aws", "eks", "oke"]
    shapes, more = complete("gpuctl up --shape VM.GPU.A10", tmp_path)
    assert shapes == ["VM.GPU.A10.1", "VM.GPU.A10.2"]
    assert complete("gpuctl doctor --shape p3.2", tmp_path)[0] == ["p3.2xlarge"]
    assert complete("gpuctl up --provider oci --shape p3", tmp_path)[0] == []
    heavy = {"rich", "paramiko", "oci", "boto3", "gpuctl.workflow.clusters.up", "provision.rented.provider"}
    assert not heavy & set(f"{modules} {more}".split())


def test_completion_offers_nothing_for_unreadable_cluster(tmp_path: Path) -> None:
    assert complete("gpuctl ssh ", tmp_path)[0] == []
    cluster = Store(tmp_path).cluster("default")
    cluster.make()
    cluster.inventory_path.write_text("all: [")
    offered, output = complete("gpuctl ssh ", tmp_path)
    assert offered == []
    assert output.startswith("sys ")
    assert complete("gpuctl ssh --cluster ../x ", tmp_path)[0] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_parse_in_their_shells(shell: str) -> None:
    result = CliRunner().invoke(group, ["completion", shell])
    assert result.exit_code == 0
    assert result.stdout.strip() == script_for(shell).strip()
    assert "_GPUCTL_COMPLETE" in result.stdout
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([program, "-n"], input=result.stdout, text=True, check=True, timeout=60)


def test_completion_works_in_bash(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    start = tmp_path / "gpuctl"
    start.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuctl "$@"\n')
    start.chmod(0o700)
    script = """
eval "$(gpuctl completion bash)"
COMP_WORDS=(gpuctl comp); COMP_CWORD=1
_gpuctl_completion gpuctl
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        [bash, "--norc", "-c", script],
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("completion\n", "")


def test_completion_refuses_unknown_shell() -> None:
    from gpuctl.command_line import cli

    assert cli.main(["completion", "tcsh"]) == 2
