"""The checks of a search, before any launch."""

import pytest

from gpuctl.errors import Usage
from gpuctl.option_table.search_space import parse_params
from gpuctl.workflow.jobs import tune
from gpuctl.workflow.runs.request.request import TrainRequest


def test_too_many_trials_are_refused_before_the_job_checks_each_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks: list[object] = []
    monkeypatch.setattr(tune, "check_built_in", checks.append)
    values = ",".join(map(str, range(200)))
    params = parse_params([f"width=grid({values})", f"layers=grid({values})"])
    with pytest.raises(Usage, match="10,000 are possible"):
        tune.check(TrainRequest(), tune.TuneRequest(params=params))
    assert checks == []
