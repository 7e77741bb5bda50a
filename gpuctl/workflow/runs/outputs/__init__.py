"""Files that runs leave on nodes: checkpoints, outputs, and how a later run uses them."""
