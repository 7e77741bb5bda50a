"""Check a DeepSpeed configuration, and merge it into the job's options. Imports nothing heavy.

Values in both have to agree. An option fills in a key that is missing or `auto`. Unknown keys are refused: they may
change the training or the checkpoints. gpuctl asks for this check with `train.ask` before it stores a configuration.
"""

import argparse
import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any

from train.errors import BadOptions
from train.options import Options

OPTION = "--deepspeed-config"


KEYS = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("optimizer", "bf16", "fp16", "torch_autocast", "zero_optimization"),
    *("communication_data_type", "prescale_gradients", "gradient_predivide_factor"),
    *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "flops_profiler", "comms_logger"),
    *("log_level", "disable_python_gc", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
)  # fmt: skip
"""Accepted keys."""


ZERO_KEYS = (
    *("stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "use_multi_rank_bucket_allreduce"),
    *("allgather_partitions", "allgather_bucket_size", "overlap_comm", "round_robin_gradients", "sub_group_size"),
    *("offload_optimizer", "offload_param", "ignore_unused_parameters", "memory_efficient_linear"),
    *("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_model_persistence_threshold"),
    *("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_module_granularity_threshold"),
    *("stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential"),
    *("stage3_gather_16bit_weights_on_model_save", "log_trace_cache_warnings", "enable_sanity_checks"),
)  # fmt: skip
"""Accepted keys of `zero_optimization`."""


NOT_FOR_THE_JOB = {
    **dict.fromkeys(("scheduler",), "the learning rate is the job's: --schedule and --warmup-epochs say it"),
    **dict.fromkeys(("activation_checkpointing",), "--activation-checkpointing is the job's option for it"),
    **dict.fromkeys(
        ("tensorboard", "wandb", "comet", "csv_monitor"), "the job writes its own metrics and TensorBoard files"
    ),
    **dict.fromkeys(("data_efficiency", "curriculum_learning", "data_sampling"), "the job takes its own samples"),
    **dict.fromkeys(
        ("elasticity", "autotuning"), "the job's batch is what --batch-size or --global-batch-size says"
    ),
    **dict.fromkeys(
        ("amp", "compression_training", "progressive_layer_drop", "hybrid_engine", "pipeline", "compile",
         "tensor_parallel", "sequence_parallel_size", "sparse_attention", "eigenvalue", "zenflow", "checkpoint"),
        "the job has no way for it",
    ),
}  # fmt: skip
"""Keys that are refused, and why."""


ZERO_NOT_FOR_THE_JOB = dict.fromkeys(
    (
        *("mics_shard_size", "mics_hierarchical_params_gather", "zero_hpz_partition_size"),
        *("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"),
    ),
    "the job's checkpoints can't be gathered from weights that are divided so",
)
"""Keys of `zero_optimization` that are refused, and why."""
AUTO = "auto"
Config = dict[str, Any]
OPTIMIZERS = {"Adam": "adam", "AdamW": "adamw", "SGD": "sgd"}
"""The job's optimizers, by DeepSpeed's names."""
SETTINGS = {"adam": ("betas", "eps", "amsgrad"), "sgd": ("momentum", "dampening", "nesterov")}
"""Optimizer settings without an option of the job, by the beginning of the optimizer's name."""
NO_SETTINGS = ("lr", "weight_decay", "torch_adam", "adam_w_mode")
"""Settings that have an option, or that choose an implementation of the same optimizer."""
HALVES = {"bf16": "bf16", "fp16": "fp16", "bfloat16": "bf16", "float16": "fp16"}
"""The job's name of a precision, by section of the configuration and by dtype of torch_autocast."""


def unknown_key(config: Mapping[str, Any]) -> str | None:
    """Return the sentence on the first key that the job does not accept, or `None`."""
    if (sentence := _unknown(config, KEYS, NOT_FOR_THE_JOB, "")) is not None:
        return sentence
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping):
        return None
    return _unknown(zero, ZERO_KEYS, ZERO_NOT_FOR_THE_JOB, "zero_optimization.")


def _unknown(
    section: Mapping[str, Any], known: Collection[str], refused: Mapping[str, str], where: str
) -> str | None:
    key = next((key for key in section if key not in known), None)
    if key is None:
        return None
    # A key may be any string: show its beginning only.
    shown = json.dumps(f"{where}{key}"[:100], ensure_ascii=False)
    if why := refused.get(key) or refused.get(key.lower()):
        return f"{OPTION} has {shown}, and {why}. Take it out."
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"Did you mean {where}{near[0]}? Else take" if near else "Take"
    return f"{OPTION} has {shown}, which the job does not know. {hint} it out."


def take_over(options: argparse.Namespace, typed: Collection[str]) -> str | None:
    """Set the options from a configuration, and return its first problem, or `None`.

    `typed`: names of the options on the command line.
    """
    if options.engine != "deepspeed":
        config_text, options.deepspeed_config = options.deepspeed_config, None  # another engine resumes
        return (
            f"{OPTION} is for --engine deepspeed: give it, too."
            if config_text and "engine" not in typed
            else None
        )
    config = config_of(options)
    if unknown := unknown_key(config):
        return unknown
    try:
        half = options.precision if "precision" in typed else None
        values = {**_sizes(config), **_optimizer(config, options), **_precision(config, half)}
    except BadOptions as error:
        return str(error)
    if "global_batch_size" in values and "batch_size" in typed:
        return (
            f"{OPTION} says train_batch_size, which is of all ranks together, and --batch-size is of a rank: leave "
            "one of them out."
        )
    for name, (where, value) in values.items():
        requested = getattr(options, name)
        if name in typed and requested != value:
            flag = f"--{name.replace('_', '-')}"
            return f"{OPTION} says {where}, and {flag} says {requested}: leave one of them out, or make them agree."
        setattr(options, name, value)
    size, steps = micro_batch_size(config), options.gradient_accumulation_steps
    if size is not None and options.batch_size is None and options.global_batch_size is None:
        options.batch_size = size * (steps or 1)
    return None


def problem(options: Options) -> str | None:
    """Return the first option that does not fit the engine, as a message."""
    if options.engine != "deepspeed":
        return None
    unsuitable = {
        f"--strategy {options.strategy}": options.strategy != "ddp",
        "--tp": (options.tp or 1) > 1,
        "--pp": (options.pp or 1) > 1,
        "--wrap": options.wrap != Options.wrap,
        "--cpu-offload": options.cpu_offload,
        "--prefetch": options.prefetch is not None,
        "--compile": options.compile,
        "--compression": options.compression != "none",
        "--bucket-mb": options.bucket_mb is not None,
        "--precision fp64": options.precision == "fp64",
    }
    if option := next((name for name, is_given in unsuitable.items() if is_given), None):
        return (
            f"{option} is for --engine torch: DeepSpeed distributes the model as zero_optimization in {OPTION} says. "
            "Leave one of them out."
        )
    if "nvme" in _offload_devices(options):
        return f'{OPTION} keeps the model on a disk ("device": "nvme"), which the job has no way for: take "cpu".'
    if options.precision in ("bf16", "fp16") and stage_of(options) == 0:
        return (
            f"--precision {options.precision} needs ZeRO with --engine deepspeed: give "
            f'{{"zero_optimization": {{"stage": 1}}}} or more in {OPTION}, or take --engine torch.'
        )
    return None


def offloads(options: Options) -> bool:
    """Return whether the configuration keeps weights or the optimizer's state in the host's memory."""
    return "cpu" in _offload_devices(options)


def _offload_devices(options: Options) -> list[object]:
    zero = config_of(options).get("zero_optimization", {})
    offloads = [
        zero[name] for name in ("offload_optimizer", "offload_param") if isinstance(zero.get(name), dict)
    ]
    return [offload.get("device") for offload in offloads]


def config_of(options: Any) -> Config:  # noqa: ANN401 - options, parsed or not yet
    """Return the configuration without its `auto` values."""
    config: Config = json.loads(options.deepspeed_config or "{}")
    return _without_auto(config)


def name_of(options: Options) -> str:
    """Return the strategy's name for the result."""
    stage = stage_of(options)
    return f"deepspeed zero{stage}" if stage else "deepspeed"


def stage_of(options: Options) -> int:
    """Return the stage of ZeRO."""
    stage: int = _section(config_of(options), "zero_optimization").get("stage", 0)
    return stage


def micro_batch_size(config: Mapping[str, Any]) -> int | None:
    """Return the size of a micro-batch; `None`: it follows from the batch size."""
    size: int | None = config.get("train_micro_batch_size_per_gpu")
    return size


def optimizer_settings(options: Options) -> Config:
    """Return the optimizer's settings that have no option."""
    params = _section(_section(config_of(options), "optimizer"), "params")
    settings = {name: value for name, value in params.items() if name not in NO_SETTINGS}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def has_autocast(config: Mapping[str, Any]) -> bool:
    """Return whether torch's autocast chooses the operations in half precision, with weights in full precision."""
    return bool(config.get("torch_autocast", {}).get("enabled", False))


def divided_by_zero(stage: int) -> tuple[str, ...]:
    """Return the tensors that are divided among the ranks at a stage of ZeRO."""
    return ("the optimizer's state", "gradients", "weights")[:stage]


def engine_config(options: Options, *, micro_batch: int, micro_batches: int, world_size: int) -> Config:
    """Return the configuration for DeepSpeed, with the options' values."""
    config = config_of(options)
    halves = {
        name: {**config.get(name, {}), "enabled": options.precision == name and not has_autocast(config)}
        for name in ("bf16", "fp16")
    }
    config.pop("optimizer", None)  # it is given as an object
    return {
        **config,
        **halves,
        "train_batch_size": micro_batch * micro_batches * world_size,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": options.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,
        # torch's optimizer updates weights that are kept in the host's memory as well, and nothing is compiled.
        "zero_force_ds_cpu_optimizer": False,
    }


def _sizes(config: Config) -> Config:
    names = {
        "train_batch_size": "global_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
    }
    for key in (*names, "train_micro_batch_size_per_gpu"):
        if key in config and (type(config[key]) is not int or config[key] < 1):
            raise BadOptions(f"{OPTION} says {key} {config[key]!r}: give a whole number from 1.")
    values = {name: (f"{key} {config[key]}", config[key]) for key, name in names.items() if key in config}
    stage = _section(config, "zero_optimization").get("stage", 0)
    if stage not in range(4) or isinstance(stage, bool):
        raise BadOptions(f"{OPTION} says zero_optimization.stage {stage!r}: give 0, 1, 2 or 3.")
    if "gradient_clipping" in config:
        norm = config["gradient_clipping"]
        _check_number(norm, f"gradient_clipping {norm!r}")
        values["max_grad_norm"] = (f"gradient_clipping {norm:g}", norm or None)
    return values


def _optimizer(config: Config, options: argparse.Namespace) -> Config:
    section = _section(config, "optimizer")
    params = _section(section, "params")
    values: Config = {}
    for name in ("lr", "weight_decay"):
        if name in params:
            values[name] = (f"optimizer.params.{name} {params[name]}", params[name])
            _check_number(params[name], values[name][0])
    kind = section.get("type")
    if kind is not None:
        if kind not in OPTIMIZERS:
            raise BadOptions(
                f"{OPTION} says optimizer.type {kind}, and the job has {', '.join(OPTIMIZERS)}: name one of them, or "
                "train with a script of your own."
            )
        name = OPTIMIZERS[kind]
        if name == "adam" and params.get("adam_w_mode", True):
            # So DeepSpeed has it. Where nothing decays both are the same.
            decays = params.get("weight_decay", options.weight_decay) > 0
            name = "adamw" if decays or options.optimizer == "adamw" else "adam"
        values["optimizer"] = (f"optimizer.type {kind}", name)
    family = values["optimizer"][1] if kind is not None else options.optimizer
    known = (*NO_SETTINGS, *SETTINGS["sgd" if family == "sgd" else "adam"])
    if unknown := next((name for name in params if name not in known), None):
        near = difflib.get_close_matches(unknown, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise BadOptions(
            f"{OPTION} says optimizer.params.{unknown}, which the job's {family} does not have.{hint}"
        )
    return values


def _precision(config: Config, typed: str | None) -> Config:
    """Return the precision that a section enables. `typed`: the precision from the command line."""
    switched = {}
    for section in ("bf16", "fp16", "torch_autocast"):
        settings = _section(config, section)
        if "enabled" in settings:
            kind = settings.get("dtype", "bfloat16") if section == "torch_autocast" else section
            if kind not in HALVES:
                raise BadOptions(f"{OPTION} says {section}.dtype {kind}: give bfloat16 or float16.")
            switched[section] = (HALVES[kind], bool(settings["enabled"]))
    on = {section: kind for section, (kind, enabled) in switched.items() if enabled}
    if len(on) > 1:
        raise BadOptions(f"{OPTION} enables {' and '.join(on)}: enable one of them.")
    if not on and (off := next((section for section, (kind, _) in switched.items() if kind == typed), None)):
        raise BadOptions(
            f"{OPTION} says {off}.enabled false, and --precision says {typed}: leave one of them out."
        )
    return {} if not on else {"precision": (f"{next(iter(on))}.enabled true", next(iter(on.values())))}


def _check_number(value: object, shown: str) -> None:
    """Raise BadOptions for a value that is no number from 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadOptions(f"{OPTION} says {shown}: give a number from 0.")


def _section(config: Mapping[str, Any], name: str) -> Config:
    section = config.get(name, {})
    if not isinstance(section, dict):
        raise BadOptions(f"{OPTION} says {name} {section!r}: give a JSON object.")
    return section


def _without_auto(config: Mapping[str, Any]) -> Config:
    return {
        name: _without_auto(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if value != AUTO
    }
