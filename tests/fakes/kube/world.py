"""Simulate a cluster's controllers on the fast fake: each turn reacts at once to new requests.

The scheduler, a kubelet without processes, KubeRay's operator if its deployment is available, deployments, and the
controllers that remove the objects of a deleted namespace or owner.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count
from typing import Literal

from provision.kubernetes import kuberay as release
from tests.fakes.kube import kuberay, operator, pod_status
from tests.fakes.kube.scheduler import place
from tests.fakes.kube.store import WHEN, Document, Resource, Store

Fate = Literal["missing", "slow", "crashing"]
MOST_TURNS = 50


@dataclass(kw_only=True)
class World:
    """A cluster; tests change its fields, and the caller holds a lock."""

    store: Store = field(default_factory=Store)
    images: dict[str, Fate] = field(default_factory=dict)
    """Globs of images that do not simply run."""
    short_names: bool = True
    """Nodes accept an image name without its registry; nodes with CRI-O do not."""
    hold_namespaces: bool = False
    """Namespaces that are deleted stay, Terminating."""
    hold_pods: bool = False
    """Deleted pods stay, as on a node that has failed."""
    fixed: set[str] = field(default_factory=set)
    """Pods that nothing happens to: uids."""
    addresses: dict[str, str] = field(default_factory=dict)
    """By node: the address that a pod there has, where that is another machine's. Only one pod can have it."""
    _addresses: Iterator[int] = field(default_factory=lambda: count(2))

    def add_node(
        self,
        name: str,
        *,
        gpus: int = 0,
        efa: int = 0,
        cpus: int = 64,
        memory: str = "256Gi",
        labels: dict[str, str] | None = None,
        taints: Sequence[Document] = (),
        images: Sequence[str] = (),
    ) -> None:
        """Let a node join."""
        amounts = {"cpu": str(cpus), "memory": memory, "pods": "110"}
        amounts |= {"nvidia.com/gpu": str(gpus)} if gpus else {}
        amounts |= {"vpc.amazonaws.com/efa": str(efa)} if efa else {}
        named = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": named | (labels or {})},
            "spec": {"taints": list(taints)} if taints else {},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                "images": [{"names": [image], "sizeBytes": 1} for image in images],
            },
        }
        self.add(node)

    def add(self, document: Document) -> Document:
        """Put an object there, unchecked, as if it had always been."""
        resource = self._resource(document)
        namespace = document["metadata"].get("namespace") if resource.namespaced else None
        return self.store.create(resource, namespace, document, check=False)

    def install_kuberay(self) -> None:
        """Install the operator, of the version that gpuctl installs."""
        for document in release.manifests():
            self.add(document)
        self.settle()

    def settle(self) -> None:
        """Run the controllers until nothing changes."""
        for _ in range(MOST_TURNS):
            before = self.store.writes
            self._turn()
            if self.store.writes == before:
                return
        raise AssertionError(f"the cluster has not come to rest in {MOST_TURNS} turns")

    def _turn(self) -> None:
        store = self.store
        self._collect()
        for deployment in store.listed("deployments"):
            self._deploy(deployment)
        if self._operator_runs():
            for cluster in store.listed("rayclusters"):
                self._operate(cluster)
        for pod in store.listed("pods"):
            if pod["metadata"]["uid"] not in self.fixed and "deletionTimestamp" not in pod["metadata"]:
                self._schedule(pod)
                self._run(pod)

    def _resource(self, document: Document) -> Resource:
        expected = (document["apiVersion"], document["kind"])
        return next(
            resource
            for resource in self.store.resources()
            if (resource.api_version, resource.kind) == expected
        )

    def _collect(self) -> None:
        """Remove deleted objects without finalizers, objects that lost their owner, and objects of an ending
        namespace.
        """
        store = self.store
        ending = {
            item["metadata"]["name"]
            for item in store.listed("namespaces")
            if "deletionTimestamp" in item["metadata"]
        }
        uids = {item["metadata"]["uid"] for item in store.objects.values()}
        for (plural, namespace, name), item in list(store.objects.items()):
            owners = item["metadata"].get("ownerReferences") or []
            if namespace in ending or (owners and all(owner["uid"] not in uids for owner in owners)):
                store.delete(plural, namespace, name)
        for key, item in list(store.objects.items()):
            metadata = item["metadata"]
            if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
                continue
            held = {"namespaces": self.hold_namespaces, "pods": self.hold_pods}.get(key[0], False)
            full = key[0] == "namespaces" and any(where == key[2] for _, where, _ in store.objects)
            if not held and not full:
                store.forget(key)

    def _deploy(self, deployment: Document) -> None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        uid = metadata["uid"]
        local = [
            item
            for item in self.store.listed("pods", metadata["namespace"])
            if (item["metadata"].get("ownerReferences") or [{}])[0].get("uid") == uid
        ]
        expected = spec.get("replicas", 1)
        for _ in range(expected - len(local)):
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": metadata["name"], "uid": uid}
            made = copy.deepcopy(spec["template"]) | {"apiVersion": "v1", "kind": "Pod"}
            made["metadata"] |= {
                "generateName": f"{metadata['name']}-5d9f7c6b4-",
                "ownerReferences": [owner | {"controller": True}],
            }
            self.store.create(self._named("pods"), metadata["namespace"], made)
        ready = sum((item.get("status") or {}).get("phase") == "Running" for item in local)
        available = "True" if ready >= expected else "False"
        status = {
            "observedGeneration": metadata["generation"],
            "replicas": expected,
            "updatedReplicas": expected,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "conditions": [{"type": "Available", "status": available, "reason": "MinimumReplicasAvailable"}],
        }
        self._set_status(deployment, status)

    def _operator_runs(self) -> bool:
        return any(
            item["metadata"]["name"] == release.DEPLOYMENT
            and (item.get("status") or {}).get("availableReplicas", 0) > 0
            for item in self.store.listed("deployments")
        )

    def _operate(self, cluster: Document) -> None:
        namespace = cluster["metadata"]["namespace"]
        assert kuberay.auth_secret(cluster, "") is None, "not played here: a Secret of KubeRay's own"
        made = operator.turn(
            cluster, self.store.listed("pods", namespace), self.store.listed("services", namespace)
        )
        if made.refused:
            self._event(cluster, "Warning", "InvalidRayClusterSpec", made.refused)
        for item in made.create:
            plural = "pods" if item["kind"] == "Pod" else "services"
            self.store.create(self._named(plural), namespace, item)
        for item in made.delete:
            self.store.delete("pods", namespace, item["metadata"]["name"])
        if made.status is not None:
            self._set_status(cluster, made.status)

    def _schedule(self, pod: Document) -> None:
        if pod["spec"].get("nodeName"):
            return
        name, why = place(pod, self.store.listed("nodes"), self.store.listed("pods"))
        if name is None:
            self._event(pod, "Warning", "FailedScheduling", why)
            self._set_status(pod, pod_status.unschedulable(pod, why))
            return
        pod["spec"]["nodeName"] = name
        self.store.touch(pod)
        where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self._event(pod, "Normal", "Scheduled", f"Successfully assigned {where} to {name}")

    def _run(self, pod: Document) -> None:
        status = pod["status"]
        if not pod["spec"].get("nodeName") or status["phase"] in ("Failed", "Succeeded"):
            return
        image = pod["spec"]["containers"][0]["image"]
        address = status.get("podIP") or self.addresses.get(pod["spec"]["nodeName"])
        address = address or f"10.1.0.{next(self._addresses)}"
        fate = next((subject for glob, subject in self.images.items() if fnmatchcase(image, glob)), None)
        if (lacking := self._lacking_secret(pod)) is not None:
            why = f'secret "{lacking}" not found'
            self._event(pod, "Warning", "Failed", f"Error: {why}")
            status = pod_status.waiting(pod, "CreateContainerConfigError", why, address=address)
        elif status["phase"] == "Running" and fate != "crashing":
            return
        elif not self.short_names and "." not in image.partition("/")[0]:
            why = f'short name mode is enforcing, but image name "{image}" returns ambiguous list'
            self._event(pod, "Warning", "InspectFailed", why)
            status = pod_status.waiting(pod, "ImageInspectError", why, address=address)
        elif fate == "missing":
            why = f'Back-off pulling image "{image}": ErrImagePull: {image}: not found'
            self._event(pod, "Warning", "Failed", f'Failed to pull image "{image}": not found')
            status = pod_status.waiting(pod, "ImagePullBackOff", why, address=address)
        elif fate == "slow":
            self._event(pod, "Normal", "Pulling", f'Pulling image "{image}"')
            status = pod_status.waiting(pod, "ContainerCreating", address=address)
        elif fate == "crashing":
            status = pod_status.crashing(pod, address, 1, "Error", restarts=3)
        else:
            self._event(pod, "Normal", "Pulled", f'Container image "{image}" already present on machine')
            status = pod_status.running(pod, address, ready=True)
        self._set_status(pod, status)

    def _lacking_secret(self, pod: Document) -> str | None:
        existing = {
            item["metadata"]["name"] for item in self.store.listed("secrets", pod["metadata"]["namespace"])
        }
        for container in pod["spec"]["containers"]:
            for item in container.get("env") or []:
                name: str | None = (item.get("valueFrom") or {}).get("secretKeyRef", {}).get("name")
                if name is not None and name not in existing:
                    return name
        return None

    def _set_status(self, document: Document, status: Document) -> None:
        if document.get("status") != status:
            document["status"] = status
            self.store.touch(document)

    def _named(self, plural: str) -> Resource:
        return next(resource for resource in self.store.resources() if resource.plural == plural)

    def _event(self, about: Document, kind: str, reason: str, message: str) -> None:
        """Tell of something, once."""
        metadata = about["metadata"]
        for item in self.store.listed("events", metadata["namespace"]):
            if (item["involvedObject"]["uid"], item["reason"], item["message"]) == (
                metadata["uid"],
                reason,
                message,
            ):
                return
        existing = {"kind": about["kind"], "namespace": metadata["namespace"], "name": metadata["name"]}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}."},
            "involvedObject": existing | {"uid": metadata["uid"]},
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": WHEN,
            "lastTimestamp": WHEN,
        }
        namespace = self.store.objects["namespaces", None, metadata["namespace"]]
        if "deletionTimestamp" not in namespace["metadata"]:
            self.store.create(self._named("events"), metadata["namespace"], event)
