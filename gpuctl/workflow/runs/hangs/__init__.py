"""Runs that stand still: the watch, the comparison of ranks, the sentence."""
