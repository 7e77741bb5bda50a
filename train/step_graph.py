"""Training steps as CUDA graphs: the GPU gets a whole step at once, and never waits for Python within it.

Steps of the usual batch size replay one graph of forward pass, backward pass and update. The first `WARM_UP` of
them, and every step of another size, run operation by operation, as without graphs: each step trains on its own
batch once. A batch that grows (`--grow-batch`) is warmed up and recorded anew; a smaller one is the last of an
epoch. A graph uses the same memory each time: the batch is copied into it, the learning rate is a tensor, gradients
stay allocated. Only the step that is recorded waits for the device.

The process computes on one stream: DistributedDataParallel and the warm-up have to be on the stream that is recorded,
and work on two streams would have to be put in order.

With several ranks, nothing outside of the GPUs sees the collectives of a graph: NCCL's watchdog and the flight
recorder know only collectives that torch starts. So every `WATCHED_EVERY`-th replay is followed by an all-reduce of
one number that they see. If a replay hangs, this all-reduce never begins, and times out.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from train.advice.memory import memory_beside
from train.options import Options
from train.strategies.strategy import Strategy
from train.train_step import TrainStep

WARM_UP = 11
"""Steps before the recording. DistributedDataParallel times its first ten itself, which no graph may contain; cuDNN
and cuBLAS have chosen their algorithms and have their workspaces by then, and the optimizer its state."""
MIN_STEPS_LEFT = 200
"""Steps of a batch size from which `--graphs auto` records: it takes up to a second, and a replay saves some 6 ms."""
WATCHED_EVERY = 10
"""With several ranks: replays between two collectives that NCCL's watchdog sees."""

Outputs = tuple[Tensor, Tensor | None]
"""The loss and the logits of a batch."""


class Recorder(Protocol):
    """Records the operations that a function starts on the device."""

    def watch(self, step: Callable[[], Outputs]) -> tuple[Outputs, str | None]:
        """Run the step, and return its outputs, and why it can't be recorded. `None`: nothing speaks against it."""
        ...

    def record(self, step: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """Return a function that repeats the operations of `step`, which are not done yet.

        Each call writes into the same outputs. Raises RuntimeError if the operations can't be recorded.
        """
        ...


class CudaRecorder:
    """Records a CUDA graph. From its creation on, this thread computes on a stream that can be recorded."""

    has_failed = False
    """Whether a recording of this process failed."""

    def __init__(self, device: torch.device) -> None:
        # Streams of high priority have a pool of their own: no stream that DistributedDataParallel takes is this one.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        torch.cuda.set_stream(self._stream)

    def watch(self, step: Callable[[], Outputs]) -> tuple[Outputs, str | None]:
        """Run the step, and return its outputs, and where it waits for the GPU, which no graph can contain."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                outputs = step()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        return outputs, waiting_line(caught)

    def record(self, step: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """Record one graph, with memory of its own. Waits for the device."""
        device = self._stream.device
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            # Other threads, such as NCCL's watchdog, may call functions that a graph can't contain.
            with torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"):
                outputs = step()
            needed, free = torch.cuda.memory_reserved(device) - before, torch.cuda.mem_get_info(device)[0]
            check_memory(needed, free)
        except RuntimeError:
            CudaRecorder.has_failed = True
            close_pool(self._stream.device_index, pool)
            # The generator would stay in the state in which it draws for a graph.
            generator = torch.cuda.default_generators[self._stream.device_index]
            generator.graphsafe_set_state(generator.clone_state())
            raise

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay


def waiting_line(caught: list[warnings.WarningMessage]) -> str | None:
    """Return which line of a step waits for the GPU, by CUDA's warnings. Other warnings are shown.

    Returns:
        The reason why the step can't be recorded. `None`: no line waits.
    """
    lines = []
    for warning in caught:
        if "called a synchronizing" in str(warning.message):
            lines.append(f"{Path(warning.filename).name}:{warning.lineno}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return f"it waits for the GPU in {lines[0]}" if lines else None


def check_memory(needed: int, free: int) -> None:
    """Raise OutOfMemoryError if a graph of `needed` bytes leaves too little memory for other batches."""
    if free < memory_beside(needed):
        raise torch.OutOfMemoryError(
            f"the graph keeps {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are left for other batches"
        )


def close_pool(device: int, pool: tuple[int, int]) -> None:
    """End the allocations into a graph's memory pool, if the recording failed before torch did.

    Otherwise the allocator believes that the recording never ended, and can't free its cache where memory is short.
    """
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)  # noqa: SLF001 - torch has no public function for it
    release = getattr(torch._C, "_cuda_releasePool", None)  # noqa: SLF001
    if end is None or release is None:
        return
    # Raises if the pool is closed already: then the graph releases it.
    with suppress(RuntimeError):
        end(device, pool)
        release(device, pool)


def allows_graphs(options: Options, strategy: Strategy) -> bool:
    """Return whether the strategy and the options allow steps to be graphs.

    With several ranks on request alone: several GPUs have not shown it yet.
    """
    enabled = options.graphs == "on" or strategy.env.world_size == 1
    return (
        enabled
        and options.allows_graphs
        and strategy.graphable
        and torch.get_default_dtype() == torch.float32
    )


def recorder_of(device: torch.device) -> Recorder | None:
    """Return the recorder for a GPU, or `None` for a CPU."""
    return CudaRecorder(device) if device.type == "cuda" else None


class GraphedStep:
    """Takes the steps of a `TrainStep`: as a graph, once it is warmed up."""

    def __init__(
        self,
        step: TrainStep,
        recorder: Recorder,
        say: Callable[[str], object],
        steps_left: Callable[[int], int],
    ) -> None:
        """Prepare the step.

        `say` gets a line if no graph is recorded, or if it is deleted. `steps_left`: returns how many steps of
        that size are left in the run.
        """
        self._step = step
        self._strategy = step.strategy
        self._recorder: Recorder | None = recorder
        self._say = say
        self._steps_left = steps_left
        self._size = 0
        """The usual number of samples in a batch: the largest so far."""
        self._steps = 0
        """Steps with that many."""
        self._lr: Tensor | None = None
        """The optimizer's learning rate. Another tensor: the optimizer has loaded another state since."""
        self._obstacle: str | None = None
        """Why the last step of the warm-up can't be recorded."""
        self._replay: Callable[[Tensor, Tensor], Outputs] | None = None
        """Takes the step of a batch by the graph, and owns the graph's memory."""
        self._number = torch.zeros(1, device=self._strategy.device)
        self._collective: dist.Work | None = None
        """The last all-reduce that NCCL's watchdog sees: kept, as nothing waits for it."""

    def __call__(self, images: Tensor, labels: Tensor) -> Outputs:
        """Take the step, as `TrainStep` does. The next step overwrites the logits."""
        lr = self._step.optimizer.param_groups[0]["lr"]
        if len(labels) > self._size or lr is not self._lr:
            self._delete_graph()
            self._size, self._lr, self._steps = len(labels), lr, 0
        if self._recorder is None or len(labels) < self._size:
            return self._without_graph(images, labels)
        self._steps += 1
        if self._steps < WARM_UP:
            return self._step(images, labels)
        if self._steps == WARM_UP:
            outputs, self._obstacle = self._recorder.watch(lambda: self._step(images, labels))
            return outputs
        if self._replay is None:
            self._replay = self._record(self._recorder, images, labels)
        if self._replay is None:
            return self._step(images, labels)
        self._step.keeps_gradients = True
        self._step.timer.in_graph()
        loss, logits = self._replay(images, labels)
        if self._strategy.env.world_size > 1 and self._steps % WATCHED_EVERY == 0:
            self._collective = dist.all_reduce(self._number, async_op=True)
        return loss.clone(), logits

    def release(self) -> None:
        """Delete the graph. NCCL would wait for that before it leaves the other ranks."""
        self._delete_graph()
        self._recorder = self._collective = None

    def _delete_graph(self) -> None:
        self._replay = None
        self._step.keeps_gradients = False

    def _without_graph(self, images: Tensor, labels: Tensor) -> Outputs:
        """Take the step operation by operation. If the graph leaves too little memory, it is deleted.

        Raises OutOfMemoryError if another rank waits for this one, or weights may be updated already.
        """
        step = self._step
        if self._replay is None:
            return step(images, labels)
        buffers = [(buffer, buffer.clone()) for buffer in step.model.buffers()]
        try:
            return step(images, labels)
        except torch.OutOfMemoryError:
            if step.updates or self._strategy.env.world_size > 1:
                raise
        # The error is gone, and with it the step's tensors on the device.
        self.release()
        torch.cuda.empty_cache()
        for buffer, saved in buffers:
            buffer.copy_(saved)
        self._say(
            f"a batch of {len(labels)} did not fit into the GPU's memory with the CUDA graph: the graph is deleted, "
            "and the step is taken again. The run continues without graphs; with --graphs off it records none."
        )
        return step(images, labels)

    def _record(
        self, recorder: Recorder, images: Tensor, labels: Tensor
    ) -> Callable[[Tensor, Tensor], Outputs] | None:
        """Record the step on every rank.

        Returns:
            The function that replays it with a batch. `None`: no rank has recorded it, and no later step is recorded.
        """
        step = self._step
        left = self._steps_left(len(labels))
        if step.options.graphs != "on" and left < MIN_STEPS_LEFT:
            self._recorder = None
            self._say(
                f"the steps are not recorded as a CUDA graph: {left} of them are left, and it takes longer than it "
                f"saves with fewer than {MIN_STEPS_LEFT}. With --graphs on they are recorded."
            )
            return None
        replay, reason = None, self._obstacle
        if reason is None:
            inputs = images.clone(), labels.clone()
            step.optimizer.zero_grad()
            step.timer.in_graph(recorded=True)
            try:
                replay = _with_inputs(inputs, recorder.record(lambda: step(*inputs)))
            except RuntimeError as error:
                reason = _first_line(error)
        reason = _reason_of_any(reason, self._strategy)
        if reason is None:
            return replay
        del replay
        self._recorder = None
        step.timer.in_graph(False)
        step.model = self._strategy.renew(step.model)
        self._say(
            f"the step can't be recorded as a CUDA graph: {reason}. The run continues without graphs; with "
            "--graphs off it does not try."
        )
        return None


def _with_inputs(
    inputs: tuple[Tensor, Tensor], replay: Callable[[], Outputs]
) -> Callable[[Tensor, Tensor], Outputs]:
    """Return the function that copies a batch into the graph's inputs, and replays the graph."""

    def replay_batch(images: Tensor, labels: Tensor) -> Outputs:
        for value, batch in zip(inputs, (images, labels), strict=True):
            value.copy_(batch)
        return replay()

    return replay_batch


def _reason_of_any(reason: str | None, strategy: Strategy) -> str | None:
    """Return why a rank can't record the step, with the rank's number in a larger group. `None`: all can."""
    world_size = strategy.env.world_size
    if world_size == 1:
        return reason
    failed = torch.tensor(reason is not None, dtype=torch.int32, device=strategy.device)
    dist.all_reduce(failed, dist.ReduceOp.MAX)
    if not failed.item():
        return None
    reasons: list[str | None] = [None] * world_size
    dist.all_gather_object(reasons, reason)
    return next(f"on rank {rank}, {text}" for rank, text in enumerate(reasons) if text is not None)


def _first_line(error: BaseException) -> str:
    """Return the first line of the first error: the end of a recording that failed raises a second one."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
