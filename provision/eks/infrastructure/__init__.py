"""The parts of a Kubernetes cluster on EKS, each found by its name and tags, or created."""
