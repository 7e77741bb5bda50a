"""Test two hosts on links of 100 Mbit/s: the bytes sent, and the forecast from them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Gpuctl
from vm_support import cluster

from tests.fakes.vms import Host, Net, lacking
from tests.fakes.vms.boot import INTERFACE
from train.strategies.ddp import POWERSGD_AFTER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(620),
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
    "32,3,32,32,10",
    "--batch-size",
    "4",
)
RESNET_BYTES = 11_181_642 * 4
STEPS = 4
"""Steps of a rank with RESNET: 32 images in batches of 4 on two ranks."""
MLP = ("--model", "mlp", "--dataset", "synthetic", "--synthetic", "384,3,96,96,10", "--batch-size", "32")
MLP_BYTES = 3_547_978 * 4


@pytest.fixture
def slow_link(gpuctl: Gpuctl, tmp_path: Path) -> Iterator[tuple[Gpuctl, Net]]:
    """A cluster of two hosts whose links are limited."""
    with cluster(gpuctl, tmp_path, count=2, mbit_per_s=MBIT_PER_S) as net:
        yield gpuctl, net


def trained(gpuctl: Gpuctl, *words: str) -> Any:
    return gpuctl.ok("train", "--json", "--", *words, *QUIET, "--epochs", "1", timeout_s=300).json["train"]


def sent_bytes(host: Host) -> int:
    """Return the number of bytes sent by the host since its start."""
    return int(host.root(f"cat /sys/class/net/{INTERFACE}/statistics/tx_bytes").stdout)


def test_gradient_compression_reduces_bytes_sent(slow_link: tuple[Gpuctl, Net]) -> None:
    gpuctl, net = slow_link
    # Rank 0 sends its parameters first, rank 1 nothing but gradients; a ring of two sends each byte of them once.
    sender = net.hosts[1]

    def sent(*words: str) -> int:
        before = sent_bytes(sender)
        trained(gpuctl, *RESNET, *words)
        return sent_bytes(sender) - before

    assert sent() == pytest.approx(STEPS * RESNET_BYTES, rel=0.1)
    assert sent("--compression", "half") == pytest.approx(STEPS * RESNET_BYTES / 2, rel=0.1)
    # The first steps are whole, the others next to nothing.
    whole = max(2, round(POWERSGD_AFTER * STEPS))
    assert sent("--compression", "powersgd") == pytest.approx(whole * RESNET_BYTES, rel=0.2)


def measured(gpuctl: Gpuctl, *words: str) -> Any:
    """Return the result of `bench`, repeated if it refuses figures disturbed by other load on this machine."""
    for _ in range(3):
        done = gpuctl("bench", *words, timeout_s=200)
        if "no forecast is made: the figures contradict themselves" not in done.err:
            break
    assert done.status == 0, done.err
    return done.json


def test_forecast_bandwidth_does_not_exceed_the_link(slow_link: tuple[Gpuctl, Net]) -> None:
    gpuctl, _ = slow_link
    words = ("--layouts", "1x1,2x1", "--repeats", "3", "--forecast", "2x1", "--json")
    document = measured(gpuctl, *words, "--", *MLP, *QUIET, "--epochs", "1")
    (foretold,) = document["forecast"]
    assert (foretold["from"], foretold["bandwidth_source"]) == ("1x1", "measured")
    assert 0 < foretold["bandwidth_gb_s"] <= 1.15 * BYTES_PER_MS / 1e6
    ring_ms = MLP_BYTES / BYTES_PER_MS
    assert foretold["step_ms"]["fast"] >= 0.85 * ring_ms
    assert document["layouts"][1]["step_ms"]["p50"] >= 0.85 * ring_ms
