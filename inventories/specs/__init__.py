"""Spec files and gpuctl.yaml: how they are read and checked, and their defaults."""
