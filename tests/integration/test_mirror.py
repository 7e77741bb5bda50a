"""Test that a run's checkpoints outlive its first node, as they are downloaded while the run continues."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Gpuctl, interrupt, wait_for

pytestmark = pytest.mark.slow

JOB = (
    "--model",
    "mlp",
    "--checkpoint-every",
    "1",
    "--epochs",
    "100000",
    "--threads",
    "1",
    "--no-tensorboard",
)


@pytest.fixture
def mirrored(two_hosts: Gpuctl) -> "Iterator[tuple[subprocess.Popen[str], Path]]":
    """Start `train --max-restarts 1` of the built-in job; yield once a checkpoint is local, with the run's folder."""
    process = two_hosts.start("train", "--max-restarts", "1", "--json", "--", *JOB)

    def here() -> Path | None:
        return next((two_hosts.home / "runs").glob("*/checkpoints/step-*.json"), None)

    yield process, wait_for(here, what="a checkpoint here").parents[1]
    process.kill()
    process.communicate(timeout=30)


def test_train_resumes_from_mirrored_checkpoint_after_node_loss(
    two_hosts: Gpuctl, mirrored: "tuple[subprocess.Popen[str], Path]"
) -> None:
    process, folder = mirrored
    two_hosts.kill_host("default-0")
    [newest] = (folder / "checkpoints").glob("step-*.pt")

    def again() -> Path | None:
        """Return the folder of the next run once it has taken a step."""
        metrics = list((two_hosts.home / "runs").glob("*/metrics/rank-0.jsonl"))
        rest = [path for path in metrics if path.parents[1] != folder and '"step"' in path.read_text()]
        return rest[0].parents[1] if rest else None

    second = wait_for(again, what="the restart", deadline_s=90)
    interrupt(process)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    result = json.loads(out)
    assert (result["run"], result["resumed_from"], result["nnodes"]) == (second.name, folder.name, 1)
    line = f"resumes from {newest.name} of run {folder.name} on 1 node"
    older = ", with what was brought here; default-0, which does not answer, may have newer ones"
    [output] = [output for output in err.splitlines() if output.startswith("restart 1 of 1: ")]
    assert line in output
    assert output.endswith(older)
    steps = [
        json.loads(text).get("step")
        for text in (second / "metrics" / "rank-0.jsonl").read_text().splitlines()
    ]
    assert min(step for step in steps if step) >= int(newest.stem[5:])

    # As if all had been lost with the node: only a run that is named resumes from a possibly older checkpoint.
    shutil.rmtree(second)
    refused = two_hosts("train", "--resume", "--dry-run")
    assert refused.status == 1
    assert (
        f"Run {folder.name} may have left newer checkpoints on default-0, which does not answer"
        in refused.err
    )
    assert "resume from what was brought here of it all the same" in refused.err
    inventory = two_hosts.home / "clusters" / "default" / "inventory.yaml"
    ranks = iter((1, 0))
    inventory.write_text(re.sub(r"rank: \d+", lambda _: f"rank: {next(ranks)}", inventory.read_text()))
    values = two_hosts.ok("train", "--resume-from", folder.name, "--nnodes", "1", "--dry-run")
    assert f"{line}, 1 rank instead of 2" in values.out + values.err
    assert older in values.out + values.err
