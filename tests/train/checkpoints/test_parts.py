"""Test a checkpoint in parts from one process: written, read, and refused after a change."""

import json
import os
import pickle

import pytest
import torch

from train.checkpoints import files, parts
from train.distributed.environment import DistributedEnvironment
from train.errors import BadCheckpoint
from train.options import Options
from train.strategies.strategy import Strategy

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def checkpoint(tmp_path, network_and_optimizer, write_parts):
    """A whole checkpoint."""
    return write_parts(tmp_path, 7, *network_and_optimizer())


def document_of(path):
    return json.loads(path.with_suffix(".json").read_text())


def test_parts_are_named_as_in_the_bare_model_and_listed_with_digests(checkpoint, network_and_optimizer):
    network, _ = network_and_optimizer()
    document = document_of(checkpoint)
    assert document["folder"] == "step-000007"
    assert set(document["files"]) == {".metadata", "__0_0.distcp", "rest.pt"}
    assert document["bytes"] == sum(file.stat().st_size for file in checkpoint.iterdir())
    assert files.problems(checkpoint.parent, document, files.files_of(document)) == []
    weights = parts.PartsReader(checkpoint, set(document["files"])).weights()
    assert weights.keys() == network.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in network.state_dict().items())
    assert files.load(checkpoint / "rest.pt") == {"steps": 7}


@pytest.mark.parametrize("whole", [False, True])
def test_parts_load_into_another_model_and_its_optimizer(checkpoint, network_and_optimizer, whole):
    """Also weight by weight, as for an engine that has no tensors for its parts."""
    strategy = Strategy(Options(), DistributedEnvironment(), torch.device("cpu"))
    strategy.reads_whole = whole
    network, optimizer = network_and_optimizer()
    other, its_optimizer = network_and_optimizer(seed=1)
    reader = parts.PartsReader(checkpoint, set(document_of(checkpoint)["files"]))
    reader.load(strategy, other, its_optimizer, {**its_optimizer.param_groups[0], "params": [], "lr": 0.5})
    assert all(torch.equal(other.state_dict()[name], value) for name, value in network.state_dict().items())
    for weight, loaded in zip(network.parameters(), other.parameters(), strict=True):
        assert all(
            torch.equal(its_optimizer.state[loaded][key], value)
            for key, value in optimizer.state[weight].items()
        )
    assert its_optimizer.param_groups[0]["lr"] == 0.5


def test_parts_of_other_weights_are_refused_before_any_is_loaded(checkpoint, strategy, network_and_optimizer):
    other, its_optimizer = network_and_optimizer(width=4)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    reader = parts.PartsReader(checkpoint, set(document_of(checkpoint)["files"]))
    with pytest.raises(ValueError, match=r"shape \(3, 2\) for \(4, 2\)"):
        reader.load(strategy, other, its_optimizer, its_optimizer.param_groups[0])
    assert all(torch.equal(other.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("harm", "wrong"), [("torn", "torn, with 10 of"), ("missing", "missing"), ("other", "damaged")]
)
def test_part_that_is_not_as_it_was_written_is_named(checkpoint, harm, wrong):
    part = checkpoint / "__0_0.distcp"
    content = part.read_bytes()
    part.write_bytes(content[:10] if harm == "torn" else content[::-1])
    if harm == "missing":
        part.unlink()
    document = document_of(checkpoint)
    [problem] = files.problems(checkpoint.parent, document, files.files_of(document))
    assert problem.startswith(f"step-000007/__0_0.distcp is {wrong}")


def test_checkpoint_without_its_document_does_not_count(checkpoint):
    checkpoint.with_suffix(".json").unlink()
    assert files.documents(checkpoint.parent) == []


def test_document_that_names_files_elsewhere_is_damaged(checkpoint):
    document = document_of(checkpoint)
    document["files"]["../step-000001.pt"] = document["files"][".metadata"]
    checkpoint.with_suffix(".json").write_text(json.dumps(document))
    assert files.documents(checkpoint.parent) == [("step-000007.pt", {})]


class Hostile:
    def __reduce__(self):
        return os.system, ("touch was-here",)


def test_description_that_names_code_is_refused_without_running_it(checkpoint, monkeypatch):
    monkeypatch.chdir(checkpoint)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(BadCheckpoint, match=r"it names posix\.system.*Nothing in it was run"):
        parts.PartsReader(checkpoint, {"__0_0.distcp"})
    assert not (checkpoint / "was-here").exists()


def test_description_of_files_that_are_not_listed_is_refused(checkpoint):
    with pytest.raises(BadCheckpoint, match="it is not of these files"):
        parts.PartsReader(checkpoint, {"__5_0.distcp"})


def test_prune_removes_parts_with_their_document(tmp_path, network_and_optimizer, write_parts):
    for step in (1, 2, 3):
        write_parts(tmp_path, step, *network_and_optimizer())
    files.path_of(tmp_path, 4).mkdir()  # one that a killed process had begun
    assert files.newest_names(tmp_path, 2, 3) == {"step-000002", "step-000003"}
    files.prune(tmp_path, files.newest_names(tmp_path, 2, 3))
    names = ["step-000002", "step-000002.json", "step-000003", "step-000003.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_save_that_fails_tells_why_and_leaves_no_document(tmp_path, strategy, network_and_optimizer):
    path = files.path_of(tmp_path, 7)
    path.mkdir()
    path.joinpath("__0_0.distcp").mkdir()  # nothing can be written under that name
    network, optimizer = network_and_optimizer()
    tensors = parts.tensors(strategy, network, optimizer)
    saving = parts.save(path, tensors, files.serialized({}), {"step": 7}, None)
    assert "Is a directory" in str(saving.exception())
    assert files.documents(tmp_path) == []
