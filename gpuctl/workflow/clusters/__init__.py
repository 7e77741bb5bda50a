"""Clusters: creation, state, removal and leftovers."""
