"""Files on a node: written, sent, synced, removed."""
