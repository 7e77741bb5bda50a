"""What `bench/gpu.py` does in which order, and how much of it. Standard library alone."""

from dataclasses import dataclass

from bench.parts.sections import Section


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is taken of everything."""

    model: str
    images: int
    batches: tuple[int, int]
    epochs: int
    """That count, at most; one more comes before them."""
    matrix: int
    copied: int
    """Bytes."""
    watched: int
    """Steps that are looked at for waits."""
    loss_steps: int
    loss_batch: int


WHOLE = Sizes(
    model="resnet18", images=50_000, batches=(64, 1024), epochs=3, matrix=8192, copied=2**31,
    watched=100, loss_steps=8, loss_batch=32,
)  # fmt: skip
MINIATURE = Sizes(
    model="cnn",
    images=18,
    batches=(4, 8),
    epochs=1,
    matrix=128,
    copied=2**20,
    watched=2,
    loss_steps=2,
    loss_batch=4,
)


def sections_of(sizes: Sizes, *, on_gpu: bool) -> list[Section]:
    """All of them, in order of what is to be known first. Compiling is left out on a CPU: it takes minutes there."""
    small, large = sizes.batches
    found = [
        Section(name="device", limit_s=90),
        Section(name="waits", limit_s=90),
        Section(name="losses", limit_s=90),
        Section(name=f"batch {small}", limit_s=150),
        Section(name="parsers", limit_s=45),
        Section(name="nccl", limit_s=60, alone=True),
        Section(name=f"batch {large}", limit_s=110),
        Section(name=f"batch {small}, compiled", limit_s=110),
        Section(name=f"batch {large}, bf16 compiled", limit_s=110),
        Section(name=f"batch {small}, bf16 compiled", limit_s=110),
        Section(name="profile", limit_s=40, alone=on_gpu),
        Section(name=f"batch {large}, compiled", limit_s=110),
    ]
    return [section for section in found if on_gpu or "compiled" not in section.name]
