"""The plan of `bench/gpu.py`: its sections in order, and their sizes. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.parts.sections import Section


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job to ask `gpuctl advise` about, and then to measure."""

    words: str
    """The job's options."""
    images: tuple[int, int, int, int] | None = None
    """Channels, height, width and classes of synthetic images. `None`: the job trains on random tokens."""
    vocabulary: int = 50_257
    """Number of different tokens."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Numbers of steps of a measurement."""

    warm_up: int
    """First steps, which do not count: they compile, tune, record graphs."""
    counted: int
    """Maximum number of timed steps."""
    minimum: int
    """Minimum number of timed steps: with fewer, nothing is measured."""
    watched: int
    """Later steps, which are checked for waits."""

    @property
    def all(self) -> int:
        """Steps of an epoch, which must not end before all of these."""
        return self.warm_up + self.counted + self.watched + 1


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers and sizes of all measurements."""

    model: str
    batches: tuple[int, int]
    steps: Steps
    matrix: int
    copied: int
    """Bytes."""
    starts: int
    """Rounds of `gpuctl train` and a script by hand."""
    loss_steps: int
    loss_batch: int
    gpt: str
    """Options of the text model for the plainest loop."""
    cases: Mapping[str, Case]
    """Jobs for advice, by name."""

    @property
    def images(self) -> int:
        """The dataset's images: an epoch of the large batch is longer than all measured steps."""
        return self.steps.all * self.batches[1]


WHOLE = Sizes(
    model="resnet18", batches=(64, 1024), steps=Steps(warm_up=20, counted=50, minimum=20, watched=20),
    starts=1, matrix=8192, copied=2**31, loss_steps=8, loss_batch=32,
    gpt="--model gpt-124m --batch-size 12 --seq-len 1024 --precision bf16 --optimizer adamw --compile",
    cases={
        "gpt-124m": Case(words="--model gpt-124m --batch-size 8 --seq-len 1024 --precision bf16"),
        "gpt-350m": Case(words="--model gpt-350m --batch-size 8 --seq-len 1024 --precision bf16"),
        "resnet50": Case(words="--model resnet50 --batch-size 64 --precision bf16", images=(3, 224, 224, 1000)),
        "gpt-124m of bytes": Case(words="--model gpt-124m --batch-size 8 --seq-len 256", vocabulary=257),
    },
)  # fmt: skip
MINIATURE = Sizes(
    model="cnn", batches=(4, 8), steps=Steps(warm_up=2, counted=3, minimum=2, watched=2),
    starts=1, matrix=128, copied=2**20, loss_steps=2, loss_batch=4,
    gpt="--model gpt-10m --batch-size 1 --seq-len 8 --optimizer adamw",
    cases={
        "gpt-10m": Case(words="--model gpt-10m --batch-size 1 --seq-len 8", vocabulary=257),
        "cnn": Case(words="--model cnn --batch-size 4", images=(3, 8, 8, 10)),
    },
)  # fmt: skip

PUBLISHED = "published"
LOOPS: Mapping[str, Mapping[str, object]] = {
    "plain": {"loop": "plain"},
    "fast": {},
    "fast --graphs off": {"graphs": "off"},
    "fast bf16": {"precision": "bf16"},
    "fast bf16 --graphs off": {"precision": "bf16", "graphs": "off"},
    "fast bf16 --compile": {"precision": "bf16", "compile": True},
}
"""Options of the built-in job's loops, by the name of the loop."""
LOOPS_OF_SMALL = (PUBLISHED, *LOOPS)
LOOPS_OF_LARGE = (PUBLISHED, "fast", "fast bf16", "fast bf16 --graphs off")
GPT, PLAIN_GPT = "gpt: ours", "gpt: plainest loop"


def sections_of(sizes: Sizes, *, on_gpu: bool) -> list[Section]:
    """Return all sections, the most important ones first. On a CPU nothing is compiled: that takes minutes.

    The limits add up to 300 seconds on a GPU. A section that ends early leaves its time to later sections.
    """
    small, large = sizes.batches
    sections = [
        Section(name="device", limit_s=12),
        *(Section(name=loop_section(small, loop), limit_s=16 if "compile" in loop else 8) for loop in LOOPS_OF_SMALL),
        Section(name="parsers", limit_s=8),
        Section(name="waits", limit_s=8),
        Section(name="losses", limit_s=15),
        *(Section(name=loop_section(large, loop), limit_s=8) for loop in LOOPS_OF_LARGE),
        Section(name=GPT, limit_s=26),
        Section(name=PLAIN_GPT, limit_s=36),
        *(Section(name=f"advise: {name}", limit_s=8) for name in sizes.cases),
        Section(name="start", limit_s=34, alone=True),
        Section(name="compiled graphs", limit_s=12),
        Section(name="nccl", limit_s=13, alone=True),
        Section(name="profile", limit_s=8, alone=on_gpu),
    ]  # fmt: skip
    return [section for section in sections if on_gpu or "compile" not in section.name]


def loop_section(batch: int, loop: str) -> str:
    """Return the name of the section of a loop: `batch 64: fast`."""
    return f"batch {batch}: {loop}"
