"""The node's GPUs and their driver."""
