"""One rank's batches of pictures that stay in their files: read by Ray Data, and streamed.

Tasks on all nodes read, decode, resize, mirror and shift them, some batches ahead of the rank that asked for them, in
its order. A node looks in its own data folder. No rank waits for another.
"""

import logging
import math
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from train.batches import Batch, Normalize, Share, moved
from train.constants import NODE_HOME_VARIABLE, NODE_LABEL, NODE_VARIABLE
from train.data.images import Pictures
from train.errors import BadData, BadEnvironment
from train.sampling import MAX_SHIFT, Chance

Columns = dict[str, np.ndarray]
T = TypeVar("T")

BLOCK_IMAGES, BLOCK_BYTES = 64, 8 * 2**20
"""That one task reads, at most: few enough for several tasks to have part in a large batch."""
AHEAD = 2
"""Batches that are brought to a rank before it asks for them."""
STORE_SHARE = 0.25
"""Of the memory that the nodes keep Ray's objects in, at most, for images that no rank has yet."""


class StreamedBatches:
    """Pictures read while they are trained on: a dataset of Ray's for each epoch."""

    def __init__(
        self,
        pictures: Pictures,
        normalize: Normalize,
        which: Share,
        device: torch.device,
        *,
        timeout_s: float,
    ) -> None:
        """`timeout_s`: how long a batch may take. Raises BadEnvironment where Ray Data is not installed."""
        try:
            import ray.data  # noqa: F401
        except ImportError as error:
            raise BadEnvironment(
                f"Ray Data is not installed here ({error}). Run on each node: pip install 'ray[data]'"
            ) from error
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        self._pictures = pictures
        self._normalize = normalize
        self._which = which
        self._device = device
        self._timeout_s = timeout_s
        self._nodes = _nodes(which.world_size)

    def epoch(self, number: int, batch_size: int, begin: int = 0) -> Iterator[Batch]:
        """As `Batches` has it. Raises BadData for what is no picture, BadEnvironment where a batch takes too long."""
        count, size = len(self._pictures), self._pictures.size
        order = self._which.order(count, number, begin)
        happens = self._which.chance(count, number)
        streamed = _streamed(
            rows(self._pictures, order, happens),
            reader(code=_code(), folder=self._pictures.folder, size=size),
            nodes=self._nodes,
            ranks=self._which.world_size,
            batch_size=batch_size,
            blocks=math.ceil(len(order) / block_images(size, batch_size)),
        )
        stream = within(self._timeout_s, streamed)
        for chosen in torch.split(order, batch_size):
            images = images_of(self._next(stream))
            assert len(images) == len(chosen)
            yield (
                self._normalize(moved(images, self._device)),
                moved(self._pictures.labels[chosen], self._device),
            )

    def _next(self, stream: Iterator[Columns]) -> Columns:
        try:
            return next(stream)
        except TimeoutError as error:
            raise BadEnvironment(
                f"Ray Data brought no images within {self._timeout_s:g} s: look whether its tasks find room on the "
                "nodes (gpuctl ray status) and how fast their disks are, or give a larger --timeout-s."
            ) from error


def block_images(size: int, batch_size: int) -> int:
    """How many pictures of that side a task reads, at most."""
    return max(1, min(batch_size, BLOCK_IMAGES, BLOCK_BYTES // (3 * size * size)))


def rows(pictures: Pictures, chosen: Tensor, happens: Chance) -> list[dict[str, Any]]:
    """What a task is told of each of the chosen pictures: its file, and what chance does to it."""
    flips = [False] * len(chosen) if happens.flips is None else happens.flips[chosen].tolist()
    shifts = (
        [[0, 0]] * len(chosen) if happens.shifts is None else (happens.shifts[chosen] - MAX_SHIFT).tolist()
    )
    return [
        {"path": pictures.paths[number], "flip": flip, "down": down, "right": right}
        for number, flip, (down, right) in zip(chosen.tolist(), flips, shifts, strict=True)
    ]


def reader(*, code: str, folder: str, size: int) -> Callable[[Columns], Columns]:
    """The function of a task on any node: from `rows` to images, and what is wrong with those that can't be read.

    `code`: the folder that holds this package, from gpuctl's folder on a node; `folder`: the data's, `~` being the
    node's home. Errors are answers: an exception would reach the rank as one of Ray's, with a long story.
    """

    def read(asked: Columns) -> Columns:  # is sent whole: a task has to be told first where this package is
        import os
        import sys
        from pathlib import Path

        import numpy as np

        code_folder = Path(os.environ[NODE_HOME_VARIABLE], code)
        if str(code_folder) not in sys.path:
            sys.path.insert(0, str(code_folder))
        from train.errors import TrainError
        from train.pictures import augmented, decode

        images = np.zeros((len(asked["path"]), 3, size, size), dtype=np.uint8)
        problems = np.full(len(images), "", dtype=object)
        for number, path in enumerate(asked["path"]):
            flip, down, right = (asked[name][number] for name in ("flip", "down", "right"))
            try:
                image = decode(code_folder / Path(folder).expanduser() / path, size)
                images[number] = augmented(image, flip=flip, down=down, right=right)
            except TrainError as error:
                problems[number] = f"On {os.environ[NODE_VARIABLE]}: {error}"
        return {"image": images, "problem": problems}

    return read


def images_of(found: Columns) -> Tensor:
    """The images that `read` answered. Raises BadData with what is wrong with the first that it could not read."""
    problem = next(filter(None, found["problem"]), None)
    if problem is not None:
        raise BadData(problem)
    return torch.tensor(found["image"])  # a copy: nobody may write to Ray's own


def _code() -> str:
    """The folder that this process runs in, from gpuctl's folder on its node: on the others it is there, too."""
    return str(Path.cwd().relative_to(Path(os.environ[NODE_HOME_VARIABLE]).resolve()))


def _nodes(ranks: int) -> tuple[str, ...]:
    """The nodes of the run, as Ray labels them: it may have others, without the code and the data."""
    import ray

    own = str(ray.get_runtime_context().get_node_labels()[NODE_LABEL])
    if ranks == 1:
        return (own,)
    found = [own] * ranks
    dist.all_gather_object(found, own)
    return tuple(sorted(set(found)))


def _streamed(
    asked: list[dict[str, Any]],
    read: Callable[[Columns], Columns],
    *,
    nodes: Sequence[str],
    ranks: int,
    batch_size: int,
    blocks: int,
) -> Iterator[Columns]:
    """What `read` makes of the rows, divided into so many blocks, on those nodes; in the rows' order, in batches."""
    import ray
    import ray.data

    has = [
        node["Resources"] for node in ray.nodes() if node["Labels"].get(NODE_LABEL) in nodes and node["Alive"]
    ]
    cpus, store = (sum(node[name] for node in has) for name in ("CPU", "object_store_memory"))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = BLOCK_BYTES
    context.execution_options.preserve_order = True
    context.execution_options.resource_limits = ray.data.ExecutionResources.for_limits(
        object_store_memory=STORE_SHARE * store / ranks
    )
    read_blocks = ray.data.from_items(asked, override_num_blocks=blocks).map_batches(
        read,
        batch_size=None,
        batch_format="numpy",
        # The ranks may hold every CPU, and tasks that asked for some would wait for ever. They ask for none, and are
        # bounded by their number: one at a time for each core, divided among the ranks.
        num_cpus=0,
        compute=ray.data.TaskPoolStrategy(math.ceil(cpus / ranks)),
        label_selector={NODE_LABEL: f"in({','.join(nodes)})"},
    )
    yield from read_blocks.iter_batches(batch_size=batch_size, batch_format="numpy", prefetch_batches=AHEAD)


def within(timeout_s: float, stream: Iterator[T]) -> Iterator[T]:
    """The same, drawn from by a thread, one ahead; TimeoutError where the next takes longer."""
    drawn: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(maxsize=1)

    def draw() -> None:
        try:
            for item in stream:
                drawn.put((item,))
            drawn.put(None)
        except BaseException as error:  # noqa: BLE001  # raised again where it is asked for
            drawn.put(error)

    threading.Thread(target=draw, daemon=True).start()
    while True:
        try:
            found = drawn.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"nothing for {timeout_s:g} s") from None
        if isinstance(found, BaseException):
            raise found
        if found is None:
            return
        yield found[0]
