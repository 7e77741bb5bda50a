"""Python environments on the nodes: built once by uv, found by a key of their packages."""
