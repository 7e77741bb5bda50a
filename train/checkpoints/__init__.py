"""Checkpoints, and the file with the trained model."""
