"""The GPU driver of a machine: the decision to install one, and the installation."""
