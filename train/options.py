"""Every option of the job: its type, default and help. Imports nothing heavy.

`train/command_line.py` makes a parser of them, and checks what fits together.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

DatasetName = Literal["digits", "mnist", "cifar10", "synthetic", "folder", "text"]
Stem = Literal["imagenet", "cifar"]
Augmentation = Literal["auto", "none", "flip", "crop"]
DataPipeline = Literal["memory", "ray"]
Optimizer = Literal["adam", "adamw", "sgd"]
Schedule = Literal["constant", "cosine", "step", "plateau"]
LrScaling = Literal["none", "linear", "sqrt"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp64"]
Compression = Literal["none", "half", "powersgd"]
StrategyName = Literal["ddp", "dp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "tp", "pp"]
Engine = Literal["torch", "deepspeed"]
Loop = Literal["fast", "plain"]
Graphs = Literal["auto", "on", "off"]
Device = Literal["auto", "cpu", "cuda"]
DEFAULT_LR: dict[Optimizer, float] = {"adam": 3e-3, "adamw": 3e-3, "sgd": 0.05}
DEFAULT_BATCH, DEFAULT_BATCH_OF_TEXT = 64, 8


def whole_number(at_least: int, at_most: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a reader of whole numbers in that range."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not at_least <= value <= at_most:
            raise _unusable(text, f"a whole number from {at_least} to {at_most}")
        return value

    return read


def number(
    *, at_most: float, above: float | None = None, at_least: float | None = None
) -> Callable[[str], float]:
    """Return a reader of numbers in that range."""
    lower_bound = f"above {above:g}" if above is not None else f"from {at_least:g}"

    def read(text: str) -> float:
        value = _float(text)
        low_enough = value > above if above is not None else value >= (at_least or 0.0)
        if not (low_enough and value <= at_most):  # also refuses nan
            raise _unusable(text, f"a number {lower_bound}, at most {at_most:g}")
        return value

    return read


def fraction(text: str) -> float:
    """Read a fraction."""
    value = _float(text)
    if not 0 <= value < 1:
        raise _unusable(text, "a fraction from 0, below 1")
    return value


def synthetic_sizes(text: str) -> tuple[int, ...]:
    """Read the sizes of a synthetic dataset."""
    sizes = [int(word) if word.isdecimal() else 0 for word in text.split(",")]
    if len(sizes) != 5 or min(sizes) < 1:
        raise _unusable(text, "five whole numbers, N,CHANNELS,HEIGHT,WIDTH,CLASSES, such as 10000,3,32,32,10")
    return tuple(sizes)


def names(text: str) -> tuple[str, ...]:
    """Read different names, separated by commas."""
    values = tuple(word.strip() for word in text.split(","))
    if not all(values) or len(set(values)) < len(values):
        raise _unusable(text, "different names, separated by commas")
    return values


def wrap_policy(text: str) -> str:
    """Read a wrap policy, which chooses the parts of a network that are sharded separately."""
    size = text.removeprefix("size:")
    sized = text != size and size.isdecimal() and int(size) > 0
    if sized or all(name.isidentifier() for name in text.split(",")):
        return text
    raise _unusable(text, "transformer, size:N such as size:100000, or names of classes, separated by commas")


def deepspeed_config(text: str) -> str:
    """Read a file of DeepSpeed's configuration, or the configuration itself, as JSON in one line."""
    try:
        config = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} can't be read: {error.strerror}.") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no JSON: {error}.") from None
    if not isinstance(config, dict):
        raise _unusable(text, "a JSON object, as DeepSpeed's documentation has it")
    return json.dumps(config, separators=(",", ":"))


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _unusable(text: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r} can't be used: give {expected}.")


def _option(group: str, default: Any, text: str, **arguments: Any) -> Any:  # noqa: ANN401 - of any type
    """Declare an option. `text`: its help; `arguments`: argparse's own. A Literal's values are its choices."""
    return field(default=default, metadata={"group": group, "help": text, **arguments})


_task = partial(_option, "what to train")
_method = partial(_option, "how to train")
_speed = partial(_option, "speed")
_where = partial(_option, "where to run")
_output = partial(_option, "output")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The job's options, the same on every rank."""

    model: str = _task(
        "cnn",
        "cnn, mlp, resnet18, or another network of torchvision by its name; for text gpt-10m, gpt-124m, gpt-350m, "
        "gpt-1b, gpt-7b.",
        metavar="NAME",
    )
    stem: Stem = _task(
        "imagenet",
        "First layers of a residual network. imagenet: 7x7 with stride 2, and pooling; cifar: 3x3, for small images.",
    )
    dataset: DatasetName = _task(
        "digits",
        "digits: 1,797 handwritten digits of scikit-learn; synthetic: generated images; folder: the images "
        "train/CLASS/*.png and *.jpg in --data-dir; text: the text in --data-dir, or some generated sentences "
        "(default: digits, or text for a text model).",
        argument_default=None,
    )
    data_dir: str | None = _task(
        None, "Folder of the datasets on the nodes (default: $GPUCTL_DATA_DIR, else ~/.cache/gpuctl/data); for text "
        "a file, or a folder of .txt files.",
        metavar="PATH",
    )  # fmt: skip
    download: bool = _task(True, "Download a missing dataset, once per node.")
    data_pipeline: DataPipeline = _task(
        "memory",
        "memory: every rank reads all images before it starts; ray: Ray Data reads the training images on all nodes "
        "during the training (with --dataset folder and gpuctl train --mode ray).",
    )
    synthetic: tuple[int, int, int, int, int] = _task(
        (10_000, 3, 32, 32, 10), "Size of --dataset synthetic: N,CHANNELS,HEIGHT,WIDTH,CLASSES.",
        type=synthetic_sizes, metavar="SIZES",
    )  # fmt: skip
    image_size: int = _task(
        224, "Height and width of the images of a folder, pixels.", type=whole_number(8, 4096), metavar="N"
    )
    seq_len: int = _task(1024, "Tokens in a sequence of text.", type=whole_number(2, 2**20), metavar="N")
    tokenizer: str | None = _task(
        None, "File of the tokenizers package (tokenizer.json) on the nodes for --dataset text (default: a token is "
        "a byte).",
        metavar="FILE",
    )  # fmt: skip
    validation: float | None = _task(
        None, "Fraction of the training samples to validate with (default: the dataset's own images, else 0.2; the "
        "last 0.1 of a text).",
        type=fraction, metavar="F",
    )  # fmt: skip
    augmentation: Augmentation = _task(
        "auto",
        "flip: mirror at random; crop: flip, and shift by up to 4 pixels; auto: flip where it keeps the label.",
    )

    epochs: int = _method(10, "Passes over the training samples.", type=whole_number(1), metavar="N")
    batch_size: int | None = _method(
        None, f"Samples per step and rank (default: {DEFAULT_BATCH} images or {DEFAULT_BATCH_OF_TEXT} sequences, or "
        "all that a rank has).",
        type=whole_number(1), metavar="N",
    )  # fmt: skip
    global_batch_size: int | None = _method(
        None,
        "Samples per step of all ranks together, instead of --batch-size.",
        type=whole_number(1),
        metavar="N",
    )
    gradient_accumulation_steps: int | None = _method(
        None,
        "Micro-batches that a rank's batch is divided into, to save memory (default: 1, or 4 for each stage of a "
        "pipeline).",
        type=whole_number(1), metavar="N",
    )  # fmt: skip
    optimizer: Optimizer = _method("adam", "Optimizer.")
    lr: float = _method(
        DEFAULT_LR["adam"],
        f"Learning rate (default: {', '.join(f'{lr:g} for {name}' for name, lr in DEFAULT_LR.items())}; less with "
        "adam and adamw for text models, the larger the less).",
        type=number(above=0, at_most=1e6), metavar="X", argument_default=None,
    )  # fmt: skip
    weight_decay: float = _method(0.0, "Weight decay.", type=number(at_least=0, at_most=1e6), metavar="X")
    schedule: Schedule = _method(
        "constant",
        "How the learning rate changes. cosine: it falls to 0 along a cosine; step: it is divided by 10 after half "
        "and after three quarters of the epochs; plateau: it falls where the validation loss stops falling.",
    )
    warmup_epochs: float = _method(
        0.0, "Epochs over which the learning rate rises linearly at the start.",
        type=number(at_least=0, at_most=1e6), metavar="X",
    )  # fmt: skip
    lr_scaling: LrScaling = _method(
        "none",
        "linear: multiply the learning rate by the number of ranks; sqrt: by the square root of that number.",
    )
    grow_batch: bool = _method(
        False,
        "With --schedule plateau: increase the batch size, up to 16-fold, before the learning rate falls.",
    )
    max_grad_norm: float | None = _method(
        None, "Clip the gradients to this norm (default: no clipping).",
        type=number(above=0, at_most=1e6), metavar="X",
    )  # fmt: skip
    label_smoothing: float = _method(0.0, "Label smoothing.", type=fraction, metavar="F")
    precision: Precision = _method(
        "fp32", "Arithmetic precision; bf16 and fp16 use torch.autocast; fp64 is for proofs."
    )
    seed: int = _method(
        0,
        "Random seed. On CPUs, two runs with the same seed, ranks and threads have bit-identical losses.",
        type=whole_number(0), metavar="N",
    )  # fmt: skip

    strategy: StrategyName = _speed(
        "ddp",
        "How the model is distributed. ddp: whole on every rank; zero1: with the optimizer's state in parts; fsdp: "
        "weights, gradients and optimizer's state in parts (zero3 is another name; zero2 keeps the weights whole "
        "between the passes); hsdp: in parts within a node, whole on each node; tp: layers split among a node's "
        "ranks; pp: a pipeline of stages, each of some layers; dp: one process for all GPUs of a node. gpuctl train "
        "also takes auto: what gpuctl advise says of the cluster's machines.",
    )
    tp: int | None = _speed(
        None,
        "Ranks that each layer is split among; with ddp, fsdp and hsdp, too (default: 1; with --strategy tp those of "
        "a node).",
        type=whole_number(1), metavar="N",
    )  # fmt: skip
    pp: int | None = _speed(
        None,
        "Stages of the pipeline; with ddp, fsdp and hsdp, too (default: 1; with --strategy pp 2).",
        type=whole_number(1), metavar="N",
    )  # fmt: skip
    wrap: str = _speed(
        "size:100000",
        "Which parts of the network are sharded by themselves. transformer: its repeated blocks; size:N: parts of N "
        "weights; or names of classes, separated by commas.",
        type=wrap_policy, metavar="POLICY",
    )  # fmt: skip
    activation_checkpointing: bool = _speed(
        False,
        "Keep the inputs of the network's repeated blocks alone, and compute the blocks again in the backward pass: "
        "less memory, about a third more computing.",
    )
    cpu_offload: bool = _speed(
        False,
        "With parts of the weights (fsdp, hsdp, zero2): keep weights, gradients and optimizer's state in the host's "
        "memory, and update the weights there.",
    )
    prefetch: int | None = _speed(
        None,
        "With parts of the weights: how many parts are gathered ahead of the one that computes (default: 1).",
        type=whole_number(1), metavar="N",
    )  # fmt: skip
    engine: Engine = _speed(
        "torch",
        "What distributes the model and takes the steps. deepspeed: DeepSpeed, by --deepspeed-config; --strategy and "
        "what else belongs to torch are not given then.",
    )
    deepspeed_config: str | None = _speed(
        None,
        "DeepSpeed's configuration for --engine deepspeed, a JSON file here. What it leaves out, or calls auto, the "
        "other options say; --engine torch leaves it out (default: the options say all, without ZeRO).",
        type=deepspeed_config, metavar="FILE",
    )  # fmt: skip
    loop: Loop = _speed(
        "fast",
        "fast: images on the device, channels last, fused optimizer; plain: the textbook loop, with the same losses.",
    )
    graphs: Graphs = _speed(
        "auto",
        "auto: with one rank on a GPU, --loop fast starts forward pass, backward pass and update of a step as a CUDA "
        "graph, unless an option rules it out or few steps are left; on: also with few steps, and with several ranks "
        "and --strategy ddp, which has not run on several GPUs; off: operation by operation.",
    )
    compile: bool = _speed(
        False,
        "Compile network and loss with torch.compile: a block that the network repeats once, and for whole batches "
        "alone.",
    )
    compression: Compression = _speed(
        "none",
        "Compress the gradients on the network. half: 2 bytes for each number; powersgd: low-rank approximations, "
        "after the first steps.",
    )
    bucket_mb: float | None = _speed(
        None, "Size of the gradient buckets of DistributedDataParallel, MiB (default: 1 for the first, then 25).",
        type=number(above=0, at_most=1e6), metavar="X",
    )  # fmt: skip

    device: Device = _where("auto", "auto: the GPUs if the machine has any; they have to work.")
    threads: int | None = _where(
        None,
        "CPU threads per rank (default: $OMP_NUM_THREADS, else the machine's cores divided by the ranks on it).",
        type=whole_number(1), metavar="N",
    )  # fmt: skip
    timeout_s: float = _where(
        # Longer than gpuctl takes to say why a run hangs.
        300.0, "Seconds to wait for the other ranks, at the start and in each collective operation.",
        type=number(above=0, at_most=86_400), metavar="S",
    )  # fmt: skip

    checkpoint_every: float | None = _output(
        None,
        "Epochs between two checkpoints; one is also written at the end; 0: none at all (default: at the ends of "
        "epochs, at least 30 seconds apart).",
        type=number(at_least=0, at_most=1e6), metavar="X",
    )  # fmt: skip
    keep_checkpoints: int = _output(2, "Number of checkpoints to keep.", type=whole_number(1), metavar="N")
    metrics: tuple[str, ...] = _output(
        ("accuracy",), "Metrics of torchmetrics, separated by commas: accuracy, f1, top5, …; text has perplexity.",
        type=names, metavar="NAMES",
    )  # fmt: skip
    tensorboard: bool = _output(True, "Write TensorBoard event files.")
    log_every: int = _output(
        10, "Steps between two lines in the metrics file; the first step and slow ones have a line, too.",
        type=whole_number(1), metavar="N",
    )  # fmt: skip
    save: bool = _output(True, "Write the trained model.")

    @property
    def allows_graphs(self) -> bool:
        """Return whether the options allow steps to be CUDA graphs, with one rank or `ddp`.

        The scaler of fp16 asks the device; blocks that compute again read the generator's state; torch's fused
        operations read a learning rate on the device in single precision. With --compile no GPU has shown it yet.
        """
        return (
            self.graphs != "off"
            and self.loop == "fast"
            and self.precision not in ("fp16", "fp64")
            and not self.activation_checkpointing
            and not self.compile
        )

    @property
    def is_text(self) -> bool:
        """Return whether samples are sequences of tokens, not images."""
        return self.dataset == "text"

    @property
    def default_batch_size(self) -> int:
        """Return the samples of a rank's batch if no option sets them, and there are enough."""
        return DEFAULT_BATCH_OF_TEXT if self.is_text else DEFAULT_BATCH

    @property
    def samples_name(self) -> str:
        """Return the samples' name in a sentence."""
        return "sequences" if self.is_text else "images"
