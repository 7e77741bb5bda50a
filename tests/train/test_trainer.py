"""The epochs of a rank, in this process."""

import torch

from train.data.load import begin_to_load
from train.distributed.environment import DistributedEnvironment
from train.models.gpt_sizes import GPT_SIZES, GPTSize
from train.options import Options
from train.reporting.report import Report
from train.reporting.timing import TimeParts
from train.trainer import Trainer


def test_training_metrics_of_text_are_its_loss(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUCTL_DATA_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(GPT_SIZES, "gpt-10m", GPTSize(layers=1, width=8, heads=2, context=1024, lr=1e-3))
    (tmp_path / "book.txt").write_text("one by one " * 8)
    options = Options(
        model="gpt-10m",
        dataset="text",
        data_dir=str(tmp_path / "book.txt"),
        seq_len=8,
        batch_size=4,
        epochs=1,
    )
    report = Report(path=None, env=DistributedEnvironment(), options=options)
    env, device = DistributedEnvironment(), torch.device("cpu")
    load = begin_to_load(options, env, in_thread=True)
    trainer = Trainer(options, env, device, report, tmp_path / "checkpoints", TimeParts(), load)
    epoch = trainer.train_epoch()
    assert epoch.training == {"loss": epoch.loss}
    assert epoch.scalars()["training/loss"] > 0
