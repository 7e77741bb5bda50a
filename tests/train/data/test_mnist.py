"""MNIST's files, well and badly formed."""

import gzip
import struct

import numpy as np
import pytest
import torch
from image_files import idx, mnist, write_mnist

from train.data.load import load_dataset
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, MissingData
from train.options import Options


def read(folder, **options):
    return load_dataset(
        Options(dataset="mnist", data_dir=str(folder), download=False, **options), DistributedEnvironment()
    )


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_images_and_labels_match_the_files(tmp_path, zipped):
    data = read(write_mnist(tmp_path, zipped=zipped))
    assert (data.shape, data.classes, data.flip_keeps_label, data.test) == ((1, 28, 28), 10, False, None)
    for part, name in ((data.training, "train"), (data.validation, "t10k")):
        content = mnist()[f"{name}-images-idx3-ubyte"]
        assert part.inputs.numpy().tobytes() == content[16:]
        assert part.labels.tolist() == [number % 10 for number in range(len(part))]
        assert (part.inputs.dtype, part.labels.dtype) == (torch.uint8, torch.int64)
    assert (len(data.training), len(data.validation)) == (50, 20)


def test_mnist_with_validation_fraction_has_a_test_set(tmp_path):
    data = read(write_mnist(tmp_path), validation=0.2)
    assert [len(part) for part in (data.training, data.validation, data.test)] == [40, 10, 20]
    numbers = torch.cat([data.training.inputs, data.validation.inputs])[:, 0, 0, 0]
    assert sorted(numbers.tolist()) == list(range(50))


def test_mnist_without_download_names_the_missing_files(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(MissingData) as raised:
        read(tmp_path)
    assert str(raised.value) == (
        f"mnist is not in {tmp_path} on this machine. Put these files there: MNIST/raw/t10k-labels-idx1-ubyte, "
        "or train without --no-download."
    )


BAD = {
    "empty": (b"", "is not an IDX file of bytes in 1 dimensions"),
    "text": (b"<html>Not found</html>", "is not an IDX file"),
    "images in place of labels": (idx(np.zeros((20, 2, 2))), "is not an IDX file of bytes in 1 dimensions"),
    "floats": (struct.pack(">HBBI", 0, 0x0D, 1, 5) + bytes(20), "is not an IDX file"),
    "cut": (idx(np.zeros(20))[:-3], "holds 17 values where its header says 20"),
    "too long": (idx(np.zeros(20)) + b"x", "holds 21 values where its header says 20"),
    "a header that lies": (struct.pack(">HBBI", 0, 8, 1, 2**32 - 1), "holds 0 values"),
    "too few": (idx(np.zeros(19)), "has 19 labels for 20 images"),
    "a label out of range": (idx(np.full(20, 10)), "has the label 10, and labels are 0 to 9"),
}


@pytest.mark.parametrize("name", BAD)
def test_mnist_names_a_bad_file(tmp_path, name):
    content, sentence = BAD[name]
    path = write_mnist(tmp_path) / "MNIST/raw/t10k-labels-idx1-ubyte"
    path.write_bytes(content)
    with pytest.raises(BadData) as raised:
        read(tmp_path)
    assert str(raised.value).startswith(f"{path} {sentence}")


@pytest.mark.parametrize(
    "content", [b"not gzip", gzip.compress(idx(np.zeros(20)), mtime=0)[:-9], b"\x1f\x8b\x08\x00" + bytes(40)]
)
def test_mnist_names_a_bad_gzip_file(tmp_path, content):
    path = write_mnist(tmp_path, zipped=True) / "MNIST/raw/t10k-labels-idx1-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(BadData) as raised:
        read(tmp_path)
    assert str(raised.value).startswith(f"{path} can't be read: ")
    assert "\n" not in str(raised.value)


def test_mnist_refuses_images_that_differ_in_size(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "MNIST/raw/t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((20, 32, 32))))
    with pytest.raises(BadData, match="differ in size"):
        read(tmp_path)
