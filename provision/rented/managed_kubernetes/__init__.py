"""Kubernetes as a service, whichever cloud's: a control plane, two groups of nodes, and pods on them."""
