"""Compare `gpuctl train --mode ray` with Ray's own launch, from prepared hosts to the first training step.

Two VM-like hosts of `tests/fakes/vms` (Linux, root), the same environment on both, no Ray. In each round, in an order
that changes, each time until rank 0 has taken its first step:

- cold: `gpuctl train --mode ray`, and `ray up` with its local provider followed by `ray job submit` of a TorchTrainer
script: the same model, data, batch and ranks, read in the cheapest way. It submits as soon as `ray up` returns.

- warm: on the Ray that the first of these has left, `gpuctl train --mode ray` again, and the same script started on
its head over ssh, which is Ray's own time to start a trainer.

Prints medians, the median ratio of the cold starts and the median difference of the warm starts; exits 1 if gpuctl is
not faster cold, or 2 s or more slower warm.

    python bench/ray_launch.py [ROUNDS]
"""

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.commands import BIN, LIMIT_S, gpuctl, run, spread, turned
from tests.fakes.vms import Host, Net, lacking, vms

ROUNDS = 3
RATIO_LIMIT, DIFFERENCE_LIMIT_S = 1.0, 2.0
JOB = ["--model", "mlp", "--dataset", "digits", "--epochs", "1", "--log-every", "1"]
SCRIPT = """
import gzip, time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def train():
    path = Path(find_spec("sklearn").origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as lines:
        rows = torch.from_numpy(np.loadtxt(lines, delimiter=",").astype(np.float32))
    images, labels = (rows[:, :64] - 4.884) / 6.017, rows[:, 64].long()
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)]
    model = prepare_model(nn.Sequential(*layers))
    loader = prepare_data_loader(DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step, (batch, wanted) in enumerate(loader, 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), wanted).backward()
        optimizer.step()
        if step == 1 and torch.distributed.get_rank() == 0:
            print(f"FIRST STEP {time.time():.3f} of {torch.distributed.get_world_size()}", flush=True)


scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}, placement_strategy="STRICT_SPREAD")
TorchTrainer(train, scaling_config=scaling).fit()
"""
CLUSTER = """
cluster_name: bench
provider: {{type: local, head_ip: {head}, worker_ips: [{worker}]}}
auth: {{ssh_user: {user}, ssh_private_key: {key}}}
min_workers: 1
max_workers: 1
head_start_ray_commands:
  - GLOO_SOCKET_IFNAME=ens3 {ray} start --head --port=6379 --node-ip-address={head} --dashboard-host=0.0.0.0
    --autoscaling-config=~/ray_bootstrap_config.yaml --disable-usage-stats
worker_start_ray_commands:
  - GLOO_SOCKET_IFNAME=ens3 {ray} start --address={head}:6379 --node-ip-address={worker} --disable-usage-stats
"""
"""Without the `ray stop` of Ray's own examples: nothing runs there."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The hosts, and a folder for the commands' files."""

    net: Net
    folder: Path

    @property
    def head(self) -> Host:
        return self.net.hosts[0]

    def gpuctl(self, *words: str) -> str:
        return gpuctl(self.folder / "home", *words, cwd=self.folder)

    def ray(self, *words: str) -> str:
        # With the local provider, the second autoscaler never starts a worker.
        return run(
            [str(BIN / "ray"), *words], cwd=self.folder,
            RAY_UP_enable_autoscaler_v2="0", RAY_TMPDIR=str(self.folder), TMPDIR=str(self.folder),
            RAY_USAGE_STATS_ENABLED="0",
        ).stdout  # fmt: skip


def first_step_of_gpuctl(bench: Bench) -> float:
    """Seconds from the command to rank 0's first step."""
    began = time.time()
    result = json.loads(bench.gpuctl("train", "--mode", "ray", "--json", "--", *JOB))
    assert result["world_size"] == 2
    for line in (Path(result["dir"]) / "metrics" / "rank-0.jsonl").read_text().splitlines():
        if "step" in (document := json.loads(line)):
            return float(document["time"]) - began
    sys.exit(f"run {result['run']} reported no step")


def first_step_of_ray_up(bench: Bench) -> float:
    config = bench.folder / "cluster.yaml"
    worker = bench.net.hosts[1]
    config.write_text(
        CLUSTER.format(
            head=bench.head.address,
            worker=worker.address,
            user=worker.user,
            key=worker.key_file,
            ray=BIN / "ray",
        )
    )
    began = time.time()
    bench.ray("up", "--yes", "--no-config-cache", "--disable-usage-stats", str(config))
    dashboard = f"http://{bench.head.address}:8265"
    entry = [sys.executable, "script.py"]
    job = bench.ray(
        "job", "submit", "--address", dashboard, "--working-dir", str(bench.folder / "job"), "--", *entry
    )
    return told_at(job) - began


def end_ray_up(bench: Bench) -> None:
    """`ray down`, and then whatever it leaves: all that its user runs on the hosts, and its folders."""
    bench.ray("down", "--yes", str(bench.folder / "cluster.yaml"))
    for host in bench.net.hosts:
        limit = time.monotonic() + LIMIT_S
        while pids := host.root(f"ps -u {host.user} -o pid=", check=False).stdout.split():
            if time.monotonic() > limit:
                sys.exit(f"Ray did not end on {host.name}: {' '.join(pids)}")
            host.root(f"kill -KILL {' '.join(pids)}", check=False)  # in the host's own process namespace
        host.root("rm -rf /tmp/ray")


def first_step_on_our_ray(bench: Bench) -> float:
    """The script, started by hand on the head of the Ray that gpuctl keeps."""
    (head, *_) = json.loads(bench.gpuctl("ray", "status", "--json"))["nodes"]
    variables = {
        "RAY_ADDRESS": f"{bench.head.address}:{head['ports']['gcs']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"/home/{bench.head.user}/.gpuctl-node/ray/{bench.head.name}/token",
    }
    config = bench.folder / "ssh_config"
    config.write_text(bench.gpuctl("ssh-config"))
    command = ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, "-u", "-"]
    began = time.time()
    with (bench.folder / "job" / "script.py").open() as script:
        done = subprocess.run(
            ["ssh", "-F", str(config), bench.head.name, shlex.join(command)],
            stdin=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"the script failed on the Ray that gpuctl started:\n{done.stdout}")
    return told_at(done.stdout) - began


def told_at(output: str) -> float:
    """Return the time of the first step from the script's output, to which Ray may add a prefix."""
    match = re.search(r"FIRST STEP (\d+\.\d+) of 2", output)
    if match is None:
        sys.exit(f"the script printed no first step:\n{output}")
    return float(match[1])


def one_round(bench: Bench, number: int) -> dict[str, float]:
    """Return the seconds to the first step, for each launcher; no Ray runs before and after it."""
    seconds: dict[str, float] = {}

    def ours() -> None:
        seconds["gpuctl, cold"] = first_step_of_gpuctl(bench)
        warm = {"gpuctl, warm": first_step_of_gpuctl, "script, warm": first_step_on_our_ray}
        for name in turned(list(warm), number):
            seconds[name] = warm[name](bench)
        bench.gpuctl("ray", "stop")

    def theirs() -> None:
        seconds["ray up, cold"] = first_step_of_ray_up(bench)
        end_ray_up(bench)

    ways: list[Callable[[], None]] = [ours, theirs]
    for way in turned(ways, number):
        way()
    load = os.getloadavg()[0]
    shown = ", ".join(f"{name} {seconds[name]:.1f} s" for name in sorted(seconds))
    print(f"round {number}: {shown} (load {load:.1f} on {os.cpu_count()} cores)", flush=True)
    return seconds


def report(rounds: list[dict[str, float]]) -> int:
    """Print the rounds' results. Returns 0 if both limits hold."""
    for name in sorted(rounds[0]):
        print(f"{name:14} median {statistics.median(seconds[name] for seconds in rounds):5.1f} s")
    ratios = [seconds["gpuctl, cold"] / seconds["ray up, cold"] for seconds in rounds]
    differences = [seconds["gpuctl, warm"] - seconds["script, warm"] for seconds in rounds]
    ratio, difference = statistics.median(ratios), statistics.median(differences)
    shown = spread(ratios, 2, f"{len(rounds)} rounds, limit {RATIO_LIMIT}")
    print(f"cold: gpuctl train / ray up + ray job submit: median ratio {shown}")
    print(
        f"warm: gpuctl train - the script on the same Ray: median {difference:+.1f} s "
        f"(min {min(differences):+.1f}, max {max(differences):+.1f}, limit {DIFFERENCE_LIMIT_S})"
    )
    return 0 if ratio < RATIO_LIMIT and difference < DIFFERENCE_LIMIT_S else 1


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    if missing := lacking():
        sys.exit(f"nothing was measured: {missing}")
    if not (BIN / "ray").exists():
        sys.exit("nothing was measured: Ray is not installed here (pip install 'gpuctl[ray]')")
    with tempfile.TemporaryDirectory() as name, vms(Path(name), count=2, firewall="none") as net:
        bench = Bench(net=net, folder=Path(name))
        (bench.folder / "job").mkdir()
        (bench.folder / "job" / "script.py").write_text(SCRIPT)
        hosts, known_hosts = net.inventory(python=sys.executable)
        bench.gpuctl("up", "--hosts", str(hosts), "--known-hosts", str(known_hosts))
        # Send the code, and read torch into the page cache.
        bench.gpuctl("train", "--", *JOB)
        return report([one_round(bench, number) for number in range(1, rounds + 1)])


if __name__ == "__main__":
    sys.exit(main())
