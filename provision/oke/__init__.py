"""Kubernetes on Oracle's OKE, with KubeRay: created and deleted in a user's tenancy.

The network, credentials, limits and errors are those of `provision.oci`.
"""
