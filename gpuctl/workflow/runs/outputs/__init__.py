"""Files that runs leave on nodes: checkpoints, outputs, and the next run's use of them."""
