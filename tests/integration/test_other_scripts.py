"""Test scripts of frameworks as published, and scripts that their guides have users write."""

import subprocess
from pathlib import Path

import pytest
from support import Gpuctl, frameworks_python

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "others"


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter that has the frameworks."""
    return frameworks_python("accelerate", "lightning", "transformers")


def test_accelerates_own_test_script_passes_on_two_ranks(cluster: Gpuctl, python: str) -> None:
    """On one node, as its ranks write into one file. Without the variable, ranks without a GPU are alone."""
    where = ("--nnodes", "1", "--nproc-per-node", "2", "--env", "ACCELERATE_USE_CPU=true")
    local = ("-m", "accelerate.test_utils.scripts.test_script")
    done = cluster.ok("train", "--python", python, *where, *local, timeout_s=400)
    assert "Num processes: 2" in done.err
    assert "Training yielded the same results on one CPU or distributed setup with batch split." in done.err


def test_lightning_meets_on_two_nodes_and_its_losses_are_found(cluster: Gpuctl, python: str) -> None:
    example(cluster, "lightning_two_nodes.py")
    done = cluster.ok("train", "--json", "--python", python, "lightning_two_nodes.py", timeout_s=400)
    assert log_of(cluster, done.json).count("ranks 2, loss ") == 1
    train = done.json["train"]
    assert (train["loss_from"], train["loss_by"], len(train["loss"])) == ("Lightning", "step", 5)
    assert train["loss"][-1] < train["loss"][0] / 10
    assert "Lightning" in {file["kind"] for file in done.json["outputs"]}


def test_trainer_meets_on_two_nodes_and_its_losses_are_found(cluster: Gpuctl, python: str) -> None:
    example(cluster, "trainer.py")
    done = cluster.ok("train", "--json", "--python", python, "trainer.py", timeout_s=400)
    assert log_of(cluster, done.json).count("ranks 2, loss ") == 1
    train = done.json["train"]
    assert (train["loss_from"], train["loss_by"]) == ("Trainer", "step")
    assert train["loss"][-1] < train["loss"][0]
    nodes = {file["node"] for file in done.json["outputs"] if "rng_state" in file["path"]}
    assert nodes == {"default-0", "default-1"}, "each rank's own state comes back"


def test_deepspeed_shards_its_optimizer_over_two_nodes(
    cluster: Gpuctl, tmp_path_factory: pytest.TempPathFactory
) -> None:
    python = frameworks_python("deepspeed")
    example(cluster, "deepspeed_zero1.py")
    built = f"TORCH_EXTENSIONS_DIR={tmp_path_factory.mktemp('built')}"  # its kernels: compiled once for both
    done = cluster.ok(
        "train", "--json", "--python", python, "--env", built, "deepspeed_zero1.py", timeout_s=550
    )
    losses = done.json["train"]["loss"]
    assert (done.json["train"]["loss_from"], len(losses)) == ("log", 4)
    assert losses[-1] < losses[0] / 4
    parts = {
        (file["node"], Path(file["path"]).name) for file in done.json["outputs"] if "zero_pp" in file["path"]
    }
    assert parts == {
        (f"default-{rank}", f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt") for rank in range(2)
    }


def test_deepspeed_takes_the_built_in_jobs_steps_and_torch_resumes_them(cluster: Gpuctl) -> None:
    """The configuration is a local file, and the checkpoint has parts on both nodes."""
    python = frameworks_python("deepspeed")
    (cluster.cwd / "ds.json").write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 2}}')
    job = (
        "--model",
        "mlp",
        "--dataset",
        "synthetic",
        "--synthetic",
        "256,1,8,8,4",
        "--epochs",
        "1",
        "--device",
        "cpu",
    )
    engine = ("--engine", "deepspeed", "--deepspeed-config", "ds.json")
    done = cluster.ok("train", "--json", "--python", python, "--", *job, *engine, timeout_s=300).json
    assert (done["train"]["strategy"], done["world_size"]) == ("deepspeed zero2", 2)
    refused = cluster("train", "--python", python, "--", *job, *engine, "--global-batch-size", "32")
    assert refused.status == 2
    assert "says train_batch_size 64, and --global-batch-size says 32" in " ".join(refused.err.split())
    exported = cluster.ok("export", done["run"], "-o", "model.pt")
    assert "wrote model.pt" in exported.out + exported.err
    options = ("--engine", "torch", "--epochs", "2")
    again = cluster.ok("train", "--json", "--resume", "--nnodes", "1", "--", *options, timeout_s=300)
    assert again.json["train"]["strategy"] == "single"
    assert "with 1 rank instead of 2" in log_of(cluster, again.json)


def test_rays_own_examples_run(cluster: Gpuctl) -> None:
    linear = cluster.ok(
        "train", "--mode", "ray", "-m", "ray.train.examples.pytorch.torch_linear_example", "--num-workers", "2",
        timeout_s=300,
    )  # fmt: skip
    assert "world_rank=1" in linear.err
    tuned = cluster.ok(
        "train", "--mode", "ray", "-m", "ray.tune.examples.tune_basic_example", "--smoke-test", timeout_s=300
    )
    assert "Best hyperparameters found were" in tuned.err


NANO = {
    ".gitignore": "*.bin\nout/\n",
    "configurator.py": "import sys\nfor word in sys.argv[1:]:\n    exec(open(word).read())\n",
    "config/tiny.py": "steps = 3\n",
    "train.py": """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
steps, dataset, out_dir = 1, "letters", "out"
exec(open("configurator.py").read())
dist.init_process_group("gloo")
data = torch.frombuffer(bytearray(open(os.path.join("data", dataset, "train.bin"), "rb").read()), dtype=torch.uint8)
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Embedding(256, 256))
for step in range(steps):
    at = torch.randint(len(data) - 8, (4,)).tolist()
    x, y = (torch.stack([data[i + n : i + n + 7].long() for i in at]) for n in (0, 1))
    loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    if dist.get_rank() == 0:
        print(f"iter {step}: loss {loss.item():.4f}", flush=True)
if dist.get_rank() == 0:
    os.makedirs(out_dir, exist_ok=True)
    torch.save(model.module.state_dict(), os.path.join(out_dir, "ckpt.pt"))
dist.destroy_process_group()
""",
}
"""Files of a project like nanoGPT's repository: ignored data, and a settings script among the arguments."""


def test_nanogpts_layout_gets_its_ignored_data_and_brings_its_checkpoint(cluster: Gpuctl) -> None:
    for name, text in NANO.items():
        (cluster.cwd / name).parent.mkdir(exist_ok=True)
        (cluster.cwd / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=cluster.cwd, check=True)
    data = cluster.cwd / "data" / "letters" / "train.bin"
    data.parent.mkdir(parents=True)
    data.write_bytes(b"abcdefgh" * 100)
    failed = cluster("train", "train.py", "config/tiny.py")
    assert failed.status == 1
    assert "--include data" in " ".join(failed.out.split())
    done = cluster.ok("train", "--json", "--include", "data", "train.py", "config/tiny.py").json
    assert (len(done["train"]["loss"]), done["train"]["loss_from"]) == (3, "log")
    assert [(file["node"], file["path"], file["brought"]) for file in done["outputs"]] == [
        ("default-0", "out/ckpt.pt", True)
    ]


def example(cluster: Gpuctl, name: str) -> None:
    """Put a script of the docs into the project."""
    cluster.script(name, (EXAMPLES / name).read_text())


def log_of(cluster: Gpuctl, result: dict[str, object]) -> str:
    """Return the output of rank 0."""
    return (cluster.run_folder(str(result["run"])) / "logs" / "rank-0.log").read_text()
