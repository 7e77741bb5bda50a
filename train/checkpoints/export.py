"""Write a checkpoint's bare weights to a file: `python -m train.checkpoints.export CHECKPOINTS FILE`.

Takes the newest whole checkpoint of the folder. FILE ends in .pt, for `torch.load(FILE, weights_only=True)`, or in
.safetensors. Prints a JSON document. Exit status: 0 done, 1 failed, with a sentence on stderr.
"""

import json
import sys
from pathlib import Path
from typing import Any

from train.errors import BadCheckpoint, BadEnvironment, NotWritten, TrainError

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of torch's normalization layers."""


def export(folder: Path, target: Path) -> dict[str, Any]:
    """Write the weights of the newest whole checkpoint. Returns the JSON document that describes them."""
    from train.checkpoints.files import summary
    from train.models.gpt import TIED

    name, weights, left_out = newest_weights(folder)
    weights |= {tied: weights[first] for tied, first in TIED.items() if {tied, first} <= weights.keys()}
    if target.suffix == ".safetensors":
        _save_safetensors(weights, target)
    else:
        from train.checkpoints.files import save_model

        save_model(weights, target)
    size, digest = summary(target)
    return {
        "checkpoint": name,
        "bytes": size,
        "sha256": digest,
        "tensors": len(weights),
        "parameters": parameters(weights),
        "left_out": left_out,
    }


def parameters(weights: dict[str, Any]) -> int:
    """Return the number of weights, without running statistics. A tied weight counts once."""
    trained = [tensor for name, tensor in weights.items() if name.rpartition(".")[2] not in STATISTICS]
    return sum({id(tensor): tensor.numel() for tensor in trained}.values())


def newest_weights(folder: Path) -> tuple[str, dict[str, Any], list[str]]:
    """Return name and weights of the newest whole checkpoint, and why newer ones were skipped."""
    from train.checkpoints import files, parts

    left_out: list[str] = []
    for name, document in files.documents(folder):
        wrong = [f"{name} is damaged"]
        if document:
            wrong = files.problems(folder, document, files.files_of(document))
        if wrong:
            left_out += wrong
        elif "folder" in document:
            return name, parts.PartsReader(folder / name, set(document["files"])).weights(), left_out
        else:
            state = files.load(folder / name)
            if not isinstance(state.get("model"), dict):
                raise BadCheckpoint(f"The checkpoint {name} has no model. Name another run.")
            return name, state["model"], left_out
    why = f": {'; '.join(left_out)}" if left_out else ""
    raise BadCheckpoint(f"There is no whole checkpoint{why}. Name another run.")


def _save_safetensors(weights: dict[str, Any], target: Path) -> None:
    from train.checkpoints.files import write_atomically

    try:
        from safetensors.torch import save
    except ModuleNotFoundError:
        raise BadEnvironment(
            f"{sys.executable} has no package safetensors. Install it: {sys.executable} -m pip install safetensors; "
            "or name a file that ends in .pt."
        ) from None
    # Tied weights share their memory, which the format does not have.
    data = save(
        {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}, {"format": "pt"}
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, data)
    except OSError as error:
        raise NotWritten(
            f"The model can't be written to {target}: {error.strerror}. Make room or give access there."
        ) from error


def main() -> int:
    """Write the file. Returns the exit status."""
    folder, target = map(Path, sys.argv[1:])
    try:
        print(f"\n{json.dumps(export(folder, target))}")
    except ModuleNotFoundError as error:
        print(
            f"{sys.executable} has no package {error.name}. Install it: {sys.executable} -m pip install torch",
            file=sys.stderr,
        )
        return 1
    except TrainError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
