"""Requests that Ray cannot serve, in the words of its scheduler."""

import pytest

from gpuctl.workflow.runs.why import unserved_request

REFUSED = "(autoscaler +36s) Error: No available node types can fulfill resource request"
ADD = "Add suitable node types to this cluster to resolve this issue."


@pytest.mark.parametrize(
    ("log", "request_of"),
    [
        (f"begins\n{REFUSED} {{'GPU': 1.0, 'CPU': 1.0}}. {ADD}\n", "{'GPU': 1.0, 'CPU': 1.0}"),
        (f"{REFUSED} defaultdict(<class 'float'>, {{'GPU': 8.0}}). {ADD}\n\n", "{'GPU': 8.0}"),
        (f"{REFUSED} {{'GPU': 1.0}}. {ADD}\nstep 1\n", ""),
        ("", ""),
    ],
)
def test_request_is_named_while_nothing_else_is_written(log: str, request_of: str) -> None:
    assert unserved_request(log) == request_of
