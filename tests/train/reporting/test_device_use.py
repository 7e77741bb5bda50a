"""Test the use of devices: memory counted once, and the fraction of a known peak."""

import pytest
import torch
from torch import nn

from train.reporting.device_use import DeviceUse, device_use, stored_bytes
from train.reporting.gpu_peaks import peak_tflops, peaks_of


def test_memory_on_a_cpu_is_that_of_weights_gradients_and_optimizer():
    model = nn.Linear(10, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 10)).sum().backward()
    optimizer.step()
    use = device_use(model, optimizer, [torch.device("cpu")], "fp32")
    steps = 2 * 4  # AdamW counts them for each weight
    assert use.memory_gb == pytest.approx((4 * 4 * 33 + steps) / 1e9)
    assert use.peak_tflops is None
    assert use.mfu(1e12) is None


def test_memory_that_tensors_share_counts_once():
    whole = torch.zeros(100)
    assert stored_bytes([whole, whole[:50], whole.view(10, 10)]) == 400
    assert stored_bytes([whole, torch.zeros(8, device="meta")]) == 400


def test_mfu_is_a_fraction_of_the_peak_of_all_ranks():
    use = DeviceUse(memory_gb=1.0, peak_tflops=4 * 125.0)
    assert use.mfu(100e12) == pytest.approx(0.2)
    assert use.mfu(None) is None


@pytest.mark.parametrize(
    ("name", "bf16", "fp32"),
    [
        ("NVIDIA A10", 125, 31.2),
        ("NVIDIA A10G", 70, 31.5),
        ("NVIDIA H100 80GB HBM3", 989.4, 67),
        ("NVIDIA H100 PCIe", 756, 51),
        ("NVIDIA A100-SXM4-80GB", 312, 19.5),
        ("Tesla V100-SXM2-16GB", None, 15.7),
        ("Tesla V100-PCIE-16GB", None, 14),
        ("NVIDIA H200", 989.4, 67),
        ("NVIDIA GH200 480GB", 989.4, 67),
        ("NVIDIA L40S", 362, 91.6),
        ("NVIDIA B200", 2250, 75),
    ],
)
def test_peaks_are_those_of_the_data_sheet_by_torchs_name(name, bf16, fp32):
    peaks = peaks_of(name)
    assert (peaks.tflops["bf16"], peaks.tflops["fp32"]) == (bf16, fp32)


@pytest.mark.parametrize("name", ["Imaginary 9000", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"])
def test_peaks_of_an_unknown_device_or_a_part_of_one_are_not_known(name):
    assert peaks_of(name) is None


def test_peak_of_several_gpus_is_known_where_that_of_each_is():
    assert peak_tflops(["NVIDIA A10", "NVIDIA H100 PCIe"], "bf16") == 125 + 756
    assert peak_tflops(["NVIDIA A10", "Imaginary 9000"], "bf16") is None
    assert peak_tflops(["NVIDIA A10", "Tesla V100-SXM2-16GB"], "bf16") is None
