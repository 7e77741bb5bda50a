"""Python environments on a node, built by uv."""
