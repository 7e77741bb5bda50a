"""The meaning of the words after `gpuctl train`."""

from pathlib import Path
from typing import Literal, get_args

import pytest
from support import a_machine, an_inventory

from gpuctl.errors import Failed, Usage
from gpuctl.workflow.jobs.advise import compared
from gpuctl.workflow.runs.prepare import expected_gpus
from gpuctl.workflow.runs.request.ask_built_in import Question, answer_in, ask_built_in
from gpuctl.workflow.runs.request.request import TrainRequest, check_together, home_note
from gpuctl.workflow.runs.strategy.ask import ask
from gpuctl.workflow.runs.strategy.division import division_of
from gpuctl.workflow.runs.strategy.fitting import max_that_fit
from train.ask import QUESTIONS


@pytest.mark.parametrize("provider", ["local", "hosts", "aws"])
@pytest.mark.parametrize("form", [("--data-dir", "{}"), ("--data-dir={}",), ("--data", "{}")])
def test_home_note_warns_of_home_expanded_by_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, form: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ("--epochs", "1", *(word.format(tmp_path / "sets" / "flowers") for word in form))
    option = form[0].partition("=")[0]
    note = (
        f"note: {option} {tmp_path}/sets/flowers is in the home of this computer. For a folder in the nodes' "
        f"homes, put it in quotes, which keep the shell from replacing it: {option} '~/sets/flowers'"
    )
    assert home_note(words, provider) == note
    (tmp_path / "sets" / "flowers").mkdir(parents=True)
    assert home_note(words, provider) == (None if provider == "local" else note), (
        "local hosts see this one, too"
    )


@pytest.mark.parametrize("words", [(), ("--data-dir",), ("--data-dir", "/data"), ("--data-dir", "~/sets")])
def test_home_note_is_none_for_other_folders(words: tuple[str, ...]) -> None:
    assert home_note(words, "aws") is None


@pytest.mark.parametrize(
    ("settings", "on_cpu", "job_words", "rank_env"),
    [
        ({}, False, (), {}),
        ({"device": "auto"}, False, ("--device", "auto"), {}),
        ({"device": "cpu", "words": ("--epochs", "1")}, True, ("--device", "cpu", "--epochs", "1"), {}),
        ({"words": ("--device", "cpu")}, True, ("--device", "cpu"), {}),
        ({"words": ("--device=cpu",), "device": "cpu"}, True, ("--device=cpu",), {}),
        ({"env": {"CUDA_VISIBLE_DEVICES": ""}}, True, ("--device", "cpu"), {"CUDA_VISIBLE_DEVICES": ""}),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, False, (), {"CUDA_VISIBLE_DEVICES": "0"}),
    ],
)
def test_train_request_passes_device_to_built_in_job(
    settings: dict[str, object], on_cpu: bool, job_words: tuple[str, ...], rank_env: dict[str, str]
) -> None:
    request = TrainRequest(**settings)  # type: ignore[arg-type]
    assert (request.on_cpu, request.job_words, dict(request.rank_env)) == (on_cpu, job_words, rank_env)


@pytest.mark.parametrize("named", [{"words": ("my.py", "--device", "cuda")}, {"module": "pkg.mod"}])
def test_train_request_hides_gpus_from_scripts_on_cpu(named: dict[str, object]) -> None:
    with_gpus = TrainRequest(env={"A": "1"}, **named)  # type: ignore[arg-type]
    assert (with_gpus.on_cpu, dict(with_gpus.rank_env)) == (False, {"A": "1"})
    request = TrainRequest(device="cpu", env={"A": "1"}, **named)  # type: ignore[arg-type]
    assert (request.on_cpu, dict(request.rank_env)) == (True, {"A": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert request.options().device == "cpu"
    assert request.options().env == ("A",), "the run's record asks for no value that gpuctl sets itself"
    check_together(request)


@pytest.mark.parametrize(("device", "word"), [("cpu", "cuda"), ("cpu", "auto"), ("auto", "cpu")])
def test_check_together_refuses_contradicting_devices(device: Literal["cpu", "auto"], word: str) -> None:
    with pytest.raises(Usage, match=f"--device {device} and --device {word} after -- contradict each other"):
        check_together(TrainRequest(device=device, words=("--device", word)))


@pytest.mark.parametrize(
    ("provider", "shape", "had", "expected"),
    [
        ("oci", "VM.GPU.A10.2", 0, 2),
        ("aws", "g5.12xlarge", None, 4),
        ("oci", "VM.Standard.E5.Flex", None, 0),
        ("hosts", None, 3, 3),
        ("local", None, None, 0),
    ],
)
def test_expected_gpus_come_from_shape_or_inventory(
    provider: str, shape: str | None, had: int | None, expected: int
) -> None:
    machine = a_machine(name="a", host="h", private_ip="10.0.0.1", gpus=had)
    inventory = an_inventory(cluster="c", provider=provider, shape=shape, machines=(machine,))
    gpus = expected_gpus(inventory)
    assert (dict(gpus.gpus), gpus.local) == ({"a": expected}, provider == "local")
    assert expected_gpus(inventory, on_cpu=True).gpus == {}


@pytest.mark.parametrize(
    ("printed", "answer"),
    [
        ('{"reason": null}', {"reason": None}),
        ('a library says\n{"reason": null}\n', {"reason": None}),
        ("a library says\n", '"a library says"'),
        ('{"reason": null}\n7\n', '"7"'),
        ('{"reason": null}\n[]\n', '"[]"'),
        ("", "nothing"),
    ],
)
def test_answer_is_the_last_line(printed: str, answer: object) -> None:
    if isinstance(answer, dict):
        assert answer_in(printed, dict) == answer
        return
    with pytest.raises(ValueError, match="what was printed last is no answer: ") as refused:
        answer_in(printed, dict)
    assert str(refused.value).endswith(f": {answer}")


def test_job_answers_every_question() -> None:
    assert set(get_args(Question)) == set(QUESTIONS)
    assert answer_in(ask_built_in("refusals", ("--tp", "2"), [[2], [3]]).stdout, list)[0] is None
    with pytest.raises(Usage, match="--modle"):
        ask_built_in("check", ("--modle", "mlp"))
    with pytest.raises(Usage, match="which the job does not know"):
        ask_built_in("keys", (), {"zero": 1})


ROW = {"count": 2, "gpus": 1, "micro_batch": 4, "words": ["--model", "gpt-10m"]}
NO_ANSWER = 'what was printed last is no answer: "bye"'


def test_libraries_that_print_do_not_hide_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries print before the answer, without an end of line. A last line that is a sentence is no answer."""
    lines_of = (
        "import atexit, os, sys",
        "sys.modules['torch'] = None",
        "print('a library says', end='')",
        "if 'LAST' in os.environ: atexit.register(print, 'bye')",
    )
    (tmp_path / "sitecustomize.py").write_text("\n".join(lines_of))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    request = TrainRequest(words=("--model", "gpt-10m", "--strategy", "fsdp"))
    assert division_of(request, [2, 2]) == {"reason": "torch is not installed on this computer"}
    assert max_that_fit(request, [2, 2]) == (2, "")
    assert compared(ROW, 256) == "memory not checked: torch is not installed here"
    assert ask(request.words, []).rows == []
    monkeypatch.setenv("LAST", "1")
    assert division_of(request, [2, 2]) == {"reason": f"torch looked at the network, and {NO_ANSWER}"}
    assert compared(ROW, 256) == f"memory not checked: {NO_ANSWER}"
    with pytest.raises(Usage, match=r"its options fit: .*no answer"):
        max_that_fit(request, [2, 2])
    with pytest.raises(Failed, match=f"could not be asked: {NO_ANSWER}"):
        ask(request.words, [])
