"""Run the built-in job as a trial of Ray Tune, which searches its options."""

import os
from typing import Any

from train.constants import METRICS_VARIABLE, RUN_DIR_VARIABLE


def trial(config: dict[str, Any]) -> None:
    """Train with the options `config["words"]` and one for each other key, and report every epoch to Ray Tune.

    Reports `epoch`, `loss`, `validation_loss` and the metrics. One process, on the first GPU it is given, or the CPU.
    """
    from ray import tune

    from train.command_line import parse
    from train.job import run
    from train.reporting.report import Epoch

    words = list(config["words"])
    for name, value in config.items():
        if name != "words":
            words += [f"--{name.replace('_', '-')}", str(value)]

    def report(epoch: Epoch) -> None:
        metrics = {name: value for name, value in epoch.validation.items() if name != "loss"}
        tune.report(
            {
                "epoch": epoch.number,
                "loss": epoch.loss,
                "validation_loss": epoch.validation["loss"],
                **metrics,
            }
        )

    # A trial leaves nothing but its reports.
    os.environ.pop(METRICS_VARIABLE, None)
    os.environ[RUN_DIR_VARIABLE] = tune.get_context().get_trial_dir()
    run(parse([*words, "--no-save", "--checkpoint-every", "0", "--no-tensorboard"]), on_epoch=report)
