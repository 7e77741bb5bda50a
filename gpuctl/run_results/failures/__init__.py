"""Failures: which rank failed first, and why, from logs, tracebacks, stacks and records."""
