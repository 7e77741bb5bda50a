"""What a pod waits for, as its status and its events tell. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Stage = Literal["node", "image", "init", "start", "ready"]
DEADLINES_S: dict[Stage, float] = {
    "node": 900.0,
    "image": 1200.0,
    "init": 600.0,
    "start": 300.0,
    "ready": 0.0,
}
"""How long a pod may be at a stage. A node with GPUs takes 5 to 10 minutes to join, a GPU image minutes to come."""

NEVER = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
)
"""Reasons of a container that waiting does not mend."""
PULL_FAILED = ("ErrImagePull", "ImagePullBackOff")
CRASHED = "CrashLoopBackOff"


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """How far a pod is."""

    stage: Stage
    words: str
    """What it waits for, in a clause."""
    fatal: bool = False
    """Whether waiting does not help."""


def of(pod: Mapping[str, Any], events: Sequence[Mapping[str, Any]] | None = ()) -> Waiting:
    """Return how far the pod is; `events`: its own, oldest first; None: they can't be listed."""
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase in ("Failed", "Succeeded"):
        why = status.get("message") or status.get("reason") or f"it has ended ({phase})"
        return Waiting(stage="start", words=str(why), fatal=True)
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    if conditions.get("Ready", {}).get("status") == "True":
        return Waiting(stage="ready", words="ready")
    if not pod["spec"].get("nodeName"):
        said = conditions.get("PodScheduled", {}).get("message")
        return Waiting(stage="node", words=f"a node: {said}" if said else "a node")
    node = pod["spec"]["nodeName"]
    for stage, key in (("init", "initContainerStatuses"), ("start", "containerStatuses")):
        for container in status.get(key) or ():
            found = _container(container, stage, node, events)  # type: ignore[arg-type]
            if found is not None:
                return found
    return Waiting(stage="start", words=f"its container on {node}")


def _container(
    container: Mapping[str, Any], stage: Stage, node: str, events: Sequence[Mapping[str, Any]] | None
) -> Waiting | None:
    """Return what that container waits for; None: it is done, or runs and is ready."""
    state, image = container.get("state") or {}, container.get("image", "its image")
    waiting = state.get("waiting")
    if waiting is not None:
        reason, message = waiting.get("reason", ""), str(waiting.get("message") or "")
        if reason in PULL_FAILED:
            return Waiting(
                stage="image", words=f"the image {image}: {message or reason}", fatal=_no_such_image(message)
            )
        if reason in NEVER or reason == CRASHED:
            last = ((container.get("lastState") or {}).get("terminated") or {}).get("exitCode")
            ended = f" (it ended with exit status {last})" if last is not None else ""
            return Waiting(stage=stage, words=f"{message or reason}{ended}", fatal=True)
        if events is None and not message:
            unsure = f"its container on {node}, perhaps for the image {image}: you may not list events"
            return Waiting(stage="image", words=unsure)
        if _pulling(events or ()):
            return Waiting(stage="image", words=f"the image {image} on {node}")
        if stage == "init" and reason == "PodInitializing":
            return None
        return Waiting(stage=stage, words=f"its container on {node}" + (f": {message}" if message else ""))
    ended_with = (state.get("terminated") or {}).get("exitCode")
    if stage == "init":
        if "running" in state:
            return Waiting(stage="init", words=f"{container['name']}, the step before it starts")
        return None
    if ended_with is not None:
        return Waiting(stage=stage, words=f"its container ended with exit status {ended_with}", fatal=False)
    return None if container.get("ready") else Waiting(stage="start", words=f"Ray in its container on {node}")


def _pulling(events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an image is being pulled now."""
    reasons = [one.get("reason") for one in events if one.get("reason") in ("Pulling", "Pulled", "Failed")]
    return bool(reasons) and reasons[-1] == "Pulling"


def _no_such_image(message: str) -> bool:
    """Whether the registry has said so; another failure may pass."""
    return any(word in message for word in ("not found", "manifest unknown", "denied", "unauthorized"))
