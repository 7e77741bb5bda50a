import json
import os
import pickle
import re

import pytest
import torch

from train.checkpoints import files
from train.checkpoints.checkpointer import check_optimizer, check_position
from train.errors import BadCheckpoint, NotWritten


def save(folder, step, keep=2, **state):
    data = files.serialized({"weights": torch.ones(3), **state})
    return files.save(folder, data, step=step, keep=keep, epoch=1.0)


def newest(folder):
    """Return the newest whole checkpoint's name, and the problems of newer ones."""
    wrong = []
    for name, document in files.documents(folder):
        problems = files.problems(folder, document, files.files_of(document)) if document else [name]
        if not problems:
            return name, wrong
        wrong += problems
    return None, wrong


def test_checkpoint_save_keeps_the_newest_and_newest_finds_it(tmp_path):
    for step in (9, 10, 1_000_000):
        path = save(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000010.json",
        "step-000010.pt",
        "step-1000000.json",
        "step-1000000.pt",
    ]
    assert newest(tmp_path) == (path.name, [])
    about = json.loads(path.with_suffix(".json").read_text())
    assert (about["file"], about["step"], about["epoch"]) == ("step-1000000.pt", 1_000_000, 1.0)
    assert about["bytes"] == path.stat().st_size
    assert torch.equal(files.load(path)["weights"], torch.ones(3))


def test_checkpoint_save_removes_checkpoints_of_later_steps(tmp_path):
    save(tmp_path, 100)
    save(tmp_path, 200).write_bytes(b"damaged")
    path = save(tmp_path, 150, keep=1)
    assert newest(tmp_path) == (path.name, [])
    assert [path.name for path in tmp_path.glob("*.pt")] == ["step-000150.pt"]


def test_checkpoint_newest_is_none_without_a_folder(tmp_path):
    assert newest(tmp_path / "none") == (None, [])


@pytest.mark.parametrize(
    ("harm", "wrong"),
    [
        ("torn", r"step-000002\.pt is torn, with \d+ of \d+ bytes"),
        ("other", r"step-000002\.pt is damaged"),
        ("gone", r"step-000002\.pt is missing"),
        ("no-json", None),
        ("torn-json", r"step-000002\.pt"),
        ("list", r"step-000002\.pt"),
        ("elsewhere", r"step-000002\.pt"),
    ],
)
def test_checkpoint_newest_skips_incomplete_or_damaged_ones(tmp_path, harm, wrong):
    good, bad = save(tmp_path, 1), save(tmp_path, 2)
    document = bad.with_suffix(".json")
    if harm == "torn":
        bad.write_bytes(bad.read_bytes()[:-1])
    elif harm == "other":
        bad.write_bytes(bad.read_bytes()[::-1])
    elif harm in ("gone", "no-json"):
        (bad if harm == "gone" else document).unlink()
    else:
        document.write_text({"torn-json": '{"file": ', "list": "[]", "elsewhere": '{"file": "a"}'}[harm])
    # Without its second file one was only begun.
    name, problems = newest(tmp_path)
    assert name == good.name
    assert len(problems) == (0 if wrong is None else 1)
    assert all(re.fullmatch(wrong, problem) for problem in problems)


def test_checkpoint_save_failure_keeps_the_old_ones(tmp_path):
    folder = tmp_path / "checkpoints"
    good = save(folder, 1)
    folder.joinpath("step-000002.pt.part").mkdir()  # nothing can be written under that name
    with pytest.raises(
        NotWritten, match=r"step-000002\.pt can't be written: Is a directory.*--checkpoint-every 0"
    ):
        save(folder, 2)
    assert newest(folder) == (good.name, [])


class Hostile:
    def __reduce__(self):
        return os.system, ("touch was-here",)


def test_checkpoint_load_refuses_hostile_pickles_without_running_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "step-000001.pt"
    torch.save({"weights": Hostile()}, path)
    with pytest.raises(BadCheckpoint, match=r"can't be read .* Nothing in it was run"):
        files.load(path)
    path.write_bytes(pickle.dumps(Hostile(), protocol=2))
    with pytest.raises(BadCheckpoint, match=r"can't be read .* Nothing in it was run"):
        files.load(path)
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"no checkpoint"])
def test_checkpoint_load_refuses_a_file_that_is_no_checkpoint(tmp_path, content):
    path = tmp_path / "step-000001.pt"
    path.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"step-000001\.pt can't be read"):
        files.load(path)


def test_checkpoint_load_refuses_another_torch_file(tmp_path):
    path = tmp_path / "step-000001.pt"
    torch.save(torch.ones(2), path)
    with pytest.raises(BadCheckpoint, match="is not one of this job"):
        files.load(path)


def test_checkpoint_save_removes_files_of_a_killed_process(tmp_path):
    """Killed between a checkpoint's two files, within one, and between the removal of two."""
    for name in ("step-000001.pt", "step-000002.pt.part", "step-000003.json.part"):
        (tmp_path / name).write_bytes(b"left")
    for step in (4, 5, 6):
        save(tmp_path, step)
    names = [f"step-00000{step}.{kind}" for step in (5, 6) for kind in ("json", "pt")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


POSITION = {
    "epoch": 2,
    "consumed": 5,
    "steps": 3,
    "samples": 9,
    "taken": 5,
    "world_size": 1,
    "seconds": 1.5,
    "rng": [{}],
    "plateau": {"best": None},
    "seen": [{"samples": 1, "loss_sum": 0.5, "states": {}}],
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": "2"},
        {"epoch": -5},
        {"epoch": True},
        {"consumed": 10},
        {"consumed": -3},
        {"seconds": "1"},
        {"seconds": -1.0},
        {"world_size": 0},
        {"rng": []},
        {"plateau": {"best": "1"}},
        {"seen": [{"samples": 1.5, "loss_sum": 0.5}]},
    ],
)
def test_check_position_refuses_impossible_values(wrong):
    check_position(POSITION, samples=10)
    with pytest.raises(ValueError, match=f"its ({next(iter(wrong))}|metrics)|random numbers"):
        check_position(POSITION | wrong, samples=10)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {0: {"exp_avg": torch.zeros(3, 2)}},
        {0: {"exp_avg": torch.zeros(2, 3)}, 2: {"exp_avg": torch.zeros(2, 3)}},
    ],
)
def test_check_optimizer_refuses_state_of_other_weights(state):
    shapes = [(2, 3), (4,)]
    right = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2, 3)}
    check_optimizer({"state": {0: right}}, shapes, steps=3)
    check_optimizer({"state": {}}, shapes, steps=0)
    with pytest.raises(ValueError, match="its optimizer"):
        check_optimizer({"state": state}, shapes, steps=3)
