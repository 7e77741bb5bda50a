"""What is typed for `up` and can't be meant: a sentence and status 2, before anything is asked of a cloud."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuctl import cli

Up = Callable[..., tuple[int, str, str]]


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Up:
    """`gpuctl up --dry-run` in this process, with a home of its own and no account; status, stdout, stderr."""
    for name in os.environ:
        if name.startswith(("OCI_", "AWS_", "GPUCTL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        status = cli.main(["up", *words, "--dry-run", "--ssh-cidr", "203.0.113.7/32"])
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize(("shape", "file"), [("VM.GPU.A10.2", ".oci/config"), ("g5.12xlarge", ".aws/config")])
def test_up_refuses_a_profile_that_is_not_there_and_outlines_without_an_account(
    up: Up, tmp_path: Path, shape: str, file: str
) -> None:
    assert up("--shape", shape)[0] == 0
    assert up("--shape", shape, "--profile", "nope")[0] == 2
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text("[DEFAULT]\nregion = us-east-1\n")
    status, out, err = up("--shape", shape, "--profile", "nope", "--json")
    assert status == 2
    assert json.loads(out)["error"]["type"] == "UnknownProfile"
    assert "no profile 'nope'" in err
    (tmp_path / "spec.yaml").write_text(f"shape: {shape}\nprofile: nope\n")
    assert up("-f", "spec.yaml")[0] == 2
