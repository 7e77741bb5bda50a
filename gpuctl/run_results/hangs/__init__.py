"""Runs that hang: the comparison of all ranks, the sentence that names the cause."""
