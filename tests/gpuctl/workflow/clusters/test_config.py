"""`gpuctl config`: show, set and unset; and the targets of notifications in the file."""

import json
from pathlib import Path

import pytest

from gpuctl.app import App
from gpuctl.command_line import cli
from gpuctl.errors import Usage
from gpuctl.workflow.machines.notify import default_targets
from inventories.specs.config import Config


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "config.yaml"


def test_config_sets_shows_and_unsets_values(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "set", "max_hourly_usd", "40"]) == 0
    assert cli.main(["config", "set", "region", "eu-frankfurt-1", "us-east-1"]) == 0
    assert cli.main(["config", "set", "ttl", "8h"]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert App().config == Config(max_hourly_usd=40.0, region=("eu-frankfurt-1", "us-east-1"), ttl_s=28800.0)
    capsys.readouterr()
    assert cli.main(["config", "show", "ttl"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()][:2] == [
        ["key", "value"],
        ["ttl", "8h"],
    ]
    assert cli.main(["config", "show", "ttl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"] == {"ttl": "8h"}
    assert cli.main(["config", "unset", "ttl"]) == 0
    capsys.readouterr()
    assert cli.main(["config", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert (values["max_hourly_usd"], values["region"], values["ttl"]) == (
        40,
        ["eu-frankfurt-1", "us-east-1"],
        None,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("set max_hourly 4", "There is no key 'max_hourly'; did you mean 'max_hourly_usd'?"),
        ("set max_hourly_usd lots", "max_hourly_usd: Cost 'lots' can't be used"),
        ("set max_hourly_usd null", "max_hourly_usd: a value is empty. `gpuctl config unset max_hourly_usd`"),
        ("set ttl 8", "For example: ttl 8h"),
        ("set ttl", "Write gpuctl config set KEY VALUE."),
        ("unset ttl 8h", "Write gpuctl config unset KEY."),
        ("show ttl 8h", "To change a value: gpuctl config set ttl VALUE."),
        ("show ttll", "There is no key 'ttll'; did you mean 'ttl'?"),
        ("set ttl 5s", "A ttl of 5s ends before"),
        ("set notify fax:1", "notify: 'fax:…' is no target: "),
    ],
)
def test_config_refuses_what_a_later_command_would(
    path: Path, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", *words.split()]) == 2
    assert message in capsys.readouterr().err
    assert not path.exists()


def test_an_empty_variable_removes_no_limit(path: Path) -> None:
    assert cli.main(["config", "set", "max_hourly_usd", "40"]) == 0
    assert cli.main(["config", "set", "max_hourly_usd", ""]) == 2
    assert App().config.max_hourly_usd == 40.0


def test_targets_of_notifications_are_secrets(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["config", "set", "notify", "ntfy:nobody-guesses-this"])
    cli.main(["config", "--json"])
    printed = capsys.readouterr()
    assert "nobody-guesses" not in printed.out + printed.err
    assert default_targets(App()) == ("ntfy:nobody-guesses-this",)
    path.chmod(0o644)
    with pytest.raises(Usage, match="others can read this file"):
        default_targets(App())


def test_wrong_target_in_the_file_is_a_sentence(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.parent.mkdir()
    path.write_text("notify: foo\n")
    for words in (["config"], ["config", "--json"]):
        assert cli.main(words) == 2
        assert "config.yaml: notify: " in capsys.readouterr().err


def test_change_follows_a_link_to_the_file(path: Path) -> None:
    path.parent.mkdir()
    file = path.parent.parent / "dotfiles.yaml"
    file.write_text("ttl: 8h\n")
    path.symlink_to(file)
    assert cli.main(["config", "set", "max_hourly_usd", "40"]) == 0
    assert path.is_symlink()
    assert App().config == Config(max_hourly_usd=40.0, ttl_s=28800.0)
