"""Spec → plan → machines, and back to nothing, by the providers of `provision.registry`: `local`, `hosts`, and clouds.

This package may use cloud SDKs; it knows nothing of SSH clients or torch.
"""
