"""The queue of runs: its files on each node, and the process that starts one entry after the other."""
