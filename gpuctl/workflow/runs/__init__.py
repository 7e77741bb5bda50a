"""Runs: a request, its preparation, launch, logs, end and results."""
