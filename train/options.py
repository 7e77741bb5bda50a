"""What to train and how, as a value. Imports nothing heavy; `train/command_line.py` reads it from a command line."""

from dataclasses import dataclass
from typing import Literal

DatasetName = Literal["digits", "mnist", "cifar10", "synthetic", "folder"]
Stem = Literal["imagenet", "cifar"]
Augmentation = Literal["auto", "none", "flip", "crop"]
DataPipeline = Literal["memory", "ray"]
Optimizer = Literal["adam", "adamw", "sgd"]
Schedule = Literal["constant", "cosine", "step", "plateau"]
LrScaling = Literal["none", "linear", "sqrt"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Compression = Literal["none", "half", "powersgd"]
Loop = Literal["fast", "plain"]
Device = Literal["auto", "cpu", "cuda"]

DEFAULT_LR: dict[Optimizer, float] = {"adam": 3e-3, "adamw": 3e-3, "sgd": 0.05}
DEFAULT_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to train and how; the same on every rank."""

    model: str = "cnn"
    """`cnn`, `mlp`, `resnet18`, or any other network of torchvision by its name there."""
    stem: Stem = "imagenet"
    """The first layers of a residual network: 7x7 with stride 2 and pooling, or 3x3 for small images."""
    dataset: DatasetName = "digits"
    data_dir: str | None = None
    """Where datasets lie on the node. None: $GPUCTL_DATA_DIR, else ~/.cache/gpuctl/data."""
    download: bool = True
    """Whether a dataset that is not there may be downloaded."""
    data_pipeline: DataPipeline = "memory"
    """Where the training images are: whole in each rank's memory, or streamed to it by Ray Data."""
    synthetic: tuple[int, int, int, int, int] = (10_000, 3, 32, 32, 10)
    """Training images, channels, height, width, classes."""
    image_size: int = 224
    """Height and width that images of a folder are brought to."""
    validation: float | None = None
    """Fraction of the training images that is not trained on; None: what the dataset brings, else a fifth."""
    augmentation: Augmentation = "auto"
    """`flip`: mirrored at random; `crop`: that, and shifted by up to 4 pixels. auto: `flip` where it keeps labels."""

    epochs: int = 10
    batch_size: int | None = None
    """Samples a step and rank: a step of all ranks together takes this times their number. None: `DEFAULT_BATCH`, or
    all that a rank has where that is less."""
    global_batch_size: int | None = None
    """Samples a step of all ranks together, in place of `batch_size`."""
    accumulate: int = 1
    """Parts that a rank's batch is computed in, one after the other."""
    optimizer: Optimizer = "adam"
    lr: float = DEFAULT_LR["adam"]
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    warmup_epochs: float = 0.0
    """The learning rate rises linearly over the first so many epochs."""
    lr_scaling: LrScaling = "none"
    """How the learning rate grows with the ranks: it is for the batch of one."""
    grow_batch: bool = False
    """With `plateau`: the batch grows where the learning rate would fall."""
    clip: float | None = None
    """The largest norm of all gradients together."""
    label_smoothing: float = 0.0
    precision: Precision = "fp32"
    seed: int = 0

    loop: Loop = "fast"
    compile: bool = False
    """The whole step: the network and its loss, the backward pass, clipping and the optimizer."""
    compression: Compression = "none"
    """Of the gradients on the network."""
    bucket_mb: float | None = None
    """Gradients that are averaged at once, MiB. None: as torch has it."""

    checkpoint_every: float | None = None
    """Epochs between two checkpoints; 0: none. None: at the ends of epochs, `train.checkpoint.APART_S` apart. One is
    written at the run's end in any case but 0."""
    keep_checkpoints: int = 2

    metrics: tuple[str, ...] = ("accuracy",)
    """Of torchmetrics, for the validation and test images."""
    tensorboard: bool = True
    log_every: int = 10
    """Steps between two step lines in the metrics file."""
    save: bool = True
    """Whether rank 0 writes the trained model."""

    device: Device = "auto"
    threads: int | None = None
    """CPU threads of this rank; None: as many as `train.distributed.cpu_threads` finds fair."""
    timeout_s: float = 120.0
    """Deadline of the rendezvous and of each collective operation."""
