"""This process among the ranks: environment, device, process group."""
