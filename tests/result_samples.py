"""Results of runs that several tests write, draw and compare."""

from dataclasses import replace

from support import a_result

from inventories.runs.end_reasons import Reason
from inventories.runs.result import FirstError, RankResult, Share, StepMs, TrainSummary

RESULT = a_result(
    script="built-in",
    nnodes=2,
    world_size=2,
    ended_at=None,
    train=TrainSummary(
        loss=(0.9, float("nan"), 0.3),
        samples_per_s=8412.0,
        step_ms=StepMs(p50=3.1),
        share=Share(compute=0.6, communication=0.3, data=0.1),
    ),
    ranks=(RankResult(rank=0, local_rank=0, node="node-0"),),
    cost_usd=None,
    dir="/here",
)
FAILED = replace(
    RESULT,
    run="20261121-054625-aaaa",
    train=TrainSummary(),
    first_error=FirstError(
        rank=1, node="node-1", message='exit status 3: "boom", he said\nand left', reason=Reason.EXIT_CODE
    ),
)
