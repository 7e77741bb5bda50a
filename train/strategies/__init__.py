"""Strategies, which divide a model among the ranks: one module for each, the table in `strategy.py`."""
