"""Files on a node: how they are written, sent, synced and deleted."""
