"""Documents on a run: what it is, how its ranks and nodes ended, its outputs."""
