"""Test the rows for Ray Data, and its tasks' results: in the rank's order, and as in memory."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import write_picture

import train
from train.batches.ray_data import images_per_block, read_images, reader, task_rows, with_timeout
from train.batches.sampling import MAX_SHIFT, RankSampler, augment, draw_augmentations
from train.data import image_folder
from train.data.dataset import ImageFiles
from train.data.image_decoding import augment_one
from train.data.load import load_dataset
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, BadOptions
from train.options import Options

CODE = Path(train.__file__).parent.parent


@pytest.mark.parametrize(
    ("size", "batch_size", "images"),
    [(8, 1000, 64), (8, 5, 5), (224, 64, 55), (1024, 64, 2), (4096, 64, 1)],
)
def test_images_per_block_limits_pictures_per_task(size, batch_size, images):
    assert images_per_block(size, batch_size) == images


@pytest.mark.parametrize("augmentation", ["none", "flip", "crop"])
def test_ray_data_augmentation_equals_that_in_memory(augmentation):
    images = torch.randint(256, [20, 3, 9, 12], dtype=torch.uint8)
    augmentations = draw_augmentations(20, augmentation, seed=1, epoch=2)
    pictures = ImageFiles(folder="/d", paths=tuple("abcdefghijklmnopqrst"), labels=torch.zeros(20), size=9)
    requested = task_rows(pictures, torch.arange(20), augmentations)
    decoded = [
        augment_one(image.numpy(), flip=row["flip"], down=row["down"], right=row["right"])
        for image, row in zip(images, requested, strict=True)
    ]
    assert np.array_equal(
        np.stack(decoded), augment(images, augmentations.flips, augmentations.shifts).numpy()
    )


def test_image_decoding_does_not_import_torch():
    script = "import sys, train.data.image_decoding; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CODE, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n", "every task would start seconds later"


def test_task_rows_follow_the_order_of_the_rank():
    sampler = RankSampler(seed=3, rank=1, world_size=2, augmentation="crop")
    pictures = ImageFiles(
        folder="/d", paths=tuple(f"{n}.png" for n in range(9)), labels=torch.arange(9), size=8
    )
    order, augmentations = sampler.indices(9, 4, 2), sampler.augmentations(9, 4)
    requested = task_rows(pictures, order, augmentations)
    assert [row["path"] for row in requested] == [f"{number}.png" for number in order]
    assert [row["flip"] for row in requested] == augmentations.flips[order].tolist()
    shifts = [[row["down"] + MAX_SHIFT, row["right"] + MAX_SHIFT] for row in requested]
    assert shifts == augmentations.shifts[order].tolist()


def test_reader_reads_below_the_node_home_and_names_a_bad_file(tmp_path, monkeypatch):
    write_picture(tmp_path / "home" / "pictures" / "red.png", color=(255, 0, 0))
    (tmp_path / "home" / "pictures" / "bad.png").write_bytes(b"no picture")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GPUCTL_NODE_HOME", str(CODE.parent))
    monkeypatch.setenv("GPUCTL_NODE", "gpu-1")
    monkeypatch.setattr(sys, "path", [*sys.path])
    requested = {
        "path": np.array(["red.png", "bad.png"], dtype=object),
        "flip": np.array([True, False]),
        "down": np.array([1, 0]),
        "right": np.array([0, 0]),
    }
    batch = reader(code=CODE.name, folder="~/pictures", size=8)(requested)
    assert batch["image"].shape == (2, 3, 8, 8)
    assert batch["image"][0, :, :7].tolist() == [[[value] * 8] * 7 for value in (255, 0, 0)]
    assert not batch["image"][0, :, 7].any(), "what was shifted in"
    with pytest.raises(
        BadData, match=f"^On gpu-1: {tmp_path}/home/pictures/bad.png can't be read as an image"
    ):
        read_images(batch)
    good = {name: column[:1] for name, column in batch.items()}
    assert read_images(good).tolist() == batch["image"][:1].tolist()


def test_ray_data_files_are_listed_in_the_order_of_memory(tmp_path):
    for number in range(10):
        write_picture(tmp_path / "train" / "red" / f"{number}.png", color=(25 * number, 0, 0))
    options = {"dataset": "folder", "data_dir": str(tmp_path), "image_size": 8}
    whole = load_dataset(Options(**options), DistributedEnvironment())
    with pytest.raises(BadOptions, match="gpuctl train --mode ray, or leave the option out"):
        load_dataset(Options(**options, data_pipeline="ray"), DistributedEnvironment())
    listed = image_folder.read(Options(**options, data_pipeline="ray"), DistributedEnvironment())
    assert [25 * int(Path(path).stem) for path in listed.training.paths] == whole.training.inputs[
        :, 0, 0, 0
    ].tolist()
    assert torch.equal(listed.training.labels, whole.training.labels)
    assert torch.equal(listed.validation.inputs, whole.validation.inputs)
    assert (listed.training.folder, listed.shape, len(listed.training)) == (str(tmp_path), whole.shape, 8)


def test_within_yields_the_same_items_and_ends_its_thread():
    before = threading.active_count()
    assert list(with_timeout(60, iter(range(5)))) == [0, 1, 2, 3, 4]
    failing = with_timeout(60, (1 // number for number in (1, 0)))
    assert next(failing) == 1
    with pytest.raises(ZeroDivisionError):
        next(failing)
    for thread in threading.enumerate():
        if thread.name.endswith("(draw)"):
            thread.join(10)
    assert threading.active_count() == before


def test_within_raises_timeout_error_after_its_limit():
    goes_on = threading.Event()

    def two():
        yield 1
        yield goes_on.wait(60)

    stream = with_timeout(0.05, two())
    assert next(stream) == 1
    with pytest.raises(TimeoutError):
        next(stream)
    goes_on.set()
