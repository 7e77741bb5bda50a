"""Names and request bodies of OKE's resources, plain JSON by the API's own names. Pure: the same in a dry run."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from provision.kubernetes.ray_cluster import GPU, GROUP_LABEL
from provision.oci.requests import cluster_tags, compartment_of
from provision.oke.description import CPU_MEMORY_GB, CPU_OCPUS, CPU_SHAPE
from provision.records import CloudCluster, Offer

Json = dict[str, Any]

PROVIDER = "oke"
CPU_POOL = "cpu"
API_PORT = 6443
CPU_DISK_GB = 100
GPU_ADDON = "NvidiaGpuPlugin"
FLANNEL = {"cniType": "FLANNEL_OVERLAY"}
INIT = """#!/bin/bash
curl --fail -H "Authorization: Bearer Oracle" -L0 http://169.254.169.254/opc/v2/instance/metadata/oke_init_script \\
  | base64 --decode > /var/run/oke-init.sh
/usr/libexec/oci-growfs -y
bash /var/run/oke-init.sh
"""
"""First script of OKE's nodes.

Oracle Linux leaves its root file system at 47 GB, however large the boot volume is; the kubelet measures it once.
"""
COMPUTE_CLUSTER_POLICY = (
    "node pools may need this policy statement to use a compute cluster: `Allow any-user to "
    "{{COMPUTE_CLUSTER_LAUNCH_INSTANCE}} in compartment id {compartment} where request.principal.type = 'nodepool'`"
)
PREEMPTIBLE = "oci.oraclecloud.com/oke-is-preemptible"
"""A taint of preemptible nodes."""


def gpu_pool_name(zone: str) -> str:
    """Return the name of the GPU node pool in an availability domain, `Uocm:EU-FRANKFURT-1-AD-1`."""
    return f"gpu-{zone.rpartition(':')[2].lower()}"


def control_plane(cluster: CloudCluster, version: str, ids: Mapping[str, str]) -> Json:
    """Return the body of CreateCluster: an enhanced one, whose API server's public address the group guards.

    Load balancers and volumes of its controllers get our tags, too.
    """
    of = cluster_tags(cluster)
    return {
        "name": cluster.kubernetes_name,
        "compartmentId": compartment_of(cluster),
        "vcnId": ids["vcn"],
        "kubernetesVersion": version,
        "type": "ENHANCED_CLUSTER",
        "endpointConfig": {
            "subnetId": ids["subnet"],
            "nsgIds": [ids["nsg"]],
            "isPublicIpEnabled": True,
        },
        "clusterPodNetworkOptions": [FLANNEL],
        "options": {
            "serviceLbSubnetIds": [ids["subnet"]],
            "serviceLbConfig": {"freeformTags": of},
            "persistentVolumeConfig": {"freeformTags": of},
        },
        "freeformTags": of,
    }


def cpu_pool(cluster: CloudCluster, facts: Mapping[str, Any], zone: str, ids: Mapping[str, str]) -> Json:
    """Return the body of CreateNodePool for the machine without GPUs."""
    body = _pool(cluster, CPU_POOL, "cpu", facts, ids)
    return body | {
        "nodeShape": CPU_SHAPE,
        "nodeShapeConfig": {"ocpus": float(CPU_OCPUS), "memoryInGBs": float(CPU_MEMORY_GB)},
        "nodeSourceDetails": _source(facts["cpu_image"], CPU_DISK_GB),
        "nodeConfigDetails": _nodes(cluster, 1, zone, ids),
    }


def gpu_pool(cluster: CloudCluster, offer: Offer, count: int, zone: str, ids: Mapping[str, str]) -> Json:
    """Return the body of CreateNodePool. OKE taints nodes with GPUs itself: `nvidia.com/gpu`, NoSchedule."""
    nodes = _nodes(cluster, count, zone, ids)
    if cluster.spot:
        action = {"type": "TERMINATE", "isPreserveBootVolume": False}
        nodes["placementConfigs"][0]["preemptibleNodeConfig"] = {"preemptionAction": action}
    if "compute_cluster" in ids:
        nodes["computeClusterId"] = ids["compute_cluster"]
    body = _pool(cluster, gpu_pool_name(zone), "gpu", offer.facts, ids)
    return body | {
        "nodeShape": cluster.shape,
        "nodeSourceDetails": _source(offer.image_id, offer.disk_gb),
        "nodeConfigDetails": nodes,
    }


def size(count: int) -> Json:
    """Return the body of UpdateNodePool for a number of machines."""
    return {"nodeConfigDetails": {"size": count}}


def addon(cluster: CloudCluster) -> Json:
    """Return the body of InstallAddon: NVIDIA's device plug-in, in place of OKE's own."""
    body: Json = {"addonName": GPU_ADDON, "isOverrideExisting": True}
    if cluster.spot:
        tolerated = [{"key": key, "operator": "Exists"} for key in (GPU, PREEMPTIBLE)]
        body["configurations"] = [{"key": "tolerations", "value": json.dumps(tolerated)}]
    return body


def _pool(
    cluster: CloudCluster,
    name: str,
    group: str,
    facts: Mapping[str, Any],
    ids: Mapping[str, str],
) -> Json:
    return {
        "compartmentId": compartment_of(cluster),
        "clusterId": ids["cluster"],
        "name": name,
        "kubernetesVersion": facts["version"],
        "nodeMetadata": {"user_data": base64.b64encode(INIT.encode()).decode()},
        "initialNodeLabels": [{"key": GROUP_LABEL, "value": group}],
        "nodeEvictionNodePoolSettings": {
            "evictionGraceDuration": "PT0M",
            "isForceDeleteAfterGraceDuration": True,
        },
        "freeformTags": cluster_tags(cluster),
    }


def _source(image: str, disk_gb: int) -> Json:
    return {"sourceType": "IMAGE", "imageId": image, "bootVolumeSizeInGBs": disk_gb}


def _nodes(cluster: CloudCluster, count: int, zone: str, ids: Mapping[str, str]) -> Json:
    return {
        "size": count,
        "placementConfigs": [{"availabilityDomain": zone, "subnetId": ids["subnet"]}],
        "nsgIds": [ids["nsg"]],
        "nodePoolPodNetworkOptionDetails": FLANNEL,
        "freeformTags": cluster_tags(cluster),
    }
