"""The launch: all machines in one zone or none, also after a crash."""
