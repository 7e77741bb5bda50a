"""Files of Ray's tasks on nodes without a rank, in the result of a run."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from node_here import NodeHere
from support import a_result, a_run

from gpuctl.workflow.runs.outputs.task_files import with_task_files
from inventories.disk.store import RunFolder
from remote.errors import NodeFailed


class InterruptedNode(NodeHere):
    """A node that does not answer before a person presses Ctrl-C."""

    def call(self, *_: Any, **__: Any) -> Any:
        """Press Ctrl-C."""
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        return {"outside": []}


class FailedNode(NodeHere):
    """A node that can't be reached."""

    def call(self, *_: Any, **__: Any) -> Any:
        """Raise NodeFailed."""
        raise NodeFailed("gpu-0: no connection")


def a_folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / a_result().run)
    folder.path.mkdir()
    folder.save_run(a_run())
    folder.save_result(a_result())
    return folder


def test_result_has_new_files_of_tasks_on_nodes_that_answer(tmp_path: Path) -> None:
    folder, ray = a_folder(tmp_path), tmp_path / ".gpuctl-node" / "ray" / "gpu-0"
    (ray / "daemons-1").mkdir(parents=True)
    record = {"run_dir": str(ray / "daemons-1"), "temp_dir": str(tmp_path / "temporary")}
    (ray / "node.json").write_text(json.dumps(record))
    (ray / "daemons-1" / "of-task.txt").write_text("text")
    nodes = {"gpu-0": NodeHere(tmp_path), "gpu-1": FailedNode(tmp_path)}
    result = with_task_files(a_result(), folder, nodes, ["my.py"], 60.0)
    place = ".gpuctl-node/ray/gpu-0/daemons-1/of-task.txt"
    assert [(entry.node, entry.path, entry.bytes) for entry in result.outside] == [("gpu-0", place, 4)]
    assert folder.load_result() == result
    assert with_task_files(a_result(), folder, nodes, ["my.py"], -60.0) == a_result(), "an older file"


def test_interrupt_of_the_question_leaves_the_result_as_it_was(tmp_path: Path) -> None:
    began = time.monotonic()
    nodes = {"gpu-0": InterruptedNode(tmp_path)}
    assert with_task_files(a_result(), a_folder(tmp_path), nodes, [], 60.0) == a_result()
    assert time.monotonic() - began < 0.5
