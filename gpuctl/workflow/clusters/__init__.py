"""Clusters: from nothing and back, their state, and what is left of them."""
