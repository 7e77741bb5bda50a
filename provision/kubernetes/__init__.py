"""Pods as machines: a Kubernetes cluster that is there already, with KubeRay."""
