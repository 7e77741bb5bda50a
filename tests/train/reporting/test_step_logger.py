"""Test the choice of steps for the metrics file."""

import json

import pytest
import torch

from train.distributed.environment import DistributedEnvironment
from train.options import Options
from train.reporting import step_logger
from train.reporting.progress import TrainingProgress
from train.reporting.report import Report
from train.reporting.step_logger import StepLogger
from train.reporting.timing import StepTimer


@pytest.fixture
def logged(tmp_path):
    """Take steps from a position on; which of them have a line."""

    def took(number, *, every, before=0):
        path, cpu = tmp_path / "metrics.jsonl", torch.device("cpu")
        progress, timer = TrainingProgress(cpu), StepTimer(cpu)
        progress.steps = before
        with Report(path=path, env=DistributedEnvironment(), options=Options()) as report:
            log = StepLogger(report, timer, cpu, every, counts=True)
            for _ in range(number):
                timer.start()
                timer.data_ready(1)
                timer.backward_done()
                timer.end()
                progress.add_step(1, torch.zeros(()), consumed=1, counts=True)
                log.add(progress, torch.ones(()))
            log.finish()
        return [json.loads(line)["step"] for line in path.read_text().splitlines()]

    return took


def test_first_step_and_every_tenth_have_a_line(logged):
    assert logged(25, every=10) == [1, 10, 20]


def test_first_step_after_a_resume_has_a_line(logged):
    assert logged(10, every=10, before=13) == [14, 20]


def test_slow_steps_have_a_line_each(logged, monkeypatch):
    monkeypatch.setattr(step_logger, "MAX_SILENT_S", 0.0)
    assert logged(4, every=10) == [1, 2, 3, 4]
