"""Both passes of a network on tensors that take no memory: what they keep, move and compute. Nothing is computed.

What such a pass takes of two samples and of four tells what a sample takes, and what the network takes once, such as
autocast's copies of the weights.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import (
    FlopCounterMode,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)
from torch.utils.hooks import RemovableHandle

from train.loss import mean_loss
from train.options import Options
from train.precision import autocast
from train.strategies.stages import Layer

FEW, MORE = 2, 4
"""Samples of the two passes. A single one is too few for networks that normalise over the batch."""
CPU = torch.device("cpu")
Kwargs: TypeAlias = dict[str, object] | None


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:  # noqa: ANN401 - sizes
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:  # noqa: ANN401
    return int(sdpa_backward_flop_count(gradient, query, key, value))  # type: ignore[no-untyped-call]


_OF_CPUS = "_scaled_dot_product_flash_attention_for_cpu"
ATTENTION = {
    getattr(torch.ops.aten, _OF_CPUS): _attention,
    getattr(torch.ops.aten, f"{_OF_CPUS}_backward"): _attention_backward,
}
"""torch's counter of operations knows attention on GPUs alone."""
PRODUCTS = {*flop_registry, *ATTENTION}
"""Operations that compute much with what they read: those that torch counts."""
ONLY_NAMED = {torch.ops.aten._unsafe_view, torch.ops.aten.empty}  # noqa: SLF001 - torch's own names
"""Operations that read and write nothing."""


@dataclass(kw_only=True)
class Counted:
    """What one pass of some layers took, in bytes and operations."""

    saved: float = 0.0
    split_saved: float = 0.0
    """Of them, what tensor parallelism divides."""
    moved: float = 0.0
    launches: float = 0.0
    flops: float = 0.0
    passed: float = 0.0
    """Of the results."""
    rows: dict[str, int] = field(default_factory=dict)
    """How many vectors each split layer took, by its name."""
    blocks: "dict[str, Counted]" = field(default_factory=dict)
    """What each of the blocks that were asked about saved, by its name."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What the steps of a network took."""

    steps: Sequence[Counted]
    """The forward pass."""
    flops: float
    """Both passes of all steps."""
    moved: float
    launches: float

    @property
    def forward_flops(self) -> float:
        """The forward pass of all steps."""
        return sum(step.flops for step in self.steps)

    @property
    def forward_moved(self) -> float:
        """The forward pass of all steps."""
        return sum(step.moved for step in self.steps)

    @property
    def forward_launches(self) -> float:
        """The forward pass of all steps."""
        return sum(step.launches for step in self.steps)

    def keeping(self, other: "Pass") -> "Pass":
        """Return it with what the steps of another pass keep: that of the network whose blocks compute again.

        What they compute and move stays that of the network itself.
        """
        pairs = zip(self.steps, other.steps, strict=True)
        steps = [replace(one, saved=kept.saved, split_saved=kept.split_saved) for one, kept in pairs]
        return replace(self, steps=steps)


@dataclass(frozen=True, kw_only=True)
class Share:
    """How a figure follows from the number of samples."""

    each: float
    """Of a sample."""
    once: float
    """Of the network, however many samples there are."""

    @classmethod
    def of(cls, few: float, more: float) -> "Share":
        """Return the line through the figures of FEW and of MORE samples."""
        each = (more - few) / (MORE - FEW)
        return cls(each=each, once=max(0.0, few - FEW * each))

    def per(self, other: "Share") -> "Share":
        """Return how many times the other it is."""
        return Share(each=self.each / (other.each or 1.0), once=self.once / (other.once or 1.0))


def take_memory_away(network: nn.Module, *, double: bool) -> None:
    """Replace weights and buffers by fake ones of the same sizes; the caller has a FakeTensorMode on."""
    made: dict[int, Any] = {}
    for part in network.modules():
        for kind in (part._parameters, part._buffers):  # noqa: SLF001 - torch has no other way to replace them all
            for name, old in kind.items():
                if old is None:
                    continue
                kind[name] = made.setdefault(id(old), _fake(old, double=double))


def _fake(old: Tensor, *, double: bool) -> Tensor:
    dtype = torch.float64 if double and old.is_floating_point() else old.dtype
    new = torch.empty(old.shape, dtype=dtype)
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


def both_passes(
    network: nn.Module,
    steps: Sequence[Layer],
    splits: Mapping[str, str],
    options: Options,
    shape: tuple[int, ...],
    samples: int,
    blocks: Collection[str] = (),
) -> Pass:
    """Take the steps forward, and all of them back. `blocks`: parts of which it is told what each saves."""
    network.train()
    network.zero_grad()  # to add up gradients would take more
    ours = {_storage(p) for p in network.parameters()}
    dtype = torch.float64 if options.precision == "fp64" else torch.float32
    value, found = torch.zeros(samples, *shape, dtype=dtype), [Counted() for _ in steps]
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as operations, MovedBytes(options) as moved:
        for step, counted in zip(steps, found, strict=True):
            flops, bytes_, launches = operations.get_total_flops(), moved.bytes, moved.launches
            with _kept(network, splits, blocks, counted, ours), autocast(options, CPU):
                value = step.compute(value)
                counted.passed = float(value.numel() * value.element_size())
                if step is steps[-1]:
                    value = mean_loss(value, torch.zeros(samples, dtype=torch.int64))
            counted.flops = float(operations.get_total_flops() - flops)
            counted.moved = float(moved.bytes - bytes_)
            counted.launches = float(moved.launches - launches)
        torch.autograd.backward(value)
    return Pass(
        steps=found,
        flops=float(operations.get_total_flops()),
        moved=float(moved.bytes),
        launches=float(moved.launches),
    )


@contextmanager
def _kept(
    network: nn.Module,
    splits: Mapping[str, str],
    blocks: Collection[str],
    counted: Counted,
    seen: set[StorageWeakRef],
) -> Iterator[None]:
    """Count what is kept for the backward pass, by blocks as well, and the vectors that split layers take.

    `seen`: storages that are not counted; those that are, are added.
    """
    between = False

    def pack(tensor: Tensor) -> Tensor:
        if (storage := _storage(tensor)) not in seen:
            seen.add(storage)
            size = tensor.untyped_storage().nbytes()
            counted.saved += size
            counted.split_saved += size if between else 0
        return tensor

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def told(_layer: nn.Module, inputs: tuple[Tensor, ...], _outputs: Tensor) -> None:
            nonlocal between
            between = splits[name] == "columns"  # to the end of the layer of rows
            counted.rows[name] = inputs[0].numel() // inputs[0].shape[-1]

        return told

    hooks = [network.get_submodule(name).register_forward_hook(hook(name)) for name in splits]
    for name in blocks:
        hooks += _of_block(network.get_submodule(name), name, counted)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
    for one in hooks:
        one.remove()


def _of_block(block: nn.Module, name: str, counted: Counted) -> list[RemovableHandle]:
    """Have what a block saves be told from what the others do."""

    def begin(_block: nn.Module, _inputs: object) -> None:
        counted.blocks[name] = Counted(saved=-counted.saved, split_saved=-counted.split_saved)

    def end(_block: nn.Module, _inputs: object, _outputs: object) -> None:
        counted.blocks[name].saved += counted.saved
        counted.blocks[name].split_saved += counted.split_saved

    return [block.register_forward_pre_hook(begin), block.register_forward_hook(end)]


def _storage(tensor: Tensor) -> StorageWeakRef:
    """Return what tells a storage from others, also from those that get its place."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class MovedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes that operations read and write, and their kernels.

    If nothing is compiled, each operation has its kernels. Compiled code has one kernel for all that is between two
    products (of matrices, convolutions, attention): it reads the result of one, and writes what the next one reads.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._compiled = options.compile
        self.bytes = 0
        self.launches = 0

    def __torch_dispatch__(
        self, func: OpOverload, _types: object, args: tuple[object, ...] = (), kwargs: Kwargs = None
    ) -> object:
        made: object = func(*args, **(kwargs or {}))
        if times := self._times(func):
            read, written = (_tensors(one) for one in ((args, kwargs), made))
            self.bytes += times * sum(one.numel() * one.element_size() for one in (*read, *written))
            self.launches += times * len(written)
        return made

    def _times(self, func: OpOverload) -> int:
        """Return how often the bytes of an operation are counted."""
        if self._compiled:
            return 2 if func.overloadpacket in PRODUCTS else 0
        moves = func.namespace == "aten" and not func.is_view and func.overloadpacket not in ONLY_NAMED
        return int(moves)


def _tensors(tree: object) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]
