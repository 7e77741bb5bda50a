"""Spec → plan → machines, and back to nothing: `local`, `hosts`, clouds, by name (`provision.provider_registry`).

This package may use cloud SDKs; it knows nothing of SSH clients or torch.
"""
