"""Count the saved and moved bytes and the operations of both passes, on tensors without memory. Nothing is computed.

Passes of two samples and of four show the share of a sample and the fixed share of the network, such as autocast's
copies of the weights.
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

from train.loss import autocast, mean_loss
from train.options import Options
from train.strategies.plan import Layer

FEWER, MORE = 2, 4
"""Samples of the two passes. Networks that normalise over the batch need more than one."""
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
"""Attention on CPUs: torch's counter of operations knows attention on GPUs only."""
PRODUCTS = {*flop_registry, *ATTENTION}
"""Operations with much computing for the bytes that they read: torch counts these."""
ONLY_NAMED = {torch.ops.aten._unsafe_view, torch.ops.aten.empty}  # noqa: SLF001 - torch's own names
"""Operations that read and write nothing."""


@dataclass(kw_only=True)
class Counted:
    """Bytes and operations of one pass of some layers."""

    saved: float = 0.0
    split_saved: float = 0.0
    """Part of `saved` that tensor parallelism divides."""
    moved: float = 0.0
    launches: float = 0.0
    flops: float = 0.0
    passed: float = 0.0
    """Bytes of the results."""
    rows: dict[str, int] = field(default_factory=dict)
    """Number of vectors into each split layer, by name."""
    blocks: "dict[str, Counted]" = field(default_factory=dict)
    """Saved bytes of the requested blocks, by name."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Bytes and operations of a network's steps."""

    steps: Sequence[Counted]
    """The forward pass."""
    flops: float
    """Operations of both passes of all steps."""
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
        """Return this pass with the saved bytes of another, in which blocks compute twice.

        Computing and moved bytes stay: the advice adds the second computation separately.
        """
        pairs = zip(self.steps, other.steps, strict=True)
        steps = [replace(step, saved=saving.saved, split_saved=saving.split_saved) for step, saving in pairs]
        return replace(self, steps=steps)


@dataclass(frozen=True, kw_only=True)
class Share:
    """A figure as a linear function of the number of samples."""

    each: float
    """Share of a sample."""
    once: float
    """Fixed share of the network."""

    @classmethod
    def of(cls, fewer: float, more: float) -> "Share":
        """Return the line through the figures for FEWER and for MORE samples."""
        each = (more - fewer) / (MORE - FEWER)
        return cls(each=each, once=max(0.0, fewer - FEWER * each))

    def per(self, other: "Share") -> "Share":
        """Return the ratio to another share."""
        return Share(each=self.each / (other.each or 1.0), once=self.once / (other.once or 1.0))


def take_memory_away(network: nn.Module, *, double: bool) -> None:
    """Replace weights and buffers by fake tensors of the same sizes. The caller has enabled a FakeTensorMode."""
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
    """Run the steps forward, then backward. `blocks`: names of modules whose saved bytes are counted separately."""
    network.train()
    network.zero_grad()  # accumulating gradients would take more
    ours = {_storage(p) for p in network.parameters()}
    dtype = torch.float64 if options.precision == "fp64" else torch.float32
    value, counts = torch.zeros(samples, *shape, dtype=dtype), [Counted() for _ in steps]
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as operations, MovedBytes(options) as moved:
        for step, counted in zip(steps, counts, strict=True):
            flops, bytes_, launches = operations.get_total_flops(), moved.bytes, moved.launches
            with _count_saved(network, splits, blocks, counted, ours), autocast(options, CPU):
                value = step.compute(value)
                counted.passed = float(value.numel() * value.element_size())
                if step is steps[-1]:
                    value = mean_loss(value, torch.zeros(samples, dtype=torch.int64))
            counted.flops = float(operations.get_total_flops() - flops)
            counted.moved = float(moved.bytes - bytes_)
            counted.launches = float(moved.launches - launches)
        torch.autograd.backward(value)
    return Pass(
        steps=counts,
        flops=float(operations.get_total_flops()),
        moved=float(moved.bytes),
        launches=float(moved.launches),
    )


@contextmanager
def _count_saved(
    network: nn.Module,
    splits: Mapping[str, str],
    blocks: Collection[str],
    counted: Counted,
    counted_storages: set[StorageWeakRef],
) -> Iterator[None]:
    """Count the tensors saved for the backward pass, also by block, and the vectors into split layers.

    `counted_storages`: are not counted again; the newly counted ones are added.
    """
    between = False

    def pack(tensor: Tensor) -> Tensor:
        if (storage := _storage(tensor)) not in counted_storages:
            counted_storages.add(storage)
            size = tensor.untyped_storage().nbytes()
            counted.saved += size
            counted.split_saved += size if between else 0
        return tensor

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def count_rows(_layer: nn.Module, inputs: tuple[Tensor, ...], _outputs: Tensor) -> None:
            nonlocal between
            between = splits[name] == "columns"  # to the end of the layer of rows
            counted.rows[name] = inputs[0].numel() // inputs[0].shape[-1]

        return count_rows

    hooks = [network.get_submodule(name).register_forward_hook(hook(name)) for name in splits]
    for name in blocks:
        hooks += _of_block(network.get_submodule(name), name, counted)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
    for handle in hooks:
        handle.remove()


def _of_block(block: nn.Module, name: str, counted: Counted) -> list[RemovableHandle]:
    """Count a block's saved bytes separately."""

    def begin(_block: nn.Module, _inputs: object) -> None:
        counted.blocks[name] = Counted(saved=-counted.saved, split_saved=-counted.split_saved)

    def end(_block: nn.Module, _inputs: object, _outputs: object) -> None:
        counted.blocks[name].saved += counted.saved
        counted.blocks[name].split_saved += counted.split_saved

    return [block.register_forward_pre_hook(begin), block.register_forward_hook(end)]


def _storage(tensor: Tensor) -> StorageWeakRef:
    """Return a key of a tensor's storage, unique even if memory is reused."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class MovedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes that operations read and write, and their kernels.

    If nothing is compiled, each operation has its kernels. Compiled code has one kernel for all operations between
    two products (of matrices, convolutions, attention): it reads the result of the first product, and writes the
    input of the next.
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
            read, written = (
                [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
                for values in ((args, kwargs), made)
            )
            self.bytes += times * sum(tensor.numel() * tensor.element_size() for tensor in (*read, *written))
            self.launches += times * len(written)
        return made

    def _times(self, func: OpOverload) -> int:
        """Return how often the bytes of an operation are counted."""
        if self._compiled:
            return 2 if func.overloadpacket in PRODUCTS else 0
        moves = func.namespace == "aten" and not func.is_view and func.overloadpacket not in ONLY_NAMED
        return int(moves)
