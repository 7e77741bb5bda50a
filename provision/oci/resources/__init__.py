"""What there is of ours beside machines: how it is listed, and how it is deleted."""
