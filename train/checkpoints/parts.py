"""Checkpoints in parts, by torch.distributed.checkpoint: each rank writes and reads its own parts.

Tensors have the bare model's names: `model.WEIGHT`, and `optimizer.WEIGHT.NAME` for optimizer state. So the names do
not depend on how the model was distributed. Other state is in `rest.pt`, written by rank 0.
"""

import json
import pickle
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import WriteResult

from train.checkpoints import files
from train.errors import BadCheckpoint
from train.strategies.strategy import State, Strategy, load_by_number, weights_of

Key = TypeVar("Key")
Value = TypeVar("Value")
METADATA = ".metadata"
REST = "rest.pt"
MODEL, OPTIMIZER = "model.", "optimizer."

SAFE_NAMES = {
    *(("torch.distributed.checkpoint.metadata", name) for name in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    )),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
}  # fmt: skip
"""Classes allowed in torch's pickled metadata, in addition to dtypes."""


def tensors(strategy: Strategy, network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return this rank's weights and optimizer state, by name."""
    named = {f"{MODEL}{name}": value for name, value in strategy.own_state(network).items()}
    for name, values in strategy.own_optimizer_state(network, optimizer).items():
        named |= {
            f"{OPTIMIZER}{name}.{key}": value for key, value in values.items() if isinstance(value, Tensor)
        }
    return named


def explained(error: BaseException, path: Path) -> BaseException:
    """Return NotWritten with each rank's reason (`rank 1: No space left on device`), or another error as it is."""
    if not isinstance(error, CheckpointException):
        return error
    reasons = [
        f"rank {rank}: {getattr(cause, 'strerror', None) or str(cause).splitlines()[0].rstrip('.')}"
        for rank, (cause, _) in sorted(error.failures.items())
    ]
    return files.not_written(path, "; ".join(reasons[:3]))


def save(
    folder: Path,
    parts: Mapping[str, Tensor],
    rest: memoryview | None,
    about: Mapping[str, float],
    group: dist.ProcessGroup | None,
) -> "Future[Metadata]":
    """Copy this rank's parts, and write them in the background. Every rank calls this.

    `rest`: rank 0's other state. Returns a future that is done when the checkpoint is complete on all ranks.
    """
    writer = _Writer(folder, rest, about)
    # What several ranks have alike is written by the lowest: of hsdp, all is on as few nodes as possible.
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    saving = async_save(dict(parts), storage_writer=writer, planner=planner, process_group=group)
    assert isinstance(saving, Future)
    return saving


class PartsReader:
    """Reads a checkpoint's parts from one folder, after its files were verified."""

    def __init__(self, folder: Path, names: set[str]) -> None:
        """`names`: the files that the checkpoint's document lists. Raises BadCheckpoint."""
        self._folder = folder
        self._reader = _Reader(folder, names)
        self._known = self._reader.read_metadata().state_dict_metadata

    def weights(self) -> dict[str, Tensor]:
        """Return the whole weights and buffers by name."""
        loaded = {f"{MODEL}{name}": self._empty(f"{MODEL}{name}") for name in self._names_of(MODEL)}
        self._load(loaded)
        return {name.removeprefix(MODEL): value for name, value in loaded.items()}

    def load(
        self,
        strategy: Strategy,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: State,
    ) -> None:
        """Load this rank's part of the weights and of the optimizer's state.

        `settings`: of every parameter group. Raises ValueError if the checkpoint is of other weights.
        """
        if strategy.reads_whole:
            names = [name for name, _ in network.named_parameters()]
            strategy.load_model(
                network, _Lazy(self._names_of(MODEL), lambda name: self._whole({"": f"{MODEL}{name}"})[""])
            )
            numbers = range(len(names))
            states = _Lazy(numbers, lambda number: self._whole(self._keys_of(names[number])))
            group = {**settings, "params": list(numbers)}
            strategy.load_optimizer(optimizer, {"state": states, "param_groups": [group]})
            return
        requested: dict[str, Any] = {f"{MODEL}{name}": value for name, value in network.state_dict().items()}
        own_weights = strategy.own_weights(network, optimizer)
        optimizer_keys: dict[nn.Parameter, dict[str, str]] = {}
        for name, weight in own_weights.items():
            optimizer_keys[weight] = self._keys_of(name)
            requested |= {key: self._empty(key, weight) for key in optimizer_keys[weight].values()}
        for name, value in requested.items():
            known = self._known.get(name)
            if not isinstance(known, TensorStorageMetadata):
                raise ValueError(f"it has no {name}")
            if known.size != value.shape:
                raise ValueError(f"its {name} has shape {tuple(known.size)} for {tuple(value.shape)}")
        self._load(requested)
        state = {
            index: {key: requested[stored] for key, stored in optimizer_keys[weight].items()}
            for index, weight in enumerate(weights_of(optimizer))
            if optimizer_keys.get(weight)
        }
        load_by_number(optimizer, state, settings)

    def _names_of(self, prefix: str) -> list[str]:
        """Return the names of the tensors with this prefix, without the prefix."""
        return [name[len(prefix) :] for name in self._known if name.startswith(prefix)]

    def _keys_of(self, weight: str) -> dict[str, str]:
        """Return the names of a weight's optimizer tensors, by their keys in the optimizer."""
        prefix = f"{OPTIMIZER}{weight}."
        return {key: f"{prefix}{key}" for key in self._names_of(prefix) if "." not in key}

    def _whole(self, names: Mapping[str, str]) -> dict[str, Tensor]:
        loaded = {name: self._empty(name) for name in names.values()}
        self._load(loaded)
        return {key: loaded[name] for key, name in names.items()}

    def _empty(self, name: str, weight: Tensor | None = None) -> Tensor:
        """Return a tensor to read into. If it has the weight's shape, it is distributed like the weight."""
        known = self._known[name]
        if not isinstance(known, TensorStorageMetadata):
            raise ValueError(f"its {name} is no tensor")
        if weight is not None and known.size == weight.shape:
            return torch.zeros_like(weight, dtype=known.properties.dtype, requires_grad=False)
        if weight is not None and len(known.size):
            raise ValueError(f"its {name} has shape {tuple(known.size)} for {tuple(weight.shape)}")
        return torch.zeros(known.size, dtype=known.properties.dtype)

    def _load(self, requested: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each rank reads for itself
            load_parts(requested, storage_reader=self._reader, no_dist=True)


class _Lazy(Mapping[Key, Value]):
    """Values that are read on access and not cached."""

    def __init__(self, keys: Collection[Key], read: Callable[[Key], Value]) -> None:
        self._keys = keys
        self._read = read

    def __getitem__(self, key: Key) -> Value:
        if key not in self._keys:
            raise KeyError(key)
        return self._read(key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class _Writer(FileSystemWriter):
    """Writes the parts with their digests, and on rank 0 the document, which makes the checkpoint valid, last."""

    def __init__(self, folder: Path, rest: memoryview | None, about: Mapping[str, float]) -> None:
        super().__init__(folder)
        self._folder = folder
        self._rest = rest
        self._about = about

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        """Write this rank's part, and add the files' digests to its results."""
        results = super().write_data(plan, planner).wait()
        names = {result.storage_data.relative_path for result in results}
        sums = {name: files.summary(self._folder / name) for name in names}
        files.sync_folder(self._folder)
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        done.set_result(
            [
                replace(result, storage_data=(result.storage_data, sums[result.storage_data.relative_path]))
                for result in results
            ]
        )
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write rank 0's files, then the document: by now every rank has written its part."""
        assert self._rest is not None, "this is rank 0"
        sums = {}
        for result in (result for of_rank in results for result in of_rank):
            info, summary = result.storage_data
            sums[info.relative_path] = summary
        plain = [
            [replace(result, storage_data=result.storage_data[0]) for result in of_rank]
            for of_rank in results
        ]
        super().finish(metadata, plain)
        files.write_atomically(self._folder / REST, self._rest)
        sums |= {name: files.summary(self._folder / name) for name in (METADATA, REST)}
        document = {
            "folder": self._folder.name,
            "files": {
                name: {"bytes": size, "sha256": digest} for name, (size, digest) in sorted(sums.items())
            },
            "bytes": sum(size for size, _ in sums.values()),
            **self._about,
            "time": time.time(),
        }
        files.sync_folder(self._folder)
        files.write_atomically(self._folder.with_suffix(".json"), json.dumps(document).encode())

    def storage_meta(self) -> None:
        """Keep this machine's paths out of the files."""


class _Reader(FileSystemReader):
    """Reads the parts. Their metadata is a pickle, read without running any code from it."""

    def __init__(self, folder: Path, names: set[str]) -> None:
        super().__init__(folder)
        self._folder = folder
        self._names = names

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:  # noqa: ANN401 - as torch has it
        """Return the metadata of the parts. Raises BadCheckpoint."""
        path = self._folder / METADATA
        try:
            with path.open("rb") as file:
                metadata = _Unpickler(file).load()
            paths = {info.relative_path for info in metadata.storage_data.values()}
            if not isinstance(metadata, Metadata) or not paths <= self._names:
                raise ValueError("it is not of these files")
        except Exception as error:  # a file that is made to do harm may raise anything
            reason = str(error).split("\n")[0].rstrip(".")
            raise BadCheckpoint(
                f"The checkpoint {path} can't be read ({reason}). Nothing in it was run. {files.WHAT_TO_DO}"
            ) from error
        return metadata


class _Unpickler(pickle.Unpickler):
    """Allows only the classes of torch's metadata."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        if (module, name) in SAFE_NAMES or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")
