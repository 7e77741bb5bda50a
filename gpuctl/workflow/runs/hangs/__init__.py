"""Runs that hang: the watch, the comparison of all ranks, the sentence that names the cause."""
