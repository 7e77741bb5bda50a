"""This process among the ranks: its environment, its device, its process group."""
