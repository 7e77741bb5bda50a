"""Sections of `bench/gpu.py` for larger networks: against the plainest loop, and against advise."""

from dataclasses import asdict, replace
from typing import Any

import torch

from bench.parts import job, plain_gpt
from bench.parts.gpu_plan import Case, Steps
from bench.parts.gpu_work import Run, Work, check_graphs
from bench.parts.sections import NoTime
from train.advice.data import VOCABULARY_OF_BYTES
from train.advice.machines import Machines
from train.advice.question import question_of
from train.advice.rows import rows
from train.command_line import parse
from train.data.dataset import Dataset, Samples
from train.options import Options
from train.reporting.gpu_peaks import Peaks

OF_A_CPU = Peaks(tflops={"fp32": 0.1, "bf16": 0.1}, gb_s=20, link_gb_s=1)
"""For the miniature: a CPU has no data sheet here."""
WITHOUT_FILES = ("--no-save", "--no-tensorboard", "--checkpoint-every", "0", "--epochs", "10")
UNREAD = ("--tokenizer", "gpt2.json")
"""Of a file that does not exist, advise assumes GPT-2's tokens."""


def advise_run(case: Case) -> Run:
    """Return the section that measures a job, and compares the steps with the range of advise."""

    def run(work: Work) -> None:
        work.tell.value("case", "words", value=case.words)
        work.tell.value("case", "forecast", value=_forecast(case, work.device))
        options, dataset = _job(case, work)
        with job.dataset_of(dataset):
            measured = job.measure(options, work.device, work.folder, steps=_steps(work), until=work.until)
        work.tell.value("case", "measured", value=measured)
        check_graphs(work, case.words, options, measured)

    return run


def plain_gpt_section(work: Work) -> None:
    """Steps of the plainest loop of the same text model. Raises NoTime for too few of them."""
    settings = plain_gpt.GPTSettings() if work.device.type == "cuda" else plain_gpt.MINIATURE
    steps = work.sizes.steps
    speed = plain_gpt.plain_gpt_speed(work.device, steps=steps.counted, until=work.until, settings=settings)
    if speed.steps < steps.minimum:
        raise NoTime(f"{speed.steps} steps were taken after the warm-up, and {steps.minimum} are needed")
    work.tell.value("plain", value=asdict(speed))


def _steps(work: Work) -> Steps:
    """Fewer of them than of a small network: each takes tens of milliseconds."""
    steps = work.sizes.steps
    return replace(steps, warm_up=max(2, steps.warm_up * 2 // 3), watched=0)


def _job(case: Case, work: Work) -> tuple[Options, Dataset]:
    options = parse([*case.words.split(), *WITHOUT_FILES])
    assert options.batch_size is not None
    count = _steps(work).all * options.batch_size
    generator = torch.Generator().manual_seed(0)
    if case.images is None:
        tokens = torch.randint(
            case.vocabulary, (count, options.seq_len + 1), generator=generator, dtype=torch.int32
        )
        samples = Samples(inputs=tokens[:, :-1].contiguous(), labels=tokens[:, 1:].contiguous())
        about: dict[str, Any] = {"classes": case.vocabulary}
    else:
        *shape, classes = case.images
        options = replace(options, dataset="synthetic")
        images = torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8)
        samples = Samples(inputs=images, labels=torch.randint(classes, (count,), generator=generator))
        about = {"classes": classes, "mean": (0.5,) * shape[0], "std": (0.25,) * shape[0]}
    validation = samples[slice(options.batch_size)]
    return options, Dataset(name=options.dataset, training=samples, validation=validation, test=None, **about)


def _forecast(case: Case, device: torch.device) -> dict[str, Any]:
    """Return the range of a step, milliseconds, and the memory without the libraries' part, that advise gives."""
    words = [*case.words.split(), "--strategy", "ddp"]
    if case.images is not None:
        count = 1000, *case.images
        words += ["--dataset", "synthetic", "--synthetic", ",".join(map(str, count))]
    elif case.vocabulary != VOCABULARY_OF_BYTES:
        words += UNREAD
    on_gpu = device.type == "cuda"
    machines = Machines(
        shape="this machine",
        count=1,
        gpus=1,
        gpu=torch.cuda.get_device_name(device) if on_gpu else "CPU",
        gpu_memory_gb=torch.cuda.get_device_properties(device).total_memory / 1e9 if on_gpu else 1000.0,
        between_gb_s=None,
        hourly_usd=None,
        peaks=None if on_gpu else OF_A_CPU,
    )
    [row] = rows(question_of(words, batch_tokens=None, tokens=None), [machines])
    return {
        "step_ms": row.step_s and [seconds * 1e3 for seconds in row.step_s],
        "memory_gb": row.memory and sum(row.memory.values()) - row.memory["libraries"],
        "reason": row.reason,
    }
