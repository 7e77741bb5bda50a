"""Machines with GPUs that nothing can use: a run is refused before it begins; on CPUs only where that is asked."""

import time
from pathlib import Path

import pytest
from support import Gpuctl
from vm_support import cluster, log_of, runs_of

from tests.fakes.vms import Host, lacking

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]

TWO_GPUS_ON_THE_BUS = """\
mount -t tmpfs none /sys/bus/pci/devices
for slot in 0000:00:04.0 0000:00:05.0; do
    mkdir /sys/bus/pci/devices/$slot && cd /sys/bus/pci/devices/$slot
    echo 0x10de > vendor; echo 0x030200 > class
done"""
NVIDIA_SMI = """\
cat > /usr/local/bin/nvidia-smi <<'END'
#!/bin/sh
echo '0, GPU-5a1f0b7c, NVIDIA A10, 23028, 580.65.06'
echo '1, GPU-c93e4d10, NVIDIA A10, 23028, 580.65.06'
END
chmod 755 /usr/local/bin/nvidia-smi"""
SEEN = "import os\nprint('sees', repr(os.environ.get('CUDA_VISIBLE_DEVICES')), os.environ['WORLD_SIZE'])\n"


def untouched(host: Host) -> bool:
    """Return whether the host has no code, environment or folder of a run."""
    saved = host.root(f"ls /home/{host.user}/.gpuctl-node").stdout.split()
    return not {"code", "env", "runs", "ray"} & set(saved)


@pytest.mark.whole
def test_train_refuses_cpu_fallback_on_gpus_without_driver(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=1) as net:
        (host,) = net.hosts
        gpuctl.script("seen.py", SEEN)
        host.root(TWO_GPUS_ON_THE_BUS)

        # No driver: refused before anything is sent, started or kept.
        began = time.monotonic()
        refused = gpuctl("train", "--json", "--", "--epochs", "1")
        print(f"refused in {time.monotonic() - began:.2f} s")
        assert refused.status == 1, refused.err
        message = refused.json["error"]["message"]
        assert message.startswith(
            "The run can't start: there are GPUs, and it would use CPUs.\n  gpu-0: it has 2 "
        )
        assert message.endswith("\nTo run on the CPUs all the same: --device cpu")
        assert untouched(host)
        assert runs_of(gpuctl) == []

        on_cpu = gpuctl.ok("train", "--device", "cpu", "--json", "seen.py").json
        assert "sees '' 1" in log_of(gpuctl, on_cpu["run"], 0)


def test_all_run_commands_refuse_unusable_gpus(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=1) as net:
        (host,) = net.hosts
        gpuctl.script("seen.py", SEEN)
        host.root(TWO_GPUS_ON_THE_BUS)
        for words in (("train", "--skip-preflight", "seen.py"), ("train", "--mode", "ray"), ("bench",)):
            assert "it would use CPUs" in gpuctl(*words).err, words
        dry = gpuctl.ok("train", "--dry-run", "--json", "--", "--epochs", "1").json
        assert [finding["fatal"] for finding in dry["findings"]] == [True]

        # nvidia-smi shows GPUs that PyTorch, here without CUDA, can't use: refused by the ranks.
        host.root(NVIDIA_SMI)
        refused = gpuctl("train", "--json", "--", "--epochs", "1")
        assert (refused.status, refused.json["world_size"], refused.json["train"]["epoch_s"]) == (1, 2, [])
        output = refused.json["first_error"]["message"]
        assert "PyTorch can use none of the 2 NVIDIA GPUs in this machine: torch " in output
        assert output.endswith("or train on the CPU: --device cpu")

        on_cpu = gpuctl.ok("train", "--device", "cpu", "--json", "--", "--epochs", "1").json
        assert (on_cpu["world_size"], on_cpu["train"]["device"]) == (1, "cpu")
