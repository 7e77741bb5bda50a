"""`python -m train.advice OPTIONS`: answers a question on machines. Reads JSON, and prints JSON.

Standard input: {"machines": [{"shape", "count", "gpus", "gpu", "gpu_memory_gb", "between_gb_s", "hourly_usd"}],
"batch_tokens", "tokens"}. Options are the job's own; wrong ones end it with status 2 and a sentence, as in the job.
"""

import json
import sys
from dataclasses import asdict

from train.advice.machines import Machines
from train.advice.question import question_of
from train.advice.rows import rows
from train.errors import TrainError


def main() -> int:
    """Answer, and return the exit status."""
    asked = json.load(sys.stdin)
    try:
        question = question_of(sys.argv[1:], batch_tokens=asked["batch_tokens"], tokens=asked["tokens"])
        found = rows(question, [Machines(**one) for one in asked["machines"]])
    except TrainError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    answer = {
        "rows": [asdict(row) for row in found],
        "notes": question.notes,
        "vocabulary": question.vocabulary,
    }
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
