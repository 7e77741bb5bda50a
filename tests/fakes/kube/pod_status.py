"""The `status` of a pod at each stage of its life, as a kubelet and the scheduler write it. Pure."""

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]

WHEN = "2026-11-01T00:00:00Z"


def unschedulable(pod: Document, why: str) -> Document:
    """No node takes it."""
    return {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": why,
                "lastTransitionTime": WHEN,
            }
        ],
    }


def waiting(pod: Document, reason: str, message: str = "", *, address: str | None = None) -> Document:
    """Return the status of a pod on its node whose next container waits: `ContainerCreating`, `ErrImagePull`,
    `PodInitializing`.
    """
    state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
    init = pod["spec"].get("initContainers") or []
    later = {"waiting": {"reason": "PodInitializing"}}
    status = {
        "phase": "Pending",
        "conditions": _conditions(initialized=not init, ready=False),
        "initContainerStatuses": [_container(item, state) for item in init],
        "containerStatuses": [
            _container(item, later if init else state) for item in pod["spec"]["containers"]
        ],
    }
    return status | _addresses(address)


def initializing(pod: Document, address: str, running: int) -> Document:
    """Return the status of a pod whose init container of that number runs."""
    init = []
    for index, item in enumerate(pod["spec"]["initContainers"]):
        states: Mapping[bool, Document] = {
            True: {
                "terminated": {"exitCode": 0, "reason": "Completed", "startedAt": WHEN, "finishedAt": WHEN}
            },
            False: {"running": {"startedAt": WHEN}},
        }
        waits = {"waiting": {"reason": "PodInitializing"}}
        init.append(_container(item, states[index < running] if index <= running else waits))
    later = {"waiting": {"reason": "PodInitializing"}}
    return {
        "phase": "Pending",
        "conditions": _conditions(initialized=False, ready=False),
        "initContainerStatuses": init,
        "containerStatuses": [_container(item, later) for item in pod["spec"]["containers"]],
    } | _addresses(address)


def running(pod: Document, address: str, *, ready: bool, restarts: int = 0) -> Document:
    """Return the status of a pod whose containers run."""
    done = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": WHEN, "finishedAt": WHEN}}
    now = {"running": {"startedAt": WHEN}}
    return {
        "phase": "Running",
        "conditions": _conditions(initialized=True, ready=ready),
        "startTime": WHEN,
        "initContainerStatuses": [
            _container(item, done, ready=True) for item in pod["spec"].get("initContainers") or []
        ],
        "containerStatuses": [
            _container(item, now, ready=ready, restarts=restarts) for item in pod["spec"]["containers"]
        ],
    } | _addresses(address)


def ended(pod: Document, code: int, reason: str) -> Document:
    """Return the status of a pod whose containers have ended, and are not restarted."""
    over = {"terminated": {"exitCode": code, "reason": reason, "startedAt": WHEN, "finishedAt": WHEN}}
    return {
        "phase": "Failed" if code else "Succeeded",
        "conditions": _conditions(initialized=True, ready=False),
        "containerStatuses": [_container(item, over) for item in pod["spec"]["containers"]],
    }


def crashing(pod: Document, address: str, code: int, reason: str, restarts: int) -> Document:
    """Return the status of a pod whose containers have ended, and are restarted after a while."""
    status = running(pod, address, ready=False, restarts=restarts)
    wait = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
    last = {"terminated": {"exitCode": code, "reason": reason, "startedAt": WHEN, "finishedAt": WHEN}}
    for statu in status["containerStatuses"]:
        statu |= {"state": wait, "lastState": last, "started": False}
    return status


def _addresses(address: str | None) -> Document:
    return {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "127.0.0.1"} if address else {}


def _conditions(*, initialized: bool, ready: bool) -> list[Document]:
    report = {
        "PodScheduled": True,
        "Initialized": initialized,
        "ContainersReady": ready,
        "Ready": ready,
    }
    return [
        {"type": kind, "status": "True" if true else "False", "lastTransitionTime": WHEN}
        for kind, true in report.items()
    ]


def _container(container: Document, state: Document, *, ready: bool = False, restarts: int = 0) -> Document:
    image = container["image"]
    return {
        "name": container["name"],
        "image": image,
        "imageID": f"docker.io/{image}" if "waiting" not in state else "",
        "ready": ready,
        "started": "running" in state,
        "restartCount": restarts,
        "state": state,
        "lastState": {},
    }
