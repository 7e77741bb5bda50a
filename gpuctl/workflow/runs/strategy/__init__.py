"""The built-in job's strategy: does it fit, `--strategy auto`, how the batch is divided."""
