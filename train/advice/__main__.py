"""`python -m train.advice OPTIONS`: answers a question on machines. Reads JSON, and prints JSON.

Standard input: {"machines": [{"shape", "count", "gpus", "gpu", "gpu_memory_gb", "between_gb_s", "hourly_usd",
"setup_s", "min_billed_s"}], "batch_tokens", "tokens", "spelled_out", "runs": [{"run", "shape", "count", "ranks",
"words", "samples_per_s"}]}. Options are the job's own; wrong ones end it with status 2 and a sentence, as in the job.
"""

import json
import sys
from dataclasses import asdict

from train.advice.machines import Machines
from train.advice.measured import MeasuredRun
from train.advice.question import question_of
from train.advice.rows import rows
from train.errors import TrainError


def main() -> int:
    """Answer, and return the exit status."""
    asked = json.load(sys.stdin)
    try:
        question = question_of(
            sys.argv[1:],
            batch_tokens=asked["batch_tokens"],
            tokens=asked["tokens"],
            spelled_out=asked["spelled_out"],
        )
        runs = [MeasuredRun(**{**one, "words": tuple(one["words"])}) for one in asked["runs"]]
        found = rows(question, [Machines(**one) for one in asked["machines"]], runs)
    except TrainError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    answer = {
        "rows": [asdict(row) for row in found],
        "notes": [*question.data.assumed, *question.notes],
        "vocabulary": None if question.data.shape else question.data.classes,
    }
    print(f"\n{json.dumps(answer)}")  # a library may have printed a line without its end
    return 0


if __name__ == "__main__":
    sys.exit(main())
