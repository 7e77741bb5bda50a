"""The folder on the PYTHONPATH of local hosts. Nothing but `sitecustomize` may be in it."""
