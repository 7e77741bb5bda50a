"""From nothing to a cluster and back: up, status, down, reap."""
