"""Checks that a node makes of itself: facts, free or busy, ports, cloud-init."""
