"""Event files, read back as TensorBoard reads them."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from train.distributed.environment import DistributedEnvironment
from train.errors import NotWritten
from train.reporting.tensorboard import Writer, open_writer


def curves(folder):
    """{tag: [(step, value), …]} of all event files in the folder."""
    read = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_writer_curves_are_read_by_tensorboard(tmp_path: Path, capsys):
    folder = tmp_path / "artifacts" / "tensorboard"
    began = time.time()
    with open_writer(folder, DistributedEnvironment()) as writer:
        for epoch, loss in enumerate([0.5, 0.25, 0.125], 1):
            writer.scalar("loss/training", loss, epoch)
        writer.scalar("accuracy/validation", 0.75, 3)
        writer.scalar("perplexity/validation", 1e300, 3)
    assert curves(folder) == {
        "loss/training": [(1, 0.5), (2, 0.25), (3, 0.125)],
        "accuracy/validation": [(3, 0.75)],
        "perplexity/validation": [(3, math.inf)],
    }
    (first, *_) = EventAccumulator(str(folder)).Reload().Scalars("loss/training")
    assert began <= first.wall_time <= time.time()
    assert capsys.readouterr() == ("", "")


def test_writer_points_are_readable_at_once(tmp_path: Path):
    with open_writer(tmp_path, DistributedEnvironment()) as writer:
        writer.scalar("loss", 1.0, 1)
        assert curves(tmp_path) == {"loss": [(1, 1.0)]}
        writer.scalar("loss", 0.5, 2)
        assert curves(tmp_path) == {"loss": [(1, 1.0), (2, 0.5)]}


def test_writer_of_a_resumed_run_extends_the_curves(tmp_path: Path, start, node):
    script = tmp_path / "write.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from train.distributed.environment import DistributedEnvironment as Environment\n"
        "from train.reporting.tensorboard import open_writer\n"
        "open_writer(Path(sys.argv[1]), Environment()).scalar('loss', float(sys.argv[3]), int(sys.argv[2]))\n"
        "import os; os._exit(9)\n"
    )
    folder = tmp_path / "curves"
    for step, loss in (("1", "1.0"), ("2", "0.5")):
        with start(str(script), str(folder), step, loss, run_dir=tmp_path) as process:
            assert process.wait(timeout=60) == 9, "killed, as it were, without closing"
    assert len(list(folder.iterdir())) == 2
    assert curves(folder) == {"loss": [(1, 1.0), (2, 0.5)]}


@pytest.mark.parametrize(
    ("env", "enabled"),
    [(DistributedEnvironment(rank=1, world_size=2, local_rank=0), True), (DistributedEnvironment(), False)],
)
def test_writer_writes_only_on_rank_0_and_when_wanted(env, enabled, tmp_path: Path):
    with open_writer(tmp_path / "tensorboard", env, enabled=enabled) as writer:
        writer.scalar("loss", 1.0, 1)
    assert list(tmp_path.iterdir()) == []


def test_writer_needs_no_package_of_tensorboard(tmp_path: Path):
    program = (
        "import sys\n"
        "for name in ('tensorboard', 'google'): sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from train.distributed.environment import DistributedEnvironment as Environment\n"
        "from train.reporting.tensorboard import open_writer\n"
        "with open_writer(Path('curves'), Environment()) as writer: writer.scalar('größe', -1.5, 300)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert curves(tmp_path / "curves") == {"größe": [(300, -1.5)]}


def test_writer_can_be_closed_twice(tmp_path: Path):
    writer = open_writer(tmp_path, DistributedEnvironment())
    writer.close()
    writer.close()


def test_writer_raises_not_written_if_the_folder_cannot_be_made(tmp_path: Path):
    (tmp_path / "artifacts").write_text("a file")
    with pytest.raises(
        NotWritten, match=r"^TensorBoard's file .*artifacts/tensorboard/events\S+ can't be written: "
    ):
        open_writer(tmp_path / "artifacts" / "tensorboard", DistributedEnvironment()).scalar("loss", 1.0, 1)


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="there is no /dev/full, a disk that is always full"
)
def test_writer_raises_not_written_on_a_full_disk():
    with pytest.raises(NotWritten) as caught:
        Writer(Path("/dev/full")).scalar("loss", 1.0, 1)
    assert str(caught.value) == (
        "TensorBoard's file /dev/full can't be written: No space left on device. Make room or give access there, or "
        "train with --no-tensorboard."
    )
