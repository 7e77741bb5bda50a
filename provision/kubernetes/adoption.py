"""A cluster of pods that another computer made: its files, rebuilt from its namespace."""

import base64
import json
from dataclasses import replace

from inventories import codec
from inventories.disk.files import write_atomic
from inventories.disk.store import ClusterFolder
from inventories.errors import CorruptFile
from provision.errors import RefusedPlan
from provision.kubernetes import ray_cluster
from provision.kubernetes.api import NAMESPACE, SECRET, Api
from provision.kubernetes.record import KubernetesCluster, save


def clusters_in(api: Api) -> list[KubernetesCluster]:
    """Return the clusters whose namespaces have a record of gpuctl's, as their makers had them."""
    namespaces = api.list(NAMESPACE, labelSelector=ray_cluster.CLUSTER_ID)
    clusters = []
    for namespace in namespaces:
        metadata = namespace["metadata"]
        try:
            data = json.loads((metadata.get("annotations") or {}).get(ray_cluster.RECORD) or "null")
            cluster = codec.from_json(KubernetesCluster, data, f"the namespace {metadata['name']}")
        except (ValueError, CorruptFile):
            continue
        # A copy of a record in another namespace differs from the labels there.
        if cluster.namespace == metadata["name"] and ray_cluster.is_of(namespace, cluster):
            clusters.append(cluster)
    return clusters


def rebuild(api: Api, folder: ClusterFolder, cluster_id: str) -> KubernetesCluster:
    """Write the record and Ray's token of a cluster. Returns the record.

    Raises RefusedPlan if the namespace is missing.
    """
    matching = [
        cluster for cluster in clusters_in(api) if (cluster.name, cluster.id) == (folder.name, cluster_id)
    ]
    if not matching:
        raise RefusedPlan(
            f"The cluster of context {api.context} has no namespace of {folder.name} with the label "
            f"{ray_cluster.CLUSTER_ID}={cluster_id} and gpuctl's record. Nothing was changed."
        )
    cluster = replace(matching[0], context=api.context, server=api.server)
    secret = api.get(SECRET, ray_cluster.SECRET_NAME, cluster.namespace)
    save(folder, cluster)
    if secret is not None:
        write_atomic(folder.ray_token_path, base64.b64decode(secret["data"]["auth_token"]))
    return cluster
