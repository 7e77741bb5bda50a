"""Batches of training and evaluation data, and which rank takes which."""
