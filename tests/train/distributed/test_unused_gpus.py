"""GPUs that the machine has and PyTorch can't use."""

import pytest
import torch

from train.distributed import unused_gpus
from train.errors import BadEnvironment

CPU = torch.device("cpu")


def bus(folder, *devices):
    """A PCI bus with devices of these vendors and classes."""
    for at, (vendor, kind) in enumerate(devices):
        slot = folder / f"0000:00:{at:02x}.0"
        slot.mkdir(parents=True)
        (slot / "vendor").write_text(f"{vendor}\n")
        (slot / "class").write_text(f"{kind}\n")
    return folder


GPU = ("0x10de", "0x030200")
ITS_SOUND = ("0x10de", "0x040300")
ANOTHER_DISPLAY = ("0x1234", "0x030000")


@pytest.fixture
def two_gpus(tmp_path):
    return bus(tmp_path / "pci", GPU, ITS_SOUND, GPU, ANOTHER_DISPLAY)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine's GPUs can be used")
def test_unused_gpus_check_refuses_unusable_gpus_unless_only_noted(two_gpus):
    with pytest.raises(BadEnvironment) as refused:
        unused_gpus.check("auto", CPU, {}, two_gpus)
    sentence = str(refused.value)
    assert sentence.startswith("PyTorch can use none of the 2 NVIDIA GPUs in this machine: ")
    assert sentence.endswith("; or train on the CPU: --device cpu")
    note = unused_gpus.check("auto", CPU, {"GPUCTL_UNUSED_GPUS": "note"}, two_gpus)
    assert note.startswith("note: PyTorch can use none of the 2 NVIDIA GPUs in this machine: ")
    assert note.endswith("; training on the CPU")


@pytest.mark.parametrize(("requested", "device"), [("cpu", "cpu"), ("auto", "cuda:0"), ("cuda", "cuda:0")])
def test_unused_gpus_check_accepts_requested_cpu_and_working_gpu(two_gpus, requested, device):
    assert unused_gpus.check(requested, torch.device(device), {}, two_gpus) is None


def test_unused_gpus_check_accepts_a_machine_without_nvidia_gpus(tmp_path):
    assert unused_gpus.check("auto", CPU, {}, bus(tmp_path / "pci", ITS_SOUND, ANOTHER_DISPLAY)) is None
    assert unused_gpus.check("auto", CPU, {}, tmp_path / "nowhere") is None


OLD = "The NVIDIA driver on your system is too old (found version 11040)"


@pytest.mark.parametrize(
    ("visible", "cuda", "torch_error", "cause", "fix"),
    [
        (None, None, "", f"torch {torch.__version__} is built without CUDA", "Install a build with CUDA"),
        ("", "13.0", "", "CUDA_VISIBLE_DEVICES= hides them", "Unset it"),
        ("-1", "13.0", "", "CUDA_VISIBLE_DEVICES=-1 hides them", "Unset it"),
        ("0", "13.0", OLD, OLD, "See what nvidia-smi says"),
        (None, "13.0", "", "torch is built for CUDA 13.0 and finds none", "See what nvidia-smi says"),
    ],
)
def test_unused_gpus_why_names_the_cause_and_the_fix(visible, cuda, torch_error, cause, fix):
    reason = unused_gpus.why(visible, cuda, lambda: torch_error)
    assert reason[0] == cause
    assert reason[1].startswith(fix)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine's GPUs can be used")
def test_torch_error_is_one_sentence():
    sentence = unused_gpus.torch_error()
    assert sentence
    assert "\n" not in sentence
    assert not sentence.endswith(".")
