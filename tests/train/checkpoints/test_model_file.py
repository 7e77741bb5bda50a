import pytest
import torch
from torch import nn

from train.checkpoints.files import save_model
from train.errors import NotWritten


def test_save_model_writes_a_loadable_state(tmp_path):
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    save_model(model.state_dict(), tmp_path / "artifacts" / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "artifacts" / "model.pt", weights_only=True))
    assert torch.equal(model.weight, other.weight)
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["model.pt"]


def test_save_model_replaces_an_older_file(tmp_path):
    path = tmp_path / "model.pt"
    path.write_text("old")
    save_model(nn.Linear(3, 2).state_dict(), path)
    assert set(torch.load(path, weights_only=True)) == {"weight", "bias"}


def test_save_model_failure_names_no_save_and_leaves_no_file(tmp_path):
    path = tmp_path / "model.pt"
    path.mkdir()
    with pytest.raises(NotWritten, match=r"model\.pt: .*--no-save"):
        save_model(nn.Linear(3, 2).state_dict(), path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
