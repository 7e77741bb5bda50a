"""Inventory → ready nodes → a run: connections, facts, code sync, launchers, detached runs, logs, results.

This package may use Fabric and paramiko; it knows nothing of cloud SDKs or torch.
"""
