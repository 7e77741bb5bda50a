"""A whole cluster of the tests: `with kube_cluster(tmp_path) as cluster:`.

KubeRay's operator is played by a loop of `tests/fakes/kube/operator.py`, as its program is in an image alone.
"""

import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3.exceptions

from provision.kubernetes import kuberay
from tests.fakes.kube import kuberay as kuberay_objects
from tests.fakes.kube import operator
from tests.fakes.vms import lacking as lacking_hosts
from tests.fakes.vms.host import PATH
from tests.fakes.vms.network import bridge
from tests.kube import ray_jobs, server
from tests.kube.client import Client, Refused
from tests.kube.definitions import for_old_server
from tests.kube.kubelet import Kubelet, Node
from tests.kube.kubelet_server import kubelet_server
from tests.kube.server import Server, kube_server

Document = dict[str, Any]
POLL_S = 0.2
CLUSTERS = "/apis/ray.io/v1/rayclusters"
JOBS = "/apis/ray.io/v1/rayjobs"


def lacking() -> str | None:
    """Why there can be no cluster here; `None`: there can."""
    return lacking_hosts() or server.lacking()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster that runs."""

    server: Server
    client: Client
    kubelet: Kubelet
    operator: "Operator"

    def pods(self, namespace: str) -> list[Document]:
        """Return the pods of a namespace."""
        return self.client.items(f"/api/v1/namespaces/{namespace}/pods")


@contextmanager
def kube_cluster(folder: Path, nodes: Sequence[Node], *, with_kuberay: bool = True) -> Iterator[Cluster]:
    """Yield a cluster with these nodes, its files in `folder`, which has to be on a disk."""
    home = folder / "kube"
    with ExitStack() as stack:
        started = stack.enter_context(kube_server(home))
        client = started.client()
        if with_kuberay:
            for document in kuberay.manifests():
                if document["kind"] != "Deployment":
                    client.apply(for_old_server(document))
        scratch = folder / "hosts"
        scratch.mkdir()
        switch = stack.enter_context(bridge(scratch))
        path = f"{Path(sys.prefix) / 'bin'}:{PATH}"
        kubelet = Kubelet(client, scratch, switch, path)
        port = stack.enter_context(kubelet_server(kubelet, home))
        kubelet.join(nodes, port)
        kubelet.start()
        stack.callback(kubelet.close)
        plays = Operator(client)
        plays.start()
        stack.callback(plays.close)
        yield Cluster(server=started, client=client, kubelet=kubelet, operator=plays)


class Operator:
    """KubeRay's operator, played: one turn after the other for each RayCluster and RayJob."""

    def __init__(self, client: Client) -> None:
        self.errors: list[str] = []
        """Errors of the operator's loop: empty after a good test."""
        self._client = client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; blocks until the last turn is over."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _loop(self) -> None:
        while not self._over.wait(POLL_S):
            try:
                for item in self._client.items(CLUSTERS):
                    self._turn(item)
                for item in self._client.items(JOBS):
                    ray_jobs.turn(self._client, item)
            except Refused as error:
                # An object of this turn may be deleted by now, or its namespace may be terminating.
                if error.status not in (403, 404, 409):
                    self.errors.append(str(error))
            except (AssertionError, urllib3.exceptions.HTTPError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")

    def _turn(self, cluster: Document) -> None:
        root = f"/api/v1/namespaces/{cluster['metadata']['namespace']}"
        made = operator.turn(
            cluster, self._client.items(f"{root}/pods"), self._client.items(f"{root}/services")
        )
        if made.refused:
            self._refuse(cluster, made.refused)
            return
        if (secret := kuberay_objects.auth_secret(cluster, secrets.token_hex(16))) is not None:
            self._client.create_where_none(secret)
        for item in made.create:
            self._client.create(item)
        for item in made.delete:
            self._client.call("DELETE", f"{root}/pods/{item['metadata']['name']}")
        if made.status is not None and made.status != cluster.get("status"):
            self._client.set_status(cluster, made.status)

    def _refuse(self, cluster: Document, why: str) -> None:
        metadata = cluster["metadata"]
        about = {key: metadata[key] for key in ("name", "namespace", "uid")}
        self._client.apply(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{metadata['name']}.invalid", "namespace": metadata["namespace"]},
                "involvedObject": about | {"kind": "RayCluster", "apiVersion": cluster["apiVersion"]},
                "type": "Warning",
                "reason": "InvalidRayClusterSpec",
                "message": why,
            },
            manager="kuberay",
        )
