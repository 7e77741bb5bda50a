"""The folder that is put in front of a rank's PYTHONPATH. Nothing but `sitecustomize` may be in it."""
