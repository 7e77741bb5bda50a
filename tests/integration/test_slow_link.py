"""Two hosts on links of 100 Mbit/s: what the table says of the network is what the limit implies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Gpuctl
from vm_support import cluster

from tests.fakes.vms import lacking

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.skipif(lacking() is not None, reason=lacking() or ""),
]

MBIT_PER_S = 100
BYTES_PER_MS = MBIT_PER_S * 1e6 / 8 / 1e3
QUIET = ("--device", "cpu", "--no-save", "--no-tensorboard", "--checkpoint-every", "0")
RESNET = (
    "--model",
    "resnet18",
    "--dataset",
    "synthetic",
    "--synthetic",
    "48,3,32,32,10",
    "--batch-size",
    "4",
)
RESNET_BYTES = 11_181_642 * 4
MLP = ("--model", "mlp", "--dataset", "synthetic", "--synthetic", "384,3,96,96,10", "--batch-size", "32")


@pytest.fixture
def slow_link(gpuctl: Gpuctl, tmp_path: Path) -> Iterator[Gpuctl]:
    """A cluster of two hosts whose links are limited."""
    with cluster(gpuctl, tmp_path, count=2, mbit_per_s=MBIT_PER_S):
        yield gpuctl


def trained(gpuctl: Gpuctl, *words: str) -> Any:
    return gpuctl.ok("train", "--json", "--", *words, *QUIET, "--epochs", "1", timeout_s=300).json["train"]


def ring_ms(size: float, ranks: int = 2) -> float:
    """What a ring needs to add up `size` bytes of each rank, on such links."""
    return 2 * (ranks - 1) / ranks * size / BYTES_PER_MS


def test_compressed_gradients_take_less_time(slow_link: Gpuctl) -> None:
    whole = trained(slow_link, *RESNET)
    half = trained(slow_link, *RESNET, "--compression", "half")
    low_rank = trained(slow_link, *RESNET, "--compression", "powersgd")
    assert whole["step_ms"]["p50"] / half["step_ms"]["p50"] >= 1.7
    assert whole["step_ms"]["p50"] / low_rank["step_ms"]["p50"] >= 4
    for told, size in ((whole, RESNET_BYTES), (half, RESNET_BYTES / 2)):
        communication_ms = told["share"]["communication"] * told["step_ms"]["p50"]
        assert communication_ms == pytest.approx(ring_ms(size), rel=0.15)


def test_the_forecast_is_what_is_then_measured(slow_link: Gpuctl) -> None:
    words = ("--layouts", "1x1,2x1", "--repeats", "3", "--forecast", "2x1", "--json")
    document = slow_link.ok("bench", *words, "--", *MLP, *QUIET, "--epochs", "1", timeout_s=400).json
    (foretold,) = document["forecast"]
    assert (foretold["from"], foretold["bandwidth_source"]) == ("1x1", "measured")
    measured = document["layouts"][1]
    assert foretold["bandwidth_gb_s"] == pytest.approx(BYTES_PER_MS / 1e6, rel=0.15)
    for name, value in (("step_ms", measured["step_ms"]["p50"]), ("epoch_s", measured["epoch_s_median"])):
        assert 0.8 * value <= foretold[name]["slow"], name
        assert foretold[name]["fast"] <= 1.2 * value, name
        assert foretold[name]["slow"] / foretold[name]["fast"] < 1.2, (
            "the network decides: the range is narrow"
        )
