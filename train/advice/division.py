"""The division of the network among ranks by the job's strategy, computed by the ranks' own functions.

The parts that are sharded, split, cut into stages and recomputed; or {"reason": "a clause"} if this computer can't
compute them. Text models are built without any weights.
"""

from typing import TYPE_CHECKING, Any

from train.advice.data import data_of
from train.advice.memory import is_wrapped
from train.distributed.environment import DistributedEnvironment
from train.options import Options
from train.strategies.deepspeed_config import divided_by_zero, name_of, stage_of
from train.strategies.degrees import Degrees, degrees, strategy_name

if TYPE_CHECKING:
    from torch import Tensor, nn

    from train.strategies.plan import Plan


def division(options: Options, ranks: list[int]) -> dict[str, Any]:
    """Return the division of the network among `ranks`, a number for each node. Raises BadOptions."""
    sizes = degrees(options, DistributedEnvironment(world_size=sum(ranks), local_world_size=min(ranks)))
    try:
        import torch  # noqa: F401
    except ImportError:
        return {"reason": "torch is not installed on this computer"}
    from train.strategies.degrees import SHARDED
    from train.strategies.plan import Plan, plan_of
    from train.strategies.wrapping import repeated_blocks

    network, example, notes = _network(options, sizes)
    name = strategy_name(options, sizes) if sizes.replicas > 1 or sizes.split else "single"
    zero = None
    if options.engine == "deepspeed":
        from train.strategies.deepspeed_engine import check_precision

        check_precision(options, network)
        name = name_of(options)
        zero = list(divided_by_zero(stage_of(options))) if sizes.replicas > 1 else []
    divided = options.strategy in SHARDED or sizes.split
    plan = plan_of(network, example, options, sizes) if divided else Plan(splits={}, parts=[])
    parts, rest = _parts(network, plan) if is_wrapped(options, sizes) else ([], 0)
    return {
        "strategy": name,
        "zero": zero,
        "replicate": sizes.replicate,
        "shard": sizes.shard,
        "tp": sizes.tp,
        "pp": sizes.pp,
        "weights": sum(p.numel() for p in network.parameters()),
        "parts": parts,
        "whole": rest,
        "split": [{"name": name, "by": by} for name, by in plan.splits.items()],
        "stages": _stages(network, plan, sizes),
        "recomputed": list(repeated_blocks(network)) if options.activation_checkpointing else [],
        "notes": notes,
        "reason": None,
    }


def _network(options: Options, sizes: Degrees) -> "tuple[nn.Module, Tensor, list[str]]":
    """Return the network, one sample of its input, and notes on assumptions.

    Without weights, except for an image network that is cut into stages: one image is computed to see which layers
    follow each other.
    """
    import torch

    from train.models.networks import build_model

    data = data_of(options)
    notes, shape = list(data.assumed), data.shape
    if shape is None:
        network = build_model(options, (options.seq_len,), data.classes, on_meta=True)
        return network, torch.zeros(1, options.seq_len, dtype=torch.int64, device="meta"), notes
    try:
        with torch.device("cpu" if sizes.pp > 1 else "meta"):
            return build_model(options, shape, data.classes), torch.zeros(1, *shape), notes
    except NotImplementedError:  # it computes its sizes with tensors
        return build_model(options, shape, data.classes), torch.zeros(1, *shape), notes


def _parts(network: "nn.Module", plan: "Plan") -> tuple[list[dict[str, Any]], int]:
    """Return the parts that are sharded separately, in their order, and the number of remaining weights."""
    names = {name for stage in range(max(1, len(plan.stages))) for name in plan.parts_of(stage)}
    counted: set[int] = set()
    weights = {}
    for name in plan.parts:  # inner parts come before the parts that contain them
        if name in names:
            own_weights = {
                id(p): p.numel() for p in network.get_submodule(name).parameters() if id(p) not in counted
            }
            weights[name] = sum(own_weights.values())
            counted |= own_weights.keys()
    rest = sum(p.numel() for p in network.parameters() if id(p) not in counted)
    order = [name for name, _ in network.named_modules() if name in weights]
    return [{"name": name, "weights": weights[name]} for name in order], rest


def _stages(network: "nn.Module", plan: "Plan", sizes: Degrees) -> list[dict[str, Any]]:
    stages = []
    for number, indices in enumerate(plan.stages):
        names = [plan.layers[index].name for index in indices if plan.layers[index].name]
        weights = {id(p): p.numel() for name in names for p in network.get_submodule(name).parameters()}
        ranks = range(number * sizes.stage_ranks, (number + 1) * sizes.stage_ranks)
        stages.append({"ranks": list(ranks), "layers": names, "weights": sum(weights.values())})
    return stages
