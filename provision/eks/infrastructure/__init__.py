"""The parts of a Kubernetes cluster on EKS: found by name and tags, or created."""
