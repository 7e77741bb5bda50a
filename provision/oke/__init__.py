"""Provider `oke`: Kubernetes on Oracle's OKE with KubeRay, made and removed in a user's tenancy.

The network, credentials, limits and errors are those of `provision.oci`.
"""
