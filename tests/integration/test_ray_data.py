"""`--data-pipeline ray` on local hosts, whose cores all belong to ranks: the losses of pictures held in memory."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import Done, Gpuctl, processes_with

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        sys.platform != "linux", reason="local hosts have no address of their own for Ray but on Linux"
    ),
]

TRAIN_S = 240.0
CLASSES = ("cat", "dog")
JOB = ["--dataset", "folder", "--image-size", "12", "--data-dir", "~/pictures", "--augmentation", "crop"]
JOB += ["--batch-size", "10", "--epochs", "2", "--model", "mlp", "--optimizer", "sgd", "--lr", "0.01"]
JOB += ["--log-every", "1", "--no-tensorboard", "--no-save"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpuctl]:
    """Yield two local hosts, each with the same pictures in its home."""
    gpuctl = Gpuctl(home=tmp_path_factory.mktemp("ray-data"), cwd=tmp_path_factory.mktemp("start"))
    gpuctl.ok("up", "--provider", "local", "--count", "2")
    for rank in (0, 1):
        write_pictures(home_of(gpuctl, rank) / "pictures" / "train")
    yield gpuctl
    gpuctl.ok("down", "--yes")
    assert not processes_with(str(gpuctl.home)), "processes were left behind"


def home_of(gpuctl: Gpuctl, rank: int) -> Path:
    return gpuctl.home / "clusters" / "default" / "local" / f"default-{rank}" / "home"


def write_pictures(folder: Path) -> None:
    """32 of noise for each class, in every one of them other noise."""
    noise = np.random.default_rng(0)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for number in range(32):
            pixels = noise.integers(0, 256, (14, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:02}.png")


def train(gpuctl: Gpuctl, *, mode: str, pipeline: str) -> Done:
    words = ["--json", "--mode", mode, "--nproc-per-node", "1", "--", *JOB, "--data-pipeline", pipeline]
    return gpuctl("train", *words, timeout_s=TRAIN_S)


def losses(gpuctl: Gpuctl, run: str, rank: int) -> list[float]:
    """A rank's, step by step."""
    text = (gpuctl.run_folder(run) / "metrics" / f"rank-{rank}.jsonl").read_text()
    return [line["loss"] for line in map(json.loads, text.splitlines()) if "step" in line]


def test_ray_data_pipeline_has_the_losses_of_images_in_memory(hosts: Gpuctl) -> None:
    streamed = train(hosts, mode="ray", pipeline="ray")
    assert streamed.status == 0, streamed.err
    whole = train(hosts, mode="torchrun", pipeline="memory")
    assert whole.status == 0, whole.err
    for rank in range(2):
        result = losses(hosts, streamed.json["run"], rank)
        assert len(result) == 6
        assert result == pytest.approx(losses(hosts, whole.json["run"], rank), rel=1e-5)
    assert streamed.json["train"]["loss"] == pytest.approx(whole.json["train"]["loss"], rel=1e-5)
    assert streamed.json["train"]["accuracy"] == whole.json["train"]["accuracy"]
