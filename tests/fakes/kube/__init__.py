"""A Kubernetes API server with the parts that gpuctl uses; its pods are processes."""
