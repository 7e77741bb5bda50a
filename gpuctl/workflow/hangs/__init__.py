"""Runs that hang: what is asked of their nodes, and what is done where one is found."""
