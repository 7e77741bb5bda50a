"""Test the stage of a waiting pod, read from its status."""

from typing import Any

import pytest

from provision.kubernetes.pod_stages import PodStage, stage_of

ON = {"nodeName": "n0"}


def pod(status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "worker"}, "spec": spec, "status": {"phase": "Pending", **status}}


def container(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "ray-worker", "image": "ray:1", "state": state, "ready": False, **more}


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


NO_ROOM = {
    "type": "PodScheduled",
    "status": "False",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}
CASES = {
    "ready": (
        pod({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, **ON),
        PodStage(stage="ready", reason="ready"),
    ),
    "no room": (
        pod({"conditions": [NO_ROOM]}),
        PodStage(stage="node", reason="a node: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
    ),
    "no such image": (
        pod({"containerStatuses": [container(waits("ErrImagePull", "ray:1: not found"))]}, **ON),
        PodStage(stage="image", reason="the image ray:1: ray:1: not found", fatal=True),
    ),
    "registry away": (
        pod({"containerStatuses": [container(waits("ImagePullBackOff", "dial tcp: i/o timeout"))]}, **ON),
        PodStage(stage="image", reason="the image ray:1: dial tcp: i/o timeout"),
    ),
    "crashes": (
        pod(
            {
                "containerStatuses": [
                    container(waits("CrashLoopBackOff"), lastState={"terminated": {"exitCode": 127}}),
                ]
            },
            **ON,
        ),
        PodStage(stage="start", reason="CrashLoopBackOff (it ended with exit status 127)", fatal=True),
    ),
    "init": (
        pod(
            {
                "initContainerStatuses": [{"name": "wait-gcs-ready", "state": {"running": {}}}],
                "containerStatuses": [container(waits("PodInitializing"))],
            },
            **ON,
        ),
        PodStage(stage="init", reason="wait-gcs-ready, the step before it starts"),
    ),
    "not ready": (
        pod({"phase": "Running", "containerStatuses": [container({"running": {}})]}, **ON),
        PodStage(stage="start", reason="Ray in its container on n0"),
    ),
    "evicted": (
        pod(
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, **ON
        ),
        PodStage(stage="start", reason="The node was low on resource: memory.", fatal=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_status_tells_what_a_pod_waits_for(case: str) -> None:
    status, expected = CASES[case]
    assert stage_of(status) == expected


def test_events_tell_that_an_image_is_being_pulled() -> None:
    waiting = pod({"containerStatuses": [container(waits("ContainerCreating"))]}, **ON)
    assert (
        stage_of(waiting, [{"reason": "Scheduled"}, {"reason": "Pulling"}]).reason == "the image ray:1 on n0"
    )
    assert stage_of(waiting, [{"reason": "Pulling"}, {"reason": "Pulled"}]).stage == "start"
