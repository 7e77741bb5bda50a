"""Everything else on OCI that has gpuctl's tags: how it is listed and deleted."""
