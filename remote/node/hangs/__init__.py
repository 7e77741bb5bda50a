"""Ranks that hang: the watch that notices them, and the stacks and collectives of each rank."""
