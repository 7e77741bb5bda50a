"""A run's request: the script, its arguments and the environment that it needs."""
