"""`python -m train.ask QUESTION OPTIONS`: answers a question about the job, in JSON.

    echo '[[4], [4, 4]]' | python -m train.ask refusals --strategy fsdp --tp 2

OPTIONS are the job's own. Standard input has the details of the question, and the last line printed has the answer.
For options that are not possible the exit status is 2, and a sentence is on standard error. Only `division`, `memory`
and `advice` on images import torch.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from train.command_line import parse
from train.errors import BadEnvironment, BadOptions, TrainError


def check(words: Sequence[str], _: object) -> dict[str, Any]:
    """Check the options. Standard input: null."""
    parse(words)
    return {}


def keys(_: Sequence[str], config: dict[str, Any]) -> dict[str, Any]:
    """Check the keys of a DeepSpeed configuration, so that no unknown value, such as a token, is stored."""
    from train.strategies.deepspeed_config import unknown_key

    if (sentence := unknown_key(config)) is not None:
        raise BadOptions(sentence)
    return {}


def refusals(words: Sequence[str], layouts: list[list[int]]) -> list[str | None]:
    """Return why the job can't run with each layout, the numbers of ranks of its nodes, or null."""
    from train.strategies.degrees import refusal

    options = parse(words)
    return [refusal(options, ranks) for ranks in layouts]


def division(words: Sequence[str], ranks: list[int]) -> dict[str, Any]:
    """Return how the network would be divided among ranks, the number on each node, or a `reason` for no answer."""
    from train.advice.division import division

    try:
        return division(parse(words), ranks)
    except BadEnvironment as error:  # of this computer, not of the nodes
        return {"reason": str(error)}


def advice(words: Sequence[str], question: dict[str, Any]) -> dict[str, Any]:
    """Return time, memory and cost of the job on each of the machines.

    `question`: {"machines": [{"shape", "count", "gpus", "gpu", "gpu_memory_gb", "between_gb_s", "hourly_usd",
    "setup_s", "min_billed_s"}], "batch_tokens", "tokens", "spelled_out", "runs": [{"run", "shape", "count", "ranks",
    "words", "samples_per_s"}]}.
    """
    from train.advice.machines import Machines
    from train.advice.measured import MeasuredRun
    from train.advice.question import question_of
    from train.advice.rows import rows

    machines = [Machines(**each) for each in question.pop("machines")]
    runs = [MeasuredRun(**{**each, "words": tuple(each["words"])}) for each in question.pop("runs")]
    job = question_of(words, **question)
    return {
        "rows": [asdict(row) for row in rows(job, machines, runs)],
        "notes": [*job.data.assumed, *job.notes],
        "vocabulary": None if job.data.shape else job.data.classes,
    }


def memory(words: Sequence[str], layout: dict[str, int]) -> dict[str, float | str]:
    """Return the memory of a rank by arithmetic and by torch's own count, or why it is not counted.

    `layout`: {"count", "gpus", "micro_batch", "vocabulary"}.
    """
    from train.advice.tracker import compare

    return compare(parse(words), **layout)


QUESTIONS: dict[str, Callable[[Sequence[str], Any], Any]] = {
    answer.__name__: answer for answer in (advice, check, division, keys, memory, refusals)
}


def main(words: Sequence[str]) -> int:
    """Answer a question, and return the exit status."""
    try:
        answer = QUESTIONS[words[0]](words[1:], json.load(sys.stdin))
    except TrainError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    print(f"\n{json.dumps(answer)}")  # a library may have printed a line without its end
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
