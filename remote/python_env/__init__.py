"""Python environments on the nodes: what a project needs, built there once by uv and found again by its key."""
