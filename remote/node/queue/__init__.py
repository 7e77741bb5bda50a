"""The queue of runs: its files on each node, and the processes that start its entries."""
