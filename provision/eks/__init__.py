"""Kubernetes clusters of Amazon's EKS, made for one cluster of gpuctl each, and removed with it.

Network, credentials, errors and tags are those of `provision.aws`; what is in it is `provision.kubernetes`'s.
"""
