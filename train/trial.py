"""The built-in job as one trial of a search with Ray Tune: what differs from trial to trial are its options."""

import os
from typing import Any

from train.constants import METRICS_VARIABLE, RUN_DIR_VARIABLE


def trial(config: dict[str, Any]) -> None:
    """Train with the options `config["words"]` and one more for each other key, and report every epoch to Ray Tune.

    Reports `loss`, `accuracy` and the like, and `epoch`. One process: the first GPU it is given, or else the CPU.
    """
    from ray import tune

    from train.command_line import parse
    from train.loop import run
    from train.report import Epoch

    words = list(config["words"])
    for name, value in config.items():
        if name != "words":
            words += [f"--{name.replace('_', '-')}", str(value)]

    def tell(epoch: Epoch) -> None:
        judged = {name: value for name, value in epoch.validation.items() if name != "loss"}
        tune.report(
            {"epoch": epoch.number, "loss": epoch.loss, "validation_loss": epoch.validation["loss"], **judged}
        )

    # Of a trial nothing is kept but what it reports.
    os.environ.pop(METRICS_VARIABLE, None)
    os.environ[RUN_DIR_VARIABLE] = tune.get_context().get_trial_dir()
    run(parse([*words, "--no-save", "--checkpoint-every", "0", "--no-tensorboard"]), on_epoch=tell)
