"""Batches of training and evaluation images, and which rank takes which."""
