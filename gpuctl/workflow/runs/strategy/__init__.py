"""The built-in job's strategy: whether it fits, which one to take, how the batch is divided."""
