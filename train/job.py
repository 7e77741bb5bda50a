"""Run the training of one rank, from its start to the model on disk."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from train.checkpoints.files import save_model
from train.constants import ARTIFACTS, CHECKPOINTS, METRICS_VARIABLE, RUN_DIR_VARIABLE
from train.data.load import begin_to_load
from train.distributed import unused_gpus
from train.distributed.devices import (
    choose_device,
    cpu_threads,
    ranks_on_this_machine,
    usable_cores,
    warm_up,
)
from train.distributed.environment import read_environment
from train.distributed.process_group import process_group
from train.options import Options
from train.reporting.report import Epoch, Report
from train.reporting.tensorboard import open_writer
from train.reporting.timing import TimeParts
from train.trainer import Trainer


def run(options: Options, on_epoch: Callable[[Epoch], object] = lambda _: None) -> None:
    """Train, evaluate, report and save. Every rank calls this with the same options.

    `on_epoch` is called on every rank after each epoch and its evaluation.
    """
    began, parts = time.perf_counter(), TimeParts()
    env = read_environment()
    device = choose_device(options.device, env)
    note = unused_gpus.check(options.device, device)
    metrics, run_dir = os.environ.get(METRICS_VARIABLE), Path(os.environ.get(RUN_DIR_VARIABLE) or ".")
    set_arithmetic(options)
    # With a GPU, a thread reads the data while this one waits for the GPU and the other ranks.
    load = begin_to_load(options, env, in_thread=device.type == "cuda")
    curves = run_dir / ARTIFACTS / "tensorboard"
    with (
        Report(path=Path(metrics) if metrics else None, env=env, options=options) as report,
        process_group(env, device, timeout_s=options.timeout_s),
        open_writer(curves, env, enabled=options.tensorboard) as writer,
    ):
        warm_up(device, images=not options.is_text)
        parts.add("device", time.perf_counter() - began)
        if note:
            report.say(note)
        fair = cpu_threads(env, cores=usable_cores(), ranks=ranks_on_this_machine(env))
        torch.set_num_threads(options.threads or fair)
        with parts.measure("model"):
            trainer = Trainer(options, env, device, report, run_dir / CHECKPOINTS, parts, load)
        trainer.start()
        epochs = []
        while trainer.progress.epoch <= options.epochs:
            epochs.append(trainer.train_epoch())
            with parts.measure("evaluation"):
                report.epoch(epochs[-1])
                on_epoch(epochs[-1])
                for tag, value in epochs[-1].scalars().items():
                    writer.scalar(tag, value, epochs[-1].number)
            trainer.save_if_due()
        if epochs:
            use, test = trainer.device_use(), trainer.test()
            report.end(
                epochs,
                trainer.timing(),
                use=use,
                flops_per_sample=trainer.flops_per_sample,
                test=test,
                parts=parts.seconds,
            )
        else:
            test = trainer.test()
            epochs_before = trainer.progress.epoch - 1
            report.nothing_to_train(
                test or trainer.validate(), epochs_before=epochs_before, on_test=test is not None
            )
        if options.save:
            weights = trainer.strategy.model_state(trainer.model)
            if env.rank == 0:
                path = run_dir / ARTIFACTS / "model.pt"
                save_model(weights, path)
                report.say(f"model written to {path}")
        trainer.finish()


def set_arithmetic(options: Options) -> None:
    """Set torch's precision for this process."""
    if options.precision == "fp64":
        torch.set_default_dtype(torch.float64)
    # torch's own default is tf32 for convolutions alone.
    torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
    torch.set_float32_matmul_precision("high" if options.precision == "tf32" else "highest")
