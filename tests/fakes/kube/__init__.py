"""A Kubernetes API server as far as gpuctl knows it, whose pods are processes of this machine."""
