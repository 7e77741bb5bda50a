"""Test the part of a node that a run with `--gpus` takes."""

from node_facts import facts

from gpuctl.workflow.runs.gpus import folder_of_part
from gpuctl.workflow.runs.request.request import TrainRequest


def test_nodes_with_one_home_folder_have_no_copy_in_common() -> None:
    nodes = [facts(gpus=({"index": 0, "uuid": f"GPU-{node}"},)) for node in "ab"]
    request = TrainRequest(gpus=1, words=("my.py",))
    folders = {folder_of_part("~/code/my", request, fact) for fact in nodes}
    assert folders == {"~/code/my.GPU-a", "~/code/my.GPU-b"}
    assert folder_of_part("~/code/my", TrainRequest(words=("my.py",)), nodes[0]) == "~/code/my"
