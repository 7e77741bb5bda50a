"""Shapes, what they cost, and how much a cluster may spend."""
