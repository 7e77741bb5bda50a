"""A run: its request, preparation, launch, logs, end and results."""
