"""Clusters: `up`, `down`, `status`, `reap`, `doctor`, and plans for them."""
