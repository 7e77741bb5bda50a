"""Everything else on AWS that has gpuctl's tags: how it is listed and deleted."""
