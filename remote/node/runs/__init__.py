"""A run on a node: its supervisor, the wrapper around each rank, its files as they grow."""
