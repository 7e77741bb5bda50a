"""Spec → plan → machines, and back to nothing: `local`, `hosts` and clouds, by the names of `provision.registry`.

This package may use cloud SDKs; it knows nothing of SSH clients or torch.
"""
