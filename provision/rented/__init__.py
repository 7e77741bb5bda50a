"""Rented machines, whatever the cloud: the interface that a cloud implements, and all that is decided above it."""
