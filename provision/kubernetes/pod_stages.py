"""The stage of a pod on its way to ready, by its status and its events; and the error for one that stays. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from provision.errors import CreateFailed, NoCapacity, ProvisionError

Stage = Literal["node", "image", "init", "start", "ready"]
DEADLINES_S: dict[Stage, float] = {
    "node": 900.0,
    "image": 1200.0,
    "init": 600.0,
    "start": 300.0,
    "ready": 0.0,
}
"""Longest time at a stage. A node with GPUs takes 5 to 10 minutes to join, a GPU image minutes to come."""

NEVER = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError")
"""Reasons of a container that time does not mend."""
PULL_FAILED = ("ErrImagePull", "ImagePullBackOff")
CRASHED = "CrashLoopBackOff"


@dataclass(frozen=True, kw_only=True)
class PodStage:
    """The stage of a pod."""

    stage: Stage
    reason: str
    """The thing that the pod waits for, in a clause."""
    fatal: bool = False
    """Whether waiting does not help."""

    def error(self, name: str, seconds: float, events: Sequence[str]) -> ProvisionError:
        """Return the error for a pod that stays at this stage. `events`: lines about its last events."""
        if self.stage == "node":
            head = f"No node has room for {name} within {seconds:.0f} s: it waits for {self.reason}."
            return NoCapacity("\n".join([head, *events]))
        problem = "can't start" if self.fatal else f"is not ready after {seconds:.0f} s"
        return CreateFailed("\n".join([f"The pod {name} {problem}: it waits for {self.reason}.", *events]))


def stage_of(pod: Mapping[str, Any], events: Sequence[Mapping[str, Any]] | None = ()) -> PodStage:
    """Return the pod's stage. `events`: its own, oldest first; `None`: the user may not list them."""
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase in ("Failed", "Succeeded"):
        why = status.get("message") or status.get("reason") or f"it has ended ({phase})"
        return PodStage(stage="start", reason=str(why), fatal=True)
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    if conditions.get("Ready", {}).get("status") == "True":
        return PodStage(stage="ready", reason="ready")
    if not pod["spec"].get("nodeName"):
        message = conditions.get("PodScheduled", {}).get("message")
        return PodStage(stage="node", reason=f"a node: {message}" if message else "a node")
    node = pod["spec"]["nodeName"]
    stages: tuple[tuple[Stage, str], ...] = (
        ("init", "initContainerStatuses"),
        ("start", "containerStatuses"),
    )
    for stage, key in stages:
        for container in status.get(key) or ():
            result = _container_stage(container, stage, node, events)
            if result is not None:
                return result
    return PodStage(stage="start", reason=f"its container on {node}")


def _container_stage(
    container: Mapping[str, Any], stage: Stage, node: str, events: Sequence[Mapping[str, Any]] | None
) -> PodStage | None:
    """Return the stage of a pod with that container. `None`: the container is done, or ready."""
    state, image = container.get("state") or {}, container.get("image", "its image")
    waiting = state.get("waiting")
    if waiting is not None:
        reason, message = waiting.get("reason", ""), str(waiting.get("message") or "")
        if reason in PULL_FAILED:
            text = f"the image {image}: {message or reason}"
            return PodStage(
                stage="image",
                reason=text,
                fatal=any(
                    word in message for word in ("not found", "manifest unknown", "denied", "unauthorized")
                ),
            )
        if reason in NEVER or reason == CRASHED:
            last = ((container.get("lastState") or {}).get("terminated") or {}).get("exitCode")
            ended = f" (it ended with exit status {last})" if last is not None else ""
            return PodStage(stage=stage, reason=f"{message or reason}{ended}", fatal=True)
        if events is None and not message:
            text = f"its container on {node}, perhaps for the image {image}: you may not list events"
            return PodStage(stage="image", reason=text)
        reasons = [event.get("reason") for event in (events or ())]
        pulls = [reason for reason in reasons if reason in ("Pulling", "Pulled", "Failed")]
        if bool(pulls) and pulls[-1] == "Pulling":
            return PodStage(stage="image", reason=f"the image {image} on {node}")
        if stage == "init" and reason == "PodInitializing":
            return None
        return PodStage(stage=stage, reason=f"its container on {node}" + (f": {message}" if message else ""))
    if stage == "init":
        running = f"{container['name']}, the step before it starts"
        return PodStage(stage="init", reason=running) if "running" in state else None
    exit_code = (state.get("terminated") or {}).get("exitCode")
    if exit_code is not None:
        return PodStage(stage=stage, reason=f"its container ended with exit status {exit_code}")
    return (
        None if container.get("ready") else PodStage(stage="start", reason=f"Ray in its container on {node}")
    )
