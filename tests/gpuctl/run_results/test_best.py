"""The best of several runs."""

from dataclasses import replace

import pytest
from support import a_result

from gpuctl.run_results.best import best_of
from inventories.runs.result import Result, RunStatus, TrainSummary


def ended(status: RunStatus = "succeeded", **train: object) -> Result:
    return a_result(status=status, train=TrainSummary(**train))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runs", "best", "number", "count"),
    [
        ([ended(loss=(0.5,)), ended(loss=(0.9, 0.2)), ended(loss=(0.3,))], 1, "0.200", 3),
        ([ended(accuracy=0.9, loss=(0.1,)), ended(accuracy=0.95, loss=(0.2,))], 1, "95.0 %", 2),
        ([ended(accuracy=0.9, loss=(0.4,)), ended(loss=(0.2,)), ended(loss=(0.3,))], 1, "0.200", 3),
        ([ended(perplexity=30.0, loss=(3.0,)), ended(perplexity=20.5, loss=(3.5,))], 1, "20.5", 2),
        (
            [ended(loss=(0.1,), metrics={"val_loss": 0.9}), ended(loss=(0.2,), metrics={"val_loss": 0.5})],
            1, "0.5", 2,
        ),
        ([ended(loss=(0.1,), loss_name="nll"), ended(loss=(0.3,)), ended(loss=(0.2,))], 2, "0.200", 2),
        ([ended(loss=(float("nan"),)), ended("failed", loss=(0.1,)), ended(loss=(0.7,))], 2, "0.700", 1),
    ],
)  # fmt: skip
def test_best_run_is_ranked_by_what_most_runs_have(
    runs: list[Result], best: int, number: str, count: int
) -> None:
    found = best_of(runs)
    assert found is not None
    assert (found.result, found.shown(found.result), len(found.ranked)) == (runs[best], number, count)


def test_no_run_is_the_best_without_a_measure_or_a_success() -> None:
    assert best_of([]) is None
    assert best_of([ended(), ended("running", loss=(0.1,)), ended("stopped", accuracy=0.9)]) is None
    first = ended(loss=(0.5,))
    assert best_of([first, replace(first, run="later")]).result is first  # type: ignore[union-attr]
