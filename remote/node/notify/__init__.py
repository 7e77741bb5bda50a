"""Notifications from a node: of its run and its machine, delivered also while no command watches."""
