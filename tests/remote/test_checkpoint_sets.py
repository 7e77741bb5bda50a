"""Test which files form one checkpoint of several ranks' parts, and which parts are missing."""

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from remote.shared.checkpoint_files import describe_script
from remote.shared.checkpoint_sets import missing_parts, named_parts, ranks_of, sets_in

ZERO = "run/global_step20/bf16_zero_pp_rank_{}_mp_rank_{:02d}_optim_states.pt"


@pytest.mark.parametrize(
    ("folder", "names", "extra"),
    [
        ("ckpt", [".metadata", "__0_0.distcp", "__1_0.distcp"], ["last.pt"]),
        ("out/checkpoint-20", ["pytorch_model_fsdp_0/.metadata", "trainer_state.json"], ["out/checkpoint-9/a.bin"]),
        ("out/checkpoint-20", ["rng_state_0.pth", "model.safetensors"], ["out/config.json"]),
        ("logs/epoch=0-step=10.ckpt", [".metadata", "__0_0.distcp", "meta.pt"], ["logs/metrics.csv"]),
        ("ds/global_step10", ["zero_pp_rank_0_mp_rank_00_optim_states.pt", "x/config.json"], ["ds/latest"]),
        ("iter_0000010", ["mp_rank_00_001/model_optim_rng.pt"], ["latest_checkpointed_iteration.txt"]),
        ("iter_0000010", [".metadata", "common.pt", "__0_1.distcp"], []),
        (".", [".metadata", "__0_0.distcp"], ["train.csv", "data/part-0"]),
    ],
)  # fmt: skip
def test_parts_of_known_layouts_are_one_set(folder: str, names: list[str], extra: list[str]) -> None:
    members = sorted(names if folder == "." else [f"{folder}/{name}" for name in names])
    assert sets_in([*members, *extra]) == {folder: members}


def test_metadata_names_the_parts_that_torch_wrote(tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    dcp.save({"a": torch.ones(3)}, checkpoint_id=tmp_path, no_dist=True)
    assert named_parts(tmp_path / ".metadata") == ["__0_0.distcp"]
    files = dict.fromkeys([".metadata", "__0_0.distcp"], tmp_path)
    assert missing_parts(files, (), 1) == []
    assert missing_parts({".metadata": tmp_path}, (), 1) == ["__0_0.distcp"]
    assert missing_parts({"__0_0.distcp": tmp_path}, (), 1) == [], "a save that was not completed"


def test_deepspeeds_parts_are_those_of_all_ranks(tmp_path: Path) -> None:
    every = [ZERO.format(data, model) for data in range(2) for model in range(2)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "latest").write_text("global_step20\n")
    files = dict.fromkeys(["run/latest", *every[:3]], tmp_path)
    assert missing_parts(files, every, 4) == every[3:]
    assert missing_parts(dict.fromkeys(["run/latest", *every], tmp_path), every, 4) == []
    assert missing_parts(files, (), 8) == [], "an earlier run of another size wrote them"
    (tmp_path / "run" / "latest").write_text("global_step10")
    assert missing_parts(files, every, 4) == [], "a save that was not completed"
    result = describe_script({"run/latest": tmp_path}, (), 1)
    assert result["newest"] == "run/latest"


def test_ranks_are_read_of_names() -> None:
    assert ranks_of(["a/__3_0.distcp", ZERO.format(1, 0)]) == [1, 3]
    assert ranks_of([ZERO.format(1, 0), ZERO.format(1, 1)]) == [], (
        "ranks that divide the model are counted, too"
    )
