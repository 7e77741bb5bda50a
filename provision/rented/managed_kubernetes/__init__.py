"""Kubernetes as a service, on any cloud: a control plane, two groups of nodes, pods."""
