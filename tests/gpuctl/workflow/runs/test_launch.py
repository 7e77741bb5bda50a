"""A run that was started, and can't be watched to its end."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from node_facts import facts
from node_here import NodeHere
from support import a_machine, a_run, an_inventory

from gpuctl.errors import Failed
from gpuctl.workflow.jobs.train_plan import _quoted
from gpuctl.workflow.runs.launch import Launch, plan_run, see_through
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.disk.store import Store
from remote.launchers.rank_command import built_in
from remote.runs.observer import Observer

RUN = a_run()


class Begun(NodeHere):
    """A node that has started its rank, and says so."""

    @contextmanager
    def stream(self, command: str, request: dict[str, Any], **_: Any) -> Iterator[Any]:  # type: ignore[override]
        """Yield the same frames for every command."""
        rank = {"rank": 0, "local_rank": 0, "pid": 7, "started_at": 1790000000.5}
        frames = [
            ({"t": "started"}, b""),
            ({"t": "record", "path": "ranks/rank-0.json"}, json.dumps(rank).encode()),
        ]
        yield SimpleNamespace(frames=lambda: iter(frames))


def test_see_through_reports_running_job_if_record_cannot_be_saved(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.new_run(datetime(2026, 11, 21, tzinfo=UTC))
    run = replace(RUN, run=folder.id)
    (folder.path / "ranks" / "rank-0.json").mkdir(parents=True)  # the record's place is taken
    launch = Launch(
        run=run,
        folder=folder,
        cluster=store.cluster("default"),
        nodes={"gpu-0": Begun(tmp_path)},
        commands={"gpu-0": {}},
        began=0.0,
    )
    with pytest.raises(
        Failed, match=r"rank-0\.json'.*If it has not ended, it continues\. .*gpuctl logs -f 20261121-"
    ):
        see_through(Observer(), launch, launch.watch(Observer()))


@pytest.mark.parametrize(
    ("cluster", "shapes", "recorded"),
    [
        ("VM.GPU.A10.2", (None, None), "VM.GPU.A10.2"),
        (None, ("g5.xlarge", "g5.xlarge"), "g5.xlarge"),
        ("VM.GPU.A10.2", (None, "VM.GPU.A10.1"), None),
        (None, (None, None), None),
    ],
)
def test_record_of_a_run_has_the_one_shape_of_its_machines(
    cluster: str | None, shapes: tuple[str | None, ...], recorded: str | None
) -> None:
    machines = tuple(
        a_machine(name=f"n-{rank}", rank=rank, host="h", private_ip="10.0.0.1", gpus=1, id=f"i-{rank}", shape=shape)
        for rank, shape in enumerate(shapes)
    )  # fmt: skip
    inventory = an_inventory(cluster="c", provider="oci", shape=cluster, machines=machines)
    known = {machine.name: facts() for machine in machines}
    began = datetime(2026, 11, 21, tzinfo=UTC)
    run = plan_run("r", inventory, TrainRequest(), built_in(()), machines, known, began, {})
    assert run.shape == recorded


def test_values_of_a_plan_can_be_pasted_into_zsh() -> None:
    assert [_quoted(value) for value in ("=lo", "lo", "=a b", "")] == ["'=lo'", "lo", "'=a b'", "''"]
