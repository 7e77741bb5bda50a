"""The shapes that gpuctl knows, by the names that their clouds give them."""

from dataclasses import dataclass

from inventories.suggest import nearest


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of machine."""

    name: str
    provider: str
    gpus: int


_OCI = {
    "VM.GPU2.1": 1,
    "VM.GPU3.1": 1,
    "VM.GPU3.2": 2,
    "VM.GPU3.4": 4,
    "VM.GPU.A10.1": 1,
    "VM.GPU.A10.2": 2,
    "BM.GPU.A10.4": 4,
    "BM.GPU3.8": 8,
    "BM.GPU4.8": 8,
    "BM.GPU.A100-v2.8": 8,
    "BM.GPU.L40S.4": 4,
    "BM.GPU.H100.8": 8,
    "BM.GPU.H200.8": 8,
    "BM.GPU.B200.8": 8,
    "BM.GPU.GB200.4": 4,
    "BM.GPU.GB300.4": 4,
}

_AWS = {
    "g4dn.xlarge": 1,
    "g4dn.12xlarge": 4,
    "g4dn.metal": 8,
    "g5.xlarge": 1,
    "g5.12xlarge": 4,
    "g5.48xlarge": 8,
    "g6.xlarge": 1,
    "g6.12xlarge": 4,
    "g6.48xlarge": 8,
    "g6e.xlarge": 1,
    "g6e.12xlarge": 4,
    "g6e.48xlarge": 8,
    "p3.2xlarge": 1,
    "p3.8xlarge": 4,
    "p3.16xlarge": 8,
    "p4d.24xlarge": 8,
    "p4de.24xlarge": 8,
    "p5.4xlarge": 1,
    "p5.48xlarge": 8,
    "p5en.48xlarge": 8,
    "p6-b200.48xlarge": 8,
    "p6-b300.48xlarge": 8,
}

SHAPES: dict[str, Shape] = {
    name: Shape(name=name, provider=provider, gpus=gpus)
    for provider, shapes in (("oci", _OCI), ("aws", _AWS))
    for name, gpus in shapes.items()
}
"""By name."""


def nearest_shapes(name: str) -> list[str]:
    """The names most like `name`, best first, `local` among them; none where nothing is like it."""
    return nearest(name, ["local", *SHAPES])
