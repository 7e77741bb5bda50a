"""Files on nodes: code sync, pull, checkpoints, what is left over."""
