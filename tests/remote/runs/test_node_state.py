"""Test the detection of busy nodes from their reports on runs."""

import pytest

from remote.runs.node_state import Occupancy, busy_nodes


def node(*runs: str, begun: tuple[str, ...] = (), ray: str | None = None) -> Occupancy:
    return Occupancy(runs=runs, begun=(*runs, *begun), begun_elsewhere=begun, ray=ray)


@pytest.mark.parametrize(
    ("nodes", "busy"),
    [
        ({"a": node(), "b": node("R1")}, {"b": "R1"}),
        ({"a": node("R1"), "b": node(begun=("R0",)), "c": node("R2")}, {"a": "R1", "c": "R2"}),
        # A home folder of both: code and environments of the run are in it.
        ({"a": node("R1"), "b": node(begun=("R1",)), "c": node()}, {"a": "R1", "b": "R1"}),
        # A driver's tasks run on each node of its Ray cluster; ranks of a torchrun run do not.
        (
            {"a": node("driver", ray="a:1"), "b": node(ray="a:1"), "c": node(ray="c:1")},
            {"a": "driver", "b": "driver"},
        ),
        ({"a": node("R1", ray="a:1"), "b": node(ray="a:1")}, {"a": "R1"}),
        ({"a": node(), "b": node()}, {}),
    ],
)
def test_busy_nodes_run_something_or_share_home_or_ray(
    nodes: dict[str, Occupancy], busy: dict[str, str]
) -> None:
    assert busy_nodes(nodes, lambda run: run == "driver") == busy


def test_node_that_shares_home_or_ray_depends_on_others() -> None:
    assert node(begun=("R1",)).depends_on_others
    assert node(ray="a:1").depends_on_others
    assert not node("R1").depends_on_others
