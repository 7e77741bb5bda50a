"""Datasets, each read by a module of its own. Importing this package imports nothing heavy."""
