"""Folders of pictures, well and badly formed."""

import io
import os
import sys

import numpy as np
import pytest
import torch
from image_files import write_picture
from PIL import Image

from train.data.image_folder import decode
from train.data.load import load_dataset
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, BadEnvironment, BadOptions, MissingData
from train.options import Options

RED, BLUE = (255, 0, 0), (0, 0, 255)


def read(folder, env=None, **options):
    chosen = {"image_size": 8, "download": False, **options}
    return load_dataset(
        Options(dataset="folder", data_dir=str(folder), **chosen), env or DistributedEnvironment()
    )


def write_class(folder, *, count=10, color=RED, suffix=".png"):
    for number in range(count):
        write_picture(folder / f"{number}{suffix}", color=color)


@pytest.fixture
def pictures(tmp_path):
    """Ten blue and ten red pictures to train on."""
    write_class(tmp_path / "train" / "blue", color=BLUE)
    write_class(tmp_path / "train" / "red", color=RED, suffix=".JPG")
    return tmp_path


def test_folder_dataset_has_a_class_per_folder(pictures):
    data = read(pictures)
    assert (data.shape, data.classes, data.flip_keeps_label, data.test) == ((3, 8, 8), 2, True, None)
    assert (len(data.training), len(data.validation)) == (16, 4)
    for part in (data.training, data.validation):
        assert (part.inputs.dtype, part.labels.dtype) == (torch.uint8, torch.int64)
        for image, label in zip(part.inputs, part.labels, strict=True):
            color = torch.tensor([BLUE, RED][label]).reshape(3, 1, 1)
            assert (image - color).abs().max() <= 2  # JPEG is not exact
    assert torch.cat([data.training.labels, data.validation.labels]).sum() == 10


@pytest.mark.parametrize(
    ("extra_folders", "fraction", "sizes"),
    [
        ((), 0.5, (10, 10, None)),
        (("val",), None, (20, 3, None)),
        (("test",), None, (20, 3, None)),
        (("test",), 0.1, (18, 2, 3)),
        (("val", "test"), None, (20, 3, 3)),
        (("val", "test"), 0.0, (20, 3, 3)),
    ],
)
def test_folder_dataset_uses_val_and_test_folders(pictures, extra_folders, fraction, sizes):
    for name in extra_folders:
        write_class(pictures / name / "red", count=3)
    data = read(pictures, validation=fraction)
    parts = (data.training, data.validation, data.test)
    assert tuple(part and len(part) for part in parts) == sizes
    for part in parts[3 - len(extra_folders) :] if fraction is None else ():
        assert part is None or set(part.labels.tolist()) <= {0, 1}
    if extra_folders:
        assert (data.test or data.validation).labels.tolist() == [1, 1, 1]  # red, as in train/


def test_folder_dataset_refuses_validation_option_with_val_folder(pictures):
    write_class(pictures / "val" / "red")
    with pytest.raises(BadOptions, match="leave --validation out"):
        read(pictures, validation=0.2)


def test_folder_dataset_is_the_same_for_all_ranks_and_threads(pictures):
    first, second = (
        read(pictures, threads=1),
        read(pictures, DistributedEnvironment(local_rank=1, local_world_size=2), threads=7),
    )
    assert torch.equal(first.training.inputs, second.training.inputs)
    assert torch.equal(first.training.labels, second.training.labels)


def test_folder_dataset_reads_more_files_than_one_thread_chunk(tmp_path):
    for number in range(100):
        write_picture(tmp_path / "train/all" / f"{number:03}.png", color=(number, 0, 0))
    data = read(tmp_path, validation=0.01)
    values = torch.cat([data.training.inputs, data.validation.inputs])[:, 0, 0, 0]
    assert sorted(values.tolist()) == list(range(100))


def test_folder_dataset_skips_hidden_and_other_files(pictures):
    (pictures / "train/.ipynb_checkpoints").mkdir()
    (pictures / "train/red/.0.png").write_bytes(b"")
    (pictures / "train/red/notes.txt").write_text("")
    (pictures / "train/README").write_text("")
    assert len(read(pictures).training) == 16


@pytest.mark.parametrize("size", [(40, 20), (20, 40), (400, 200)])
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_decode_crops_the_middle_square(tmp_path, size, suffix):
    """Red at both ends of the longer side, blue in the middle square."""
    width, height = size
    pixels = np.full((height, width, 3), RED, np.uint8)
    side = min(size)
    top, left = (height - side) // 2, (width - side) // 2
    pixels[top : top + side, left : left + side] = BLUE
    Image.fromarray(pixels).save(path := tmp_path / f"x{suffix}", quality=95, subsampling=0)
    decoded = decode(path, 10)
    assert decoded.shape == (3, 10, 10)
    assert np.abs(decoded[:, 1:-1, 1:-1].astype(int) - np.array(BLUE).reshape(3, 1, 1)).max() < 30


def test_decode_enlarges_smaller_pictures(tmp_path):
    assert decode(write_picture(tmp_path / "x.png", color=RED, size=(2, 3)), 6)[0].tolist() == [[255] * 6] * 6


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "I;16"])
def test_decode_converts_png_modes_to_rgb(tmp_path, mode):
    Image.new(mode, (8, 8)).save(path := tmp_path / "x.png")
    assert decode(path, 8).shape == (3, 8, 8)


def test_decode_converts_a_cmyk_jpeg_to_rgb(tmp_path):
    Image.new("CMYK", (8, 8)).save(path := tmp_path / "x.jpg")
    assert decode(path, 8).shape == (3, 8, 8)


def whole(kind):
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(file, format=kind)
    return file.getvalue()


PNG, JPEG = whole("PNG"), whole("JPEG")
CORRUPT = {
    "empty.png": b"",
    "text.jpg": b"<html>Not found</html>",
    "cut.png": PNG[: len(PNG) // 2],
    "cut.jpg": JPEG[: len(JPEG) // 2],
    "header.png": PNG[:20],
    "changed.png": PNG[:100] + bytes(4) + PNG[104:],
    "huge.png": PNG[:16] + b"\x7f\xff\xff\xff" * 2 + PNG[24:],
    "other.png": b"GIF89a" + bytes(100),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_folder_dataset_names_a_corrupt_picture(pictures, name):
    path = pictures / "train/red" / name
    path.write_bytes(CORRUPT[name])
    with pytest.raises(BadData) as raised:
        read(pictures)
    assert str(raised.value).startswith(f"{path} can't be read as an image (")
    assert str(raised.value).endswith("). Replace it or remove it.")
    assert "\n" not in str(raised.value)


def test_folder_dataset_names_a_link_to_nothing(pictures):
    (pictures / "train/red/link.png").symlink_to("nowhere.png")
    with pytest.raises(BadData, match=r"link\.png can't be read as an image \(No such file or directory\)"):
        read(pictures)


def test_folder_dataset_names_a_folder_with_a_picture_name(pictures):
    (pictures / "train/red/album.png").mkdir()
    with pytest.raises(BadData, match=r"album\.png can't be read as an image \(Is a directory\)"):
        read(pictures)


def test_folder_dataset_missing_says_what_to_provide(tmp_path):
    with pytest.raises(MissingData) as raised:
        read(tmp_path / "none")
    assert str(raised.value) == (
        f"{tmp_path}/none/train is not on this machine. Put a folder of .png or .jpg files there for each class, "
        "or name the folder above it with --data-dir."
    )


def test_folder_dataset_without_class_folders_is_refused(tmp_path):
    write_picture(tmp_path / "train/x.png")
    with pytest.raises(BadData, match=r"has no folders\. Put one there for each class"):
        read(tmp_path)


def test_folder_dataset_names_an_empty_class(pictures):
    (pictures / "train/green").mkdir()
    with pytest.raises(BadData) as raised:
        read(pictures)
    assert str(raised.value).startswith(f"{pictures}/train/green has no .png or .jpg files.")


def test_folder_dataset_names_a_val_class_missing_in_train(pictures):
    write_class(pictures / "val/green")
    with pytest.raises(BadData) as raised:
        read(pictures)
    assert str(raised.value).startswith(
        f"{pictures}/val/green is a class that {pictures}/train does not have"
    )


def test_folder_dataset_too_large_for_memory_is_refused_undecoded(tmp_path):
    first = tmp_path / "train/all/first.png"
    first.parent.mkdir(parents=True)
    first.write_bytes(b"not a picture")
    for number in range(999):
        os.link(first, first.with_name(f"{number}.png"))
    with pytest.raises(
        BadData, match=r"The 1,000 images of .* take 50.3 GB at 3x4096x4096 on each of 1000 ranks"
    ):
        read(tmp_path, DistributedEnvironment(local_world_size=1000), image_size=4096)


def test_folder_dataset_without_pillow_names_the_package(pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)  # Python's way to mark a module as missing
    with pytest.raises(BadEnvironment, match="pip install pillow"):
        read(pictures)
