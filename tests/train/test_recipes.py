"""The lines of docs/recipes.md, as they stand there, on small files in the real formats."""

import json
import re
import shlex
from pathlib import Path

import pytest
from image_files import write_cifar10, write_mnist

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "recipes.md"
RECIPES = re.findall(r"^    gpuctl (?:train|bench) .*?-- (.*)$", DOCUMENT.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """160 and 130 images: more than one batch of 128."""
    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder, training=160, test=20)
    return write_cifar10(folder, count=26)


def test_recipes_document_has_9_recipes():
    assert len(RECIPES) == 9


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_trains_one_epoch(run, tmp_path, data_dir, recipe):
    done = run(
        *shlex.split(recipe),
        *("--epochs", "1", "--warmup-epochs", "0.5", "--data-dir", str(data_dir), "--no-download"),
        # bf16 takes a CPU without it minutes; other tests train with it.
        *("--device", "cpu", "--threads", "1", "--log-every", "1", "--precision", "fp32"),
        run_dir=tmp_path,
    )
    assert done.status == 0, done.err
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "step" in line]) == lines[0]["steps_per_epoch"] > 1
    assert lines[-1]["event"] == "end"
    assert 0 <= lines[-1]["accuracy"] <= 1
    assert lines[-1]["loss"] > 0
