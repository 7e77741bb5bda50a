"""The driver of a machine's GPUs: what to do about it, and doing it."""
