"""Run the pods that the scheduler assigns to nodes, and report their status: a small kubelet.

Images are not pulled: each container has this machine's programs, and `images` lists the images with another fate.
"""

import base64
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import urllib3
import urllib3.exceptions

from tests.fakes.kube import pod_status
from tests.fakes.vms import FIRST, MOST, Options, make_host, new_login
from tests.fakes.vms.network import Switch
from tests.kube.client import Client, Refused
from tests.kube.containers import USER, Containers, secrets_of

Document = dict[str, Any]
Fate = Literal["missing", "slow"]
POLL_S = 0.2
LONGEST_BACK_OFF_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that joins; its GPUs are numbers alone."""

    name: str
    gpus: int = 0
    cpus: int = 16
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Document] = ()

    def document(self, port: int) -> Document:
        """Return the object that a kubelet on `port` registers."""
        named = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": named | dict(self.labels)},
            "spec": {"taints": list(self.taints)},
        }

    def status(self, port: int) -> Document:
        """Return the status that the kubelet reports for the node."""
        amounts = {"cpu": str(self.cpus), "memory": "64Gi", "pods": "110"}
        amounts |= {"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        return {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": [ready | {"lastHeartbeatTime": pod_status.WHEN}],
        }


class Kubelet:
    """The kubelet of all nodes. `images` and `path` may be changed at any time."""

    def __init__(self, client: Client, home: Path, switch: Switch, path: str) -> None:
        self.images: dict[str, Fate] = {}
        """Globs of images that do not simply run."""
        self.errors: list[str] = []
        """Errors of the kubelet: empty after a good test."""
        self._client, self._home, self._switch, self._path = client, home, switch, path
        self._pods: dict[str, _Pod] = {}
        self._next = FIRST
        self._names: dict[str, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def join(self, nodes: Sequence[Node], port: int) -> None:
        """Register nodes whose `exec` is served on that port."""
        for node in nodes:
            document = self._client.apply(node.document(port), manager="kubelet")
            self._client.set_status(document, node.status(port))

    def start(self) -> None:
        """Begin to run pods."""
        self._thread.start()

    def close(self) -> None:
        """End all pods, and the loop."""
        self._over.set()
        self._thread.join()
        for pod in self._pods.values():
            pod.end()

    def containers(self, namespace: str, name: str) -> Containers | None:
        """Return the running containers of a pod, or `None`."""
        result = [
            pod.containers
            for pod in list(self._pods.values())
            if (pod.namespace, pod.name) == (namespace, name)
        ]
        return result[0] if result else None

    def _loop(self) -> None:
        while not self._over.wait(POLL_S):
            try:
                self._turn()
            except (Refused, urllib3.exceptions.HTTPError) as error:
                self.errors.append(str(error))

    def _turn(self) -> None:
        existing = {
            item["metadata"]["uid"]: item
            for item in self._client.items("/api/v1/pods")
            if item["spec"].get("nodeName")
        }
        for uid, document in existing.items():
            if "deletionTimestamp" in document["metadata"]:
                self._remove(uid, document)
            elif uid not in self._pods and document["status"]["phase"] == "Pending":
                self._pods[uid] = _Pod(document, self._client, self._home / "pods" / uid, self)
                self._pods[uid].begin()
        for uid in self._pods.keys() - existing.keys():
            self._pods.pop(uid).end()
        self._resolve(list(existing.values()))

    def _remove(self, uid: str, document: Document) -> None:
        """End a pod, and tell the server that it has gone."""
        if (pod := self._pods.pop(uid, None)) is not None:
            pod.end()
        metadata = document["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            self._client.call("DELETE", path, {"gracePeriodSeconds": 0})
        except Refused as error:
            if error.status != 404:
                raise

    def _resolve(self, pods: Sequence[Document]) -> None:
        """Let the names of services without an address of their own resolve to a pod's, in all pods."""
        names = {}
        for service in self._client.items("/api/v1/services"):
            selector = service["spec"].get("selector")
            metadata = service["metadata"]
            for pod in pods:
                if (
                    selector
                    and pod["metadata"]["namespace"] == metadata["namespace"]
                    and selector.items() <= (pod["metadata"].get("labels") or {}).items()
                    and (address := pod["status"].get("podIP"))
                ):
                    names[f"{metadata['name']}.{metadata['namespace']}.svc.cluster.local"] = address
        self._names = names
        for item in list(self._pods.values()):
            item.resolve(names)

    def address(self) -> str:
        """Return the next address that no pod has had."""
        assert self._next < FIRST + MOST, "no more pods"
        self._next += 1
        return f"{self._switch.subnet}.{self._next - 1}"

    def boot(self, document: Document, folder: Path, address: str) -> Containers:
        """Start a host for a pod; its containers are not running yet."""
        name = document["metadata"]["name"]
        login = new_login(folder, authorized_keys=[])
        options = Options(user=USER, docker0=False, own_name="address", sudo=False)
        host = make_host(folder, name, address, options, self._switch, login, key_file=None)
        host.power_on()
        host.wait_for_boot()
        return Containers(
            pod=document, host=host, log=folder, path=self._path, secrets=self.secrets(document) or {}
        )

    def secrets(self, document: Document) -> dict[str, dict[str, str]] | None:
        """Return the Secrets that a pod needs; `None`: a Secret is missing."""
        result = {}
        for name in secrets_of(document):
            path = f"/api/v1/namespaces/{document['metadata']['namespace']}/secrets/{name}"
            try:
                data = self._client.call("GET", path).get("data") or {}
            except Refused:
                return None
            result[name] = {key: base64.b64decode(value).decode() for key, value in data.items()}
        return result

    def fate(self, document: Document) -> Fate | None:
        """Return the fate of a pod's image; `None`: the image runs."""
        image = document["spec"]["containers"][0]["image"]
        return next((subject for glob, subject in self.images.items() if fnmatchcase(image, glob)), None)


class _Pod:
    """A pod on its way, by a thread of its own."""

    def __init__(self, document: Document, client: Client, folder: Path, kubelet: Kubelet) -> None:
        self._document, self._client, self._folder, self._kubelet = document, client, folder, kubelet
        self.namespace: str = document["metadata"]["namespace"]
        self.name: str = document["metadata"]["name"]
        self.containers: Containers | None = None
        self._over = threading.Event()
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._address = kubelet.address()

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End its processes; blocks until they have gone."""
        self._over.set()
        with self._lock:
            if self.containers is not None:
                self.containers.kill()
        self._thread.join()

    def resolve(self, names: dict[str, str]) -> None:
        """Let these names resolve in it."""
        with self._lock:
            if self.containers is not None and names != self._known and not self._over.is_set():
                self.containers.write_hosts(names)
                self._known = dict(names)

    def _run(self) -> None:
        try:
            if self._await(self._has_image) and self._await(self._has_secrets):
                self._tell(pod_status.waiting(self._document, "ContainerCreating"))
                with self._lock:
                    if self._over.is_set():
                        return
                    self.containers = self._kubelet.boot(self._document, self._folder, self._address)
                if self._initialize():
                    self._keep_running()
        except (Refused, urllib3.exceptions.HTTPError, RuntimeError, OSError) as error:
            if not self._over.is_set():
                self._kubelet.errors.append(f"{self.name}: {error}\n{traceback.format_exc()}")

    def _await(self, condition: Callable[[], bool]) -> bool:
        """Wait for the condition; False: the pod ended first."""
        while not self._over.is_set():
            if condition():
                return True
            self._over.wait(POLL_S)
        return False

    def _has_image(self) -> bool:
        fate = self._kubelet.fate(self._document)
        image = self._document["spec"]["containers"][0]["image"]
        if fate == "missing":
            why = f'Back-off pulling image "{image}": ErrImagePull: {image}: not found'
            self._event("Warning", "Failed", f'Failed to pull image "{image}": {image}: not found')
            self._tell(pod_status.waiting(self._document, "ImagePullBackOff", why))
        elif fate == "slow":
            self._event("Normal", "Pulling", f'Pulling image "{image}"')
            self._tell(pod_status.waiting(self._document, "ContainerCreating"))
        return fate is None

    def _has_secrets(self) -> bool:
        existing = self._kubelet.secrets(self._document) is not None
        if not existing:
            missing = ", ".join(sorted(secrets_of(self._document)))
            why = f'secret "{missing}" not found'
            self._tell(pod_status.waiting(self._document, "CreateContainerConfigError", why))
        return existing

    def _initialize(self) -> bool:
        """Run the init containers one after the other, each until it ends well."""
        for number, container in enumerate(self._document["spec"].get("initContainers") or []):
            self._tell(pod_status.initializing(self._document, self._address, number))
            if not self._await(lambda item=container: self._once(item)):  # type: ignore[misc]
                return False
        return not self._over.is_set()

    def _once(self, container: Document) -> bool:
        return self.containers.start(container).wait() == 0

    def _keep_running(self) -> None:
        """Run the containers, and restart ended ones unless the pod's policy forbids it."""
        restarts, report = 0, False
        containers = self._document["spec"]["containers"]
        processes = [self.containers.start(container) for container in containers]
        self._tell(pod_status.running(self._document, self._address, ready=False))
        while not self._over.wait(POLL_S):
            codes = [process.poll() for process in processes]
            if all(code is None for code in codes):
                ready = all(self._is_ready(container) for container in containers)
                if ready is not report:
                    self._tell(
                        pod_status.running(self._document, self._address, ready=ready, restarts=restarts)
                    )
                report = ready
                continue
            code = next(container for container in codes if container is not None)
            status, reason = (
                (code, "Error") if code >= 0 else (128 - code, "OOMKilled" if code == -9 else "Error")
            )
            if self._document["spec"].get("restartPolicy", "Always") != "Always":
                self._tell(pod_status.ended(self._document, status, reason))
                return
            # A container ends with all its processes, also processes of `exec`.
            self.containers.end_processes()
            restarts, report = restarts + 1, False
            self._tell(pod_status.crashing(self._document, self._address, status, reason, restarts))
            self._over.wait(min(restarts, LONGEST_BACK_OFF_S))
            if self._over.is_set():
                return
            processes = [
                self.containers.start(container) if process.poll() is not None else process
                for container, process in zip(containers, processes, strict=True)
            ]
            self._tell(pod_status.running(self._document, self._address, ready=False, restarts=restarts))

    def _is_ready(self, container: Document) -> bool:
        probe = (container.get("readinessProbe") or {}).get("httpGet")
        if probe is None:
            return True
        try:
            url = f"http://{self._address}:{probe['port']}{probe['path']}"
            return urllib3.request("GET", url, timeout=2, retries=False).status < 400
        except urllib3.exceptions.HTTPError:
            return False

    def _tell(self, status: Document) -> None:
        self._client.set_status(self._document, status)

    def _event(self, kind: str, reason: str, message: str) -> None:
        """Tell of something, once; not where the namespace is on its way out, and takes nothing more."""
        metadata = self._document["metadata"]
        name = f"{self.name}.{reason.lower()}"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        about = {"apiVersion": "v1", "kind": "Pod", "name": self.name, "namespace": self.namespace}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": self.namespace},
            "involvedObject": about | {"uid": metadata["uid"]},
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "kubelet"},
        }
        try:
            self._client.apply(event, manager="kubelet")
        except Refused as error:
            if error.status != 403 or "being terminated" not in str(error):
                raise
