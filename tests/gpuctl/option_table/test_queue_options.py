"""The options of a queue's sweep."""

import pytest

from gpuctl.errors import Usage
from gpuctl.option_table.queue_options import grid, point_name, sweep_values
from inventories.runs.labels import check_run_name


def test_each_point_of_a_grid_has_a_name_that_runs_can_have() -> None:
    points = grid({"lr": ("0.1", "1e-3"), "data": ("a/b", "x" * 80)})
    names = [point_name("base", point, at) for at, point in enumerate(points, 1)]
    assert names == ["base-lr=0.1-data=a_b", "base-2", "base-lr=1e-3-data=a_b", "base-4"]
    assert [check_run_name(name) for name in names] == names


def test_values_of_a_secret_are_no_sweep() -> None:
    with pytest.raises(Usage, match=r"^--sweep api_key would show secrets") as raised:
        sweep_values(["n-token=4,8", "api_key=K3Y,L4Z"])
    assert "K3Y" not in str(raised.value)
