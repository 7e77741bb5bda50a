"""Datasets, one module for each. Importing this package imports nothing heavy."""
