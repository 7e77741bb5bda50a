"""The weights of the newest whole checkpoint as a file."""

import json
import shutil
import sys

import pytest
import torch

from train.checkpoints.export import export, main
from train.errors import BadCheckpoint
from train.models.gpt import assemble
from train.models.gpt_sizes import GPTSize

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_export_writes_the_weights_of_a_checkpoint_in_parts(
    tmp_path, suffix, network_and_optimizer, write_parts
):
    if suffix == ".safetensors":
        safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    network, optimizer = network_and_optimizer()
    write_parts(tmp_path / "checkpoints", 7, network, optimizer)
    target = tmp_path / "out" / f"model{suffix}"
    summary = export(tmp_path / "checkpoints", target)
    read = torch.load(target, weights_only=True) if suffix == ".pt" else safetensors.load_file(target)
    assert read.keys() == network.state_dict().keys()
    assert all(torch.equal(read[name], value) for name, value in network.state_dict().items())
    assert (summary["checkpoint"], summary["tensors"], summary["left_out"]) == ("step-000007", len(read), [])
    assert summary["bytes"] == target.stat().st_size
    assert summary["parameters"] == sum(weight.numel() for weight in network.parameters())


@pytest.mark.parametrize("in_parts", [True, False], ids=["in parts", "whole"])
def test_export_counts_a_tied_weight_once(tmp_path, in_parts, write_parts, write_whole):
    torch.manual_seed(0)
    network = assemble(7, GPTSize(layers=1, heads=1, width=4, context=8, lr=0.1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    (write_parts if in_parts else write_whole)(tmp_path, 1, network, optimizer)
    summary = export(tmp_path, tmp_path / "model.pt")
    assert summary["parameters"] == sum(weight.numel() for weight in network.parameters())
    read = torch.load(tmp_path / "model.pt", weights_only=True)
    assert (summary["tensors"], len(read)) == (len(network.state_dict()),) * 2
    assert read["head.weight"].data_ptr() == read["embedding.token.weight"].data_ptr()


def test_export_leaves_out_a_torn_checkpoint_and_says_so(tmp_path, network_and_optimizer, write_parts):
    for step in (7, 8):
        write_parts(tmp_path, step, *network_and_optimizer())
    (tmp_path / "step-000008" / "__0_0.distcp").unlink()
    summary = export(tmp_path, tmp_path / "model.pt")
    assert summary["checkpoint"] == "step-000007"
    assert summary["left_out"] == ["step-000008/__0_0.distcp is missing"]
    shutil.rmtree(tmp_path / "step-000007")
    with pytest.raises(BadCheckpoint, match=r"There is no whole checkpoint: step-000008/.* is missing; step"):
        export(tmp_path, tmp_path / "again.pt")
    assert not (tmp_path / "again.pt").exists()


def test_export_says_what_to_install(tmp_path, monkeypatch, capsys, network_and_optimizer, write_parts):
    write_parts(tmp_path / "checkpoints", 4, *network_and_optimizer())
    target = tmp_path / "model.safetensors"
    monkeypatch.setattr(sys, "argv", ["export", str(tmp_path / "checkpoints"), str(target)])
    monkeypatch.setitem(sys.modules, "safetensors", None)  # as where it is not installed
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert main() == 1
    error = capsys.readouterr().err
    assert "has no package safetensors. Install it: " in error
    assert "or name a file that ends in .pt." in error
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_export_prints_what_it_wrote(tmp_path, monkeypatch, capsys, network_and_optimizer, write_parts):
    write_parts(tmp_path / "checkpoints", 4, *network_and_optimizer())
    monkeypatch.setattr(sys, "argv", ["export", str(tmp_path / "checkpoints"), str(tmp_path / "model.pt")])
    assert main() == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == "step-000004"
