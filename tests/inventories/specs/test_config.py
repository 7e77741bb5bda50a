"""The user's configuration: its keys, its mistakes, and changes of one line."""

from pathlib import Path

import pytest

from inventories.errors import InvalidInput
from inventories.specs.config import Config, read_config, with_value

TEXT = """# of the lab
max_hourly_usd: 40  # all of us
region: [eu-frankfurt-1, us-east-1]
ttl: 8h
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_config_has_its_values_and_sets_nothing_without_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    assert read_config(path) == Config()
    assert read_config(written(path, "# nothing yet\n")) == Config()
    config = read_config(written(path, TEXT))
    assert config == Config(max_hourly_usd=40.0, region=("eu-frankfurt-1", "us-east-1"), ttl_s=28800.0)
    assert config.limited
    assert not Config(ttl_s=28800.0).limited


def test_config_names_each_mistake_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "config.yaml", "max_hourly: 4\nttl: 8\nmax_usd_per_month: -1\n")
    with pytest.raises(InvalidInput) as error:
        read_config(path)
    lines = str(error.value).splitlines()
    assert lines[0].startswith(
        f"{path}:1: key 'max_hourly' is not known; did you mean 'max_hourly_usd'? Allowed:"
    )
    assert lines[1].startswith(f"{path}:2: key 'ttl': ")
    assert lines[2].startswith(f"{path}:3: key 'max_usd_per_month': Cost -1 can't be used")
    with pytest.raises(InvalidInput, match="it should be keys with values"):
        read_config(written(path, "- a\n"))


def test_a_change_leaves_the_other_lines_as_they_are() -> None:
    changed = with_value(TEXT, "ttl", "90m")
    assert changed == TEXT.replace("8h", "90m")
    assert with_value(changed, "ttl", None) == TEXT.replace("ttl: 8h\n", "")
    assert with_value("ttl: 8h", "idle", "30m") == "ttl: 8h\nidle: 30m\n"
    assert with_value("", "region", ["a-1", "b-1"]) == "region: [a-1, b-1]\n"
    assert with_value('"ttl" : 8h\n', "ttl", "9h") == "ttl: 9h\n"
    for text in ("? ttl\n: 8h\n", "{ttl: 8h}\n"):
        with pytest.raises(InvalidInput, match="not in one line"):
            with_value(text, "ttl", "9h")
    with pytest.raises(InvalidInput, match="not in one line"):
        with_value("region:\n  - a\n  - b\n", "region", "c")
