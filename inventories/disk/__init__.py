"""Files on this computer under `$GPUCTL_HOME`: the store, journals, locks."""
