"""CIFAR-10's files, well and badly formed, and hostile ones."""

import os
import pickle
import pickletools
import struct

import numpy as np
import pytest
import torch
from image_files import cifar10, cifar_batch, python2_pickle, write_cifar10, write_cifar10_binary

from train.data.load import load_dataset
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, MissingData
from train.options import Options


def read(folder, **options):
    return load_dataset(
        Options(dataset="cifar10", data_dir=str(folder), download=False, **options), DistributedEnvironment()
    )


@pytest.mark.filterwarnings("ignore:numpy.core is deprecated")
def test_cifar10_fixture_files_are_pickled_like_the_originals():
    content = cifar10()["data_batch_1"]
    names = {name for code, name, _ in pickletools.genops(content) if code.name == "GLOBAL"}
    assert names == {"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"}
    assert not {code.name for code, _, _ in pickletools.genops(content)} & {"BINUNICODE", "BINBYTES"}
    theirs = pickle.loads(content, encoding="latin1")  # as torchvision reads them
    assert np.array_equal(theirs["data"], cifar_batch(12, 1)["data"])


@pytest.mark.parametrize("write", [write_cifar10, write_cifar10_binary])
def test_cifar10_images_and_labels_match_the_batches(tmp_path, write):
    data = read(write(tmp_path))
    assert (data.shape, data.classes, data.flip_keeps_label, data.test) == ((3, 32, 32), 10, True, None)
    assert (len(data.training), len(data.validation)) == (60, 12)
    rows = np.vstack([cifar_batch(12, seed)["data"] for seed in range(1, 6)])
    assert np.array_equal(data.training.inputs.numpy(), rows.reshape(-1, 3, 32, 32))
    assert np.array_equal(data.validation.inputs.flatten(1).numpy(), cifar_batch(12, 6)["data"])
    assert data.training.labels.tolist() == cifar_batch(12, 1)["labels"] * 5
    assert (data.training.inputs.dtype, data.training.labels.dtype) == (torch.uint8, torch.int64)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_cifar10_reads_batches_pickled_by_python_3(tmp_path, protocol):
    write_cifar10(tmp_path)
    batch = cifar_batch(5, 9)
    for keys in (batch, {name.encode(): value for name, value in batch.items()}):
        (tmp_path / "cifar-10-batches-py/test_batch").write_bytes(pickle.dumps(keys, protocol=protocol))
        assert np.array_equal(read(tmp_path).validation.inputs.flatten(1).numpy(), batch["data"])


def test_cifar10_with_validation_fraction_has_a_test_set(tmp_path):
    data = read(write_cifar10(tmp_path), validation=0.2)
    assert [len(part) for part in (data.training, data.validation, data.test)] == [48, 12, 12]


def test_cifar10_without_download_names_the_missing_files(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py/data_batch_3").unlink()
    with pytest.raises(
        MissingData, match=r"Put these files there: cifar-10-batches-py/data_batch_3, or train"
    ):
        read(tmp_path)


class Runs:
    """A class whose pickle runs a command when `pickle.load` loads it."""

    def __init__(self, command):
        self._command = command

    def __reduce__(self):
        return os.system, (self._command,)


def hostile(tmp_path):
    command = f"touch {tmp_path}/ran"
    plain = pickle.dumps({"data": Runs(command)}, protocol=2)
    return {
        "a command": plain,
        "a command as the file's only content": pickle.dumps(Runs(command)),
        "an old pickle": f"cos\nsystem\n(S'{command}'\ntR.".encode(),
        "an instance": f"(S'{command}'\nios\nsystem\n.".encode(),
        "eval": f'cbuiltins\neval\n(S\'__import__("os").system("{command}")\'\ntR.'.encode(),
        "through an attribute of what is allowed": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
        "numpy's own unpickling": b"cnumpy\nload\n(S'x'\ntR.",
        "an object outside": b"\x80\x02U\x01xQ.",
    }


@pytest.mark.parametrize("name", [*hostile("")])
def test_cifar10_refuses_hostile_pickles_without_running_them(tmp_path, name):
    path = write_cifar10(tmp_path) / "cifar-10-batches-py/data_batch_2"
    path.write_bytes(hostile(tmp_path)[name])
    with pytest.raises(BadData) as raised:
        read(tmp_path)
    assert str(raised.value).startswith(f"{path} was not opened: it names ")
    assert not (tmp_path / "ran").exists()


def test_hostile_pickle_fixture_runs_when_loaded_by_pickle(tmp_path):
    pickle.loads(hostile(tmp_path)["a command"])
    assert (tmp_path / "ran").exists()


def batch(**changed):
    return python2_pickle({**cifar_batch(12, 1), **changed})


def array(state):
    """A pickled batch whose array has that state, as numpy would never write it."""
    content = pickle.dumps(state, protocol=2)[2:-1]
    return (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        + content
        + b"bs."
    )


BAD = {
    "empty": (b"", "is not a whole pickle of images (EOFError)"),
    "text": (b"<html>Not found</html>", "is not a whole pickle of images"),
    "cut": (batch()[:-2000], "is not a whole pickle of images"),
    "a list": (python2_pickle([1, 2]), "is not what it should be: a pickled dict"),
    "no data": (python2_pickle({"labels": [1]}), "is not a batch of CIFAR-10: it has no rows of 3072 bytes"),
    "rows of another length": (batch(data=np.zeros((12, 3071), np.uint8)), "is not a batch of CIFAR-10"),
    "floats": (batch(data=np.zeros((12, 3072))), "is not a whole pickle of images (ValueError)"),
    "no labels": (batch(labels=None), "is not a batch of CIFAR-10: it has no list of labels"),
    "labels that are no numbers": (batch(labels=["cat"] * 12), "is not a batch of CIFAR-10"),
    "too few labels": (batch(labels=[1] * 11), "has 11 labels for 12 images"),
    "a label out of range": (batch(labels=[10] * 12), "has the label 10, and labels are 0 to 9"),
    "a huge label": (batch(labels=[2**80] * 12), "has the label 9223372036854775807"),
    "a negative label": (batch(labels=[-(2**80)] * 12), "has the label -9223372036854775808"),
    "an array without its state": (array(None), "is not a whole pickle of images"),
    "an array that lies": (array((1, (10**12, 3072), None, False, b"x")), "is not a whole pickle of images"),
    "an array without end": (b"\x80\x02" + b"(" * 100_000, "is not a whole pickle of images"),
}


@pytest.mark.parametrize("name", BAD)
def test_cifar10_names_a_bad_batch(tmp_path, name):
    content, sentence = BAD[name]
    path = write_cifar10(tmp_path) / "cifar-10-batches-py/data_batch_2"
    path.write_bytes(content)
    with pytest.raises(BadData) as raised:
        read(tmp_path)
    assert str(raised.value).startswith(f"{path} {sentence}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (struct.pack("3072x"), "does not hold whole rows of 3073 bytes"),
        (b"", "holds no images"),
        (b"\x0a" + bytes(3072), "has the label 10"),
    ],
)
def test_cifar10_names_a_bad_binary_batch(tmp_path, content, sentence):
    path = write_cifar10_binary(tmp_path) / "cifar-10-batches-bin/data_batch_4.bin"
    path.write_bytes(content)
    with pytest.raises(BadData) as raised:
        read(tmp_path)
    assert str(raised.value).startswith(f"{path} {sentence}")
