"""DeepSpeed's configuration reaches the ranks among the options, wherever its file is."""

import json
import os
import re
from pathlib import Path

import pytest

from gpuctl.errors import Usage
from gpuctl.workflow.runs.request.engine_config import with_config
from gpuctl.workflow.runs.request.request import TrainRequest, check_built_in
from gpuctl.workflow.runs.strategy.fitting import max_that_fit

NAME = "--deepspeed-config"
CONFIG = {"zero_optimization": {"stage": 2}}
LINE = '{"zero_optimization":{"stage":2}}'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG, indent=4))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--engine", "deepspeed", NAME, "ds.json", "--lr", "1"), ("--engine", "deepspeed", NAME, LINE, "--lr", "1")),
        ((f"{NAME}=ds.json", "--lr", "1"), ("--lr", "1", f"{NAME}={LINE}")),
        ((NAME, "other.json", NAME, "ds.json"), (NAME, LINE, NAME, LINE)),
        ((NAME, "ds.json", NAME, "{}"), (NAME, "{}", NAME, "{}")),
        (("--lr", "1"), ("--lr", "1")),
    ],
)  # fmt: skip
def test_file_is_replaced_by_what_it_holds(
    project: Path, words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert with_config(TrainRequest(words=words, project=project)).words == expected


def test_scripts_keep_their_own_option_of_that_name(project: Path) -> None:
    script = TrainRequest(words=("my.py", NAME, "ds.json"), project=project)
    assert with_config(script) is script


def test_file_that_is_missing_or_no_json_is_refused(project: Path) -> None:
    (project / "bad.json").write_text("{'stage': 2}")
    with pytest.raises(Usage, match=r"--deepspeed-config bad\.json is no JSON: Expecting property name"):
        with_config(TrainRequest(words=(NAME, "bad.json"), project=project))
    with pytest.raises(Usage, match=r"--deepspeed-config nothere\.json can't be read: No such file"):
        with_config(TrainRequest(words=(NAME, "nothere.json"), project=project))


@pytest.mark.parametrize("engine", ["deepspeed", "torch"])
@pytest.mark.parametrize("key", ["comet", "Comet", "wandb", "my_tracker"])
def test_token_in_a_section_of_no_training_is_refused_before_it_is_an_option(
    project: Path, key: str, engine: str
) -> None:
    (project / "ds.json").write_text(json.dumps({**CONFIG, key: {"api_key": "s3cret"}}))
    with pytest.raises(Usage, match=f'--deepspeed-config has "{key}", ') as refused:
        with_config(TrainRequest(words=("--engine", engine, NAME, "ds.json"), project=project))
    assert "s3cret" not in str(refused.value)


def test_file_that_has_no_end_or_is_too_large_is_refused(project: Path) -> None:
    (project / "large.json").write_text(json.dumps({"optimizer": "x" * 65536}))
    os.mkfifo(project / "pipe")
    for name, sentence in {
        "/dev/zero": "is no regular file: give a JSON file",
        "pipe": "is no regular file: give a JSON file",
        ".": "is no regular file: give a JSON file",
        "large.json": "is larger than 64 KiB, which no configuration needs to be",
    }.items():
        with pytest.raises(Usage, match=f"--deepspeed-config {re.escape(name)} {sentence}"):
            with_config(TrainRequest(words=(NAME, name), project=project))


def test_file_that_grows_in_one_line_or_is_no_object_is_refused(project: Path) -> None:
    (project / "wide.json").write_text('{"optimizer": "' + "é" * 20000 + '"}', encoding="utf-8")
    (project / "list.json").write_text("[]")
    (project / "deep.json").write_text("[" * 60000)
    for name, sentence in {
        "wide": "is larger",
        "list": "is no JSON object",
        "deep": "JSON is too deep",
    }.items():
        with pytest.raises(Usage, match=sentence):
            with_config(TrainRequest(words=(NAME, f"{name}.json"), project=project))


def test_configuration_that_contradicts_an_option_is_refused_before_launch() -> None:
    with pytest.raises(
        Usage, match=r"says gradient_clipping 1, and --max-grad-norm says 2\.0: leave one of them"
    ):
        check_built_in(("--engine", "deepspeed", NAME, '{"gradient_clipping": 1}', "--max-grad-norm", "2"))


def test_batch_that_the_ranks_can_not_share_is_refused_before_they_start() -> None:
    words = ("--engine", "deepspeed", NAME, '{"train_batch_size": 64}')
    count, why = max_that_fit(TrainRequest(words=words), [3])
    assert (count, "64 can't be divided among 3 ranks. Give a multiple of 3" in why) == (0, True)
