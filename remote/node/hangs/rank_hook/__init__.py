"""The first folder on a rank's PYTHONPATH. It must contain `sitecustomize` only."""
