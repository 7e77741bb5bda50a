"""Kubernetes on Amazon's EKS: a control plane for each cluster, created and deleted with it.

Network, credentials, errors and tags come from `provision.aws`, the pods from `provision.kubernetes`.
"""
