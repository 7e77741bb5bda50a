"""Spec → plan → machines, and back to nothing. One module a provider, behind `provision.provider.Provider`.

This package may use cloud SDKs; it knows nothing of SSH clients or torch.
"""
