"""Connections to pods, through the API server of their Kubernetes cluster."""
