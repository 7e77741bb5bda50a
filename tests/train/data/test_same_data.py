"""Ranks whose nodes have different files fail before any training."""

import pytest
from image_files import write_picture

from train.data.load import load_dataset
from train.data.same_data import compare, summarize
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData
from train.options import Options


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUCTL_DATA_DIR", str(tmp_path / "cache"))


def text(tmp_path, node, content):
    path = tmp_path / node / "book.txt"
    path.parent.mkdir()
    path.write_text(content)
    options = Options(model="gpt-10m", dataset="text", data_dir=str(path), seq_len=4)
    return summarize(load_dataset(options, DistributedEnvironment()))


def pictures(tmp_path, node, *names):
    for name in names:
        write_picture(tmp_path / node / "train" / name, color=(255, 0, 0), size=(8, 8))
    write_picture(tmp_path / node / "val" / "a" / "0.png", color=(0, 0, 0), size=(8, 8))
    options = Options(dataset="folder", data_dir=str(tmp_path / node), image_size=8)
    return summarize(load_dataset(options, DistributedEnvironment()))


def test_ranks_with_the_same_text_in_different_places_agree(tmp_path):
    compare([text(tmp_path, node, "one by one " * 9) for node in ("n1", "n2")])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("two by two " * 9, "rank 2 has as many samples with another content"),
        ("one by one " * 5, r"rank 2 has 12 \+ 1 samples of shape 4 in 257 classes, not 22 \+ 2 samples of"),
    ],
)
def test_ranks_with_another_text_are_named(tmp_path, content, words):
    same, other = text(tmp_path, "n1", "one by one " * 9), text(tmp_path, "n2", content)
    with pytest.raises(BadData, match=f"The data of ranks 2, 3 is not that of rank 0: {words}"):
        compare([same, same, other, other])


def test_ranks_with_other_pictures_are_named(tmp_path):
    same = pictures(tmp_path, "n1", "a/0.png", "a/1.png")
    compare([same, pictures(tmp_path, "n2", "a/0.png", "a/1.png")])
    with pytest.raises(
        BadData, match="The data of rank 1 is not that of rank 0: rank 1 has as many samples with"
    ):
        compare([same, pictures(tmp_path, "n3", "a/0.png", "a/2.png")])


def test_data_that_is_made_from_the_seed_is_of_that_seed():
    made = [
        summarize(
            load_dataset(
                Options(dataset="synthetic", synthetic=(50, 1, 8, 8, 10), seed=seed), DistributedEnvironment()
            )
        )
        for seed in (1, 1, 2)
    ]
    compare(made[:2])
    with pytest.raises(BadData, match="The data of rank 2"):
        compare(made)
