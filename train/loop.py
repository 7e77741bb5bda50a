"""The training run of one rank, from the first weights to the model on disk."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from train import unused_gpus
from train.artifacts import save_model
from train.constants import ARTIFACTS, CHECKPOINTS, METRICS_VARIABLE, RUN_DIR_VARIABLE
from train.distributed import (
    choose_device,
    cpu_threads,
    process_group,
    ranks_on_this_machine,
    this_place,
    usable_cores,
)
from train.options import Options
from train.report import Epoch, Report
from train.tensorboard import open_writer
from train.timing import summarize
from train.trainer import Trainer


def run(options: Options, on_epoch: Callable[[Epoch], object] = lambda _: None) -> None:
    """Train, evaluate, report, save. Every rank calls it with the same options.

    `on_epoch` is called by every rank with each epoch that is over and evaluated.
    """
    place = this_place()
    device = choose_device(options.device, place)
    note = unused_gpus.check(options.device, device)
    metrics, run_dir = os.environ.get(METRICS_VARIABLE), Path(os.environ.get(RUN_DIR_VARIABLE) or ".")
    curves = run_dir / ARTIFACTS / "tensorboard"
    with (
        Report(path=Path(metrics) if metrics else None, place=place, options=options) as report,
        process_group(place, device, timeout_s=options.timeout_s),
        open_writer(curves, place, wanted=options.tensorboard, say=report.say) as writer,
    ):
        if note:
            report.say(note)
        fair = cpu_threads(place, cores=usable_cores(), ranks=ranks_on_this_machine(place))
        torch.set_num_threads(options.threads or fair)
        set_arithmetic(options)
        trainer = Trainer(options, place, device, report, run_dir / CHECKPOINTS)
        trainer.start()
        epochs = []
        while trainer.progress.epoch <= options.epochs:
            epochs.append(trainer.take_epoch())
            report.epoch(epochs[-1])
            on_epoch(epochs[-1])
            for tag, value in epochs[-1].scalars().items():
                writer.scalar(tag, value, epochs[-1].number)
            trainer.keep()
        if epochs:
            report.end(epochs, summarize(trainer.timer.steps), test=trainer.test())
        else:
            test = trainer.test()
            epochs_before = trainer.progress.epoch - 1
            report.was_over(test or trainer.validate(), epochs_before=epochs_before, on_test=test is not None)
        if options.save and place.rank == 0:
            path = run_dir / ARTIFACTS / "model.pt"
            save_model(trainer.model, path)
            report.say(f"model written to {path}")


def set_arithmetic(options: Options) -> None:
    """How torch computes products and convolutions in this process, from now on."""
    # torch's own default is tf32 for convolutions alone.
    torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
    # Steps have one shape, and the last of an epoch another: worth trying which convolution is the fastest.
    torch.backends.cudnn.benchmark = options.loop == "fast"
    torch.set_float32_matmul_precision("high" if options.precision == "tf32" else "highest")
