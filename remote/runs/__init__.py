"""Runs under way: followed, their files brought here, their end."""
