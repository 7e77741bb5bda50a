"""Batches of images that stay in their files until Ray Data reads them, during the training.

Tasks on all nodes read, decode, resize and augment them, some batches ahead of the rank that asked for them, in its
order. A node reads from its own data folder. No rank waits for another.
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

from train.batches.batch import Batch, Normalize, to_device
from train.batches.sampling import MAX_SHIFT, Augmentations, RankSampler
from train.constants import NODE_HOME_VARIABLE, NODE_ID_LABEL, NODE_VARIABLE
from train.data.dataset import ImageFiles
from train.errors import BadData, BadEnvironment

Columns = dict[str, np.ndarray]
T = TypeVar("T")

BLOCK_IMAGES, BLOCK_BYTES = 64, 8 * 2**20
"""The most that one task reads: little enough for several tasks to work on a large batch."""
PREFETCH_BATCHES = 2
"""Batches that are fetched for a rank before it asks for them."""
STORE_SHARE = 0.25
"""Fraction of the memory of Ray's object stores that images may take which no rank has yet."""


class RayDataBatches:
    """Batches from one Ray Data dataset for each epoch."""

    def __init__(
        self,
        files: ImageFiles,
        normalize: Normalize,
        sampler: RankSampler,
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
        self._files = files
        self._normalize = normalize
        self._sampler = sampler
        self._device = device
        self._timeout_s = timeout_s
        self._nodes = _nodes(sampler.world_size)

    def epoch(self, number: int, batch_size: int, begin: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, as `Batches` defines it.

        Raises BadData for a file that is no image, BadEnvironment where a batch takes too long.
        """
        count, size = len(self._files), self._files.size
        order = self._sampler.indices(count, number, begin)
        augmentations = self._sampler.augmentations(count, number)
        # This process's folder, from gpuctl's folder: other nodes have it there, too.
        code = str(Path.cwd().relative_to(Path(os.environ[NODE_HOME_VARIABLE]).resolve()))
        streamed = _stream(
            task_rows(self._files, order, augmentations),
            reader(code=code, folder=self._files.folder, size=size),
            nodes=self._nodes,
            ranks=self._sampler.world_size,
            batch_size=batch_size,
            blocks=math.ceil(len(order) / images_per_block(size, batch_size)),
        )
        stream = with_timeout(self._timeout_s, streamed)
        for chosen in torch.split(order, batch_size):
            images = read_images(self._next(stream))
            assert len(images) == len(chosen)
            yield (
                self._normalize(to_device(images, self._device)),
                to_device(self._files.labels[chosen], self._device),
            )

    def _next(self, stream: Iterator[Columns]) -> Columns:
        try:
            return next(stream)
        except TimeoutError as error:
            raise BadEnvironment(
                f"Ray Data read no images within {self._timeout_s:g} s. See whether its tasks find room on the nodes "
                "(gpuctl ray status) and how fast their disks are, or give a larger --timeout-s."
            ) from error


def images_per_block(size: int, batch_size: int) -> int:
    """Return how many images of that height and width a task reads, at most."""
    return max(1, min(batch_size, BLOCK_IMAGES, BLOCK_BYTES // (3 * size * size)))


def task_rows(files: ImageFiles, chosen: Tensor, augmentations: Augmentations) -> list[dict[str, Any]]:
    """Return the rows of a task's images: each file and its augmentation."""
    flips = [False] * len(chosen) if augmentations.flips is None else augmentations.flips[chosen].tolist()
    shifts = (
        [[0, 0]] * len(chosen)
        if augmentations.shifts is None
        else (augmentations.shifts[chosen] - MAX_SHIFT).tolist()
    )
    return [
        {"path": files.paths[number], "flip": flip, "down": down, "right": right}
        for number, flip, (down, right) in zip(chosen.tolist(), flips, shifts, strict=True)
    ]


def reader(*, code: str, folder: str, size: int) -> Callable[[Columns], Columns]:
    """Return the function of a task on any node: it turns `task_rows` into images, or into an error's text.

    `code`: the folder that holds this package, from gpuctl's folder on a node; `folder`: the data's, `~` being the
    node's home. Errors are returned: an exception would reach the rank as one of Ray's, with a long traceback.
    """

    # Sent to the task whole, with its imports: only here it learns from which folder this package is imported.
    def read(rows: Columns) -> Columns:
        import os
        import socket
        import sys
        from pathlib import Path

        import numpy as np

        code_folder = Path(os.environ[NODE_HOME_VARIABLE], code)
        if str(code_folder) not in sys.path:
            sys.path.insert(0, str(code_folder))
        from train.data.image_decoding import augment_one, decode
        from train.errors import TrainError

        images = np.zeros((len(rows["path"]), 3, size, size), dtype=np.uint8)
        problems = np.full(len(images), "", dtype=object)
        for number, path in enumerate(rows["path"]):
            flip, down, right = (rows[name][number] for name in ("flip", "down", "right"))
            try:
                image = decode(code_folder / Path(folder).expanduser() / path, size)
                images[number] = augment_one(image, flip=flip, down=down, right=right)
            except TrainError as error:
                node = os.environ.get(NODE_VARIABLE) or socket.gethostname()
                problems[number] = f"On {node}: {error}"
        return {"image": images, "problem": problems}

    return read


def read_images(columns: Columns) -> Tensor:
    """Return the images that a task has read. Raises BadData for the first that it could not read."""
    problem = next(filter(None, columns["problem"]), None)
    if problem is not None:
        raise BadData(problem)
    return torch.tensor(columns["image"])  # a copy: Ray's own must not be written to


def _nodes(ranks: int) -> tuple[str, ...]:
    """Return the nodes of the run by their ids; Ray may have others, without the code and the data."""
    import ray

    node_id = str(ray.get_runtime_context().get_node_id())
    if ranks == 1:
        return (node_id,)
    node_ids = [node_id] * ranks
    dist.all_gather_object(node_ids, node_id)
    return tuple(sorted(set(node_ids)))


def _stream(
    rows: list[dict[str, Any]],
    read: Callable[[Columns], Columns],
    *,
    nodes: Sequence[str],
    ranks: int,
    batch_size: int,
    blocks: int,
) -> Iterator[Columns]:
    """Run `read` on the rows, in `blocks` on the nodes; yield the results in the rows' order, in batches."""
    import ray
    import ray.data

    has = [node["Resources"] for node in ray.nodes() if node["NodeID"] in nodes and node["Alive"]]
    cpus, store = (sum(node[name] for node in has) for name in ("CPU", "object_store_memory"))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = BLOCK_BYTES
    context.execution_options.preserve_order = True
    context.execution_options.resource_limits = ray.data.ExecutionResources.for_limits(
        object_store_memory=STORE_SHARE * store / ranks
    )
    read_blocks = ray.data.from_items(rows, override_num_blocks=blocks).map_batches(
        read,
        batch_size=None,
        batch_format="numpy",
        # The ranks may hold every CPU, and tasks that request one would wait for ever. These request 0, and their
        # number is limited: one at a time for each core, divided among the ranks.
        num_cpus=0,
        compute=ray.data.TaskPoolStrategy(math.ceil(cpus / ranks)),
        label_selector={NODE_ID_LABEL: f"in({','.join(nodes)})"},
    )
    yield from read_blocks.iter_batches(
        batch_size=batch_size, batch_format="numpy", prefetch_batches=PREFETCH_BATCHES
    )


def with_timeout(timeout_s: float, stream: Iterator[T]) -> Iterator[T]:
    """Yield the same items, fetched by a thread, one ahead. Raises TimeoutError where one takes longer."""
    drawn: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(maxsize=1)

    def draw() -> None:
        try:
            for item in stream:
                drawn.put((item,))
            drawn.put(None)
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that asks for the item
            drawn.put(error)

    threading.Thread(target=draw, daemon=True).start()
    while True:
        try:
            result = drawn.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"nothing for {timeout_s:g} s") from None
        if isinstance(result, BaseException):
            raise result
        if result is None:
            return
        yield result[0]
