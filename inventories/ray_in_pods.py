"""Ray in pods: one version, of the pods' default image and of the environments that are built in them."""

RAY_VERSION = "2.60.0"
"""Ray takes part in a cluster of its own version alone."""
