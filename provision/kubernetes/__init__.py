"""Machines that are pods: a RayCluster of KubeRay in a Kubernetes cluster."""
