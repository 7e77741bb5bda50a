"""The keys of a DeepSpeed configuration that the job accepts. Imports nothing heavy.

gpuctl checks a configuration with `train.ask` before storing it, so that only training settings are stored.
"""

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any

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
    if why := _reason(key, refused):
        return f"{OPTION} has {shown}, and {why}. Take it out."
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"Did you mean {where}{near[0]}? Else take" if near else "Take"
    return f"{OPTION} has {shown}, which the job does not know. {hint} it out."


def _reason(key: str, refused: Mapping[str, str]) -> str | None:
    """Return why a key is refused, in whatever case it is written."""
    return refused.get(key) or refused.get(key.lower())
