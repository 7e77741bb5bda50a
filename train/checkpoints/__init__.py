"""Checkpoints, and the file of the trained model."""
