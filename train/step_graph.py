"""Training steps as CUDA graphs: the GPU gets a whole step at once, and never waits for Python within it.

Steps of the usual batch size replay one graph of forward pass, backward pass and update. The first `WARM_UP` of
them, and every step of another size, run operation by operation, as without graphs: each step trains on its own
batch once. A batch that grows (`--grow-batch`) is warmed up and recorded anew; a smaller one is the last of an
epoch. A graph uses the same memory each time: the batch is copied into it, the learning rate is a tensor, gradients
stay allocated. Only the step that is recorded waits for the device.

The process computes on one stream: DistributedDataParallel and the warm-up have to be on the stream that is recorded,
and work on two streams would have to be put in order.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from train.options import Options
from train.strategies.strategy import Strategy
from train.train_step import TrainStep

WARM_UP = 11
"""Steps before the recording. DistributedDataParallel times its first ten itself, which no graph may contain; cuDNN
and cuBLAS have chosen their algorithms and have their workspaces by then, and the optimizer its state."""
MEASURED_EVERY = 100
"""With several ranks, one step of this many runs without the graph. In it, the timer's marks divide computing from
communication: an event within the graph would be overwritten by the next replay before the host could read it without
waiting. And in it, NCCL's watchdog, which does not watch the collectives of a graph, notices a lost rank."""

Outputs = tuple[Tensor, Tensor | None]
"""The loss and the logits of a batch."""


class Recorder(Protocol):
    """Records the operations that a function starts on the device."""

    def record(self, step: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """Return a function that repeats the operations of `step`, which are not done yet.

        Each call writes into the same outputs. Raises RuntimeError where they can't be recorded.
        """
        ...


class CudaRecorder:
    """Records a CUDA graph. From its creation on, this thread computes on a stream that can be recorded."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        torch.cuda.set_stream(self._stream)

    def record(self, step: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """Record one graph, with memory of its own. Waits for the device."""
        device = self._stream.device
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, such as NCCL's watchdog, may call functions that a graph can't contain.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                outputs = step()
            # The graph keeps its memory, and the last batch of an epoch needs about as much again.
            needed, free = torch.cuda.memory_reserved(device) - before, torch.cuda.mem_get_info(device)[0]
            if free < needed:
                raise torch.OutOfMemoryError(
                    f"the graph keeps {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are left for other batches"
                )
        except RuntimeError:
            # The generator would stay in the state in which it draws for a graph.
            generator = torch.cuda.default_generators[self._stream.device_index]
            generator.graphsafe_set_state(generator.clone_state())
            raise

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay


def allows_graphs(options: Options, strategy: Strategy) -> bool:
    """Return whether the strategy and the options allow steps to be graphs."""
    return options.allows_graphs and strategy.graphable and torch.get_default_dtype() == torch.float32


def recorder_of(device: torch.device) -> Recorder | None:
    """Return the recorder for a GPU, or `None` for a CPU."""
    return CudaRecorder(device) if device.type == "cuda" else None


class GraphedStep(TrainStep):
    """A step that is a graph, once it is warmed up."""

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401 - those of a TrainStep
        recorder: Recorder,
        say: Callable[[str], object],
        **named: Any,  # noqa: ANN401
    ) -> None:
        """Prepare the step. `say` gets a line where it can't be recorded."""
        super().__init__(*arguments, **named)
        self._recorder: Recorder | None = recorder
        self._say = say
        self._size = 0
        """The usual number of samples in a batch: the largest so far."""
        self._steps = 0
        """Steps with that many."""
        self._lr: Tensor | None = None
        """The optimizer's learning rate. Another tensor: the optimizer has loaded another state since."""
        self._replay: Callable[[], Outputs] | None = None

    def __call__(self, images: Tensor, labels: Tensor) -> Outputs:
        """Take the step, as `TrainStep` does. The logits are overwritten by the next one."""
        lr = self._optimizer.param_groups[0]["lr"]
        if len(labels) > self._size or lr is not self._lr:
            self._size, self._lr, self._steps, self._replay = len(labels), lr, 0, None
        if self._recorder is None or len(labels) < self._size:
            return super().__call__(images, labels)
        self._steps += 1
        measured = self._strategy.env.world_size > 1 and self._steps % MEASURED_EVERY == 0
        if self._steps <= WARM_UP or measured:
            return super().__call__(images, labels)
        if self._replay is None:
            self._replay = self._record(self._recorder, images, labels)
        if self._replay is None:
            return super().__call__(images, labels)
        self._timer.in_graph()
        self._images.copy_(images)
        self._labels.copy_(labels)
        loss, logits = self._replay()
        return loss.clone(), logits

    def release(self) -> None:
        """Destroy the graph. NCCL would wait for that before it leaves the other ranks."""
        self._replay = self._recorder = None

    def _record(self, recorder: Recorder, images: Tensor, labels: Tensor) -> Callable[[], Outputs] | None:
        """Record the step on every rank.

        Returns:
            The function that replays it. `None`: a rank can't record it, and no later step is recorded.
        """
        self._images, self._labels = images.clone(), labels.clone()
        self._optimizer.zero_grad()
        self._timer.in_graph(recorded=True)
        take = super().__call__
        replay, reason = None, "another rank can't record it"
        try:
            replay = recorder.record(lambda: take(self._images, self._labels))
        except RuntimeError as error:
            reason = _first_line(error)
        if _on_all_ranks(replay is not None, self._strategy):
            return replay
        del replay
        self._recorder = None
        self._timer.in_graph(False)
        self._model = self._strategy.renew(self._model)
        self._say(
            f"the step can't be recorded as a CUDA graph: {reason}. The run continues without graphs; with "
            "--graphs off it does not try."
        )
        return None

    def _zero_grad(self) -> None:
        """Forget the gradients of the step before. Where a graph writes them, they stay allocated."""
        if self._replay is None:
            super()._zero_grad()
        else:
            self._optimizer.zero_grad(set_to_none=False)


def _on_all_ranks(recorded: bool, strategy: Strategy) -> bool:
    """Return whether all ranks have recorded the step: else some would wait for others within it."""
    if strategy.env.world_size == 1:
        return recorded
    flag = torch.tensor(recorded, dtype=torch.int32, device=strategy.device)
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag.item())


def _first_line(error: BaseException) -> str:
    """Return the first line of the first error: the end of a recording that failed raises a second one."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
