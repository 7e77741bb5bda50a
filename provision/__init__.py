"""Spec → plan → machines, and back to nothing: `local`, `hosts`, clouds, by name (`provision.clouds`).

This package may use cloud SDKs; it knows nothing of SSH clients or torch.
"""
