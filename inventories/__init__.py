"""Documents and files about clusters: specs, machines, inventories, run records, and their store on disk.

This package knows nothing of clouds, SSH or torch, and does no networking.
"""
