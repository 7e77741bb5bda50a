"""Records of a run: the launch, how ranks and nodes ended, results, outputs."""
