"""Shapes of machines, their prices, and the limit on a cluster's cost."""
