"""A folder on the PYTHONPATH of local hosts. It must contain `sitecustomize` only."""
