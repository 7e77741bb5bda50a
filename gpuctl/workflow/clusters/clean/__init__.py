"""`gpuctl clean`: choose what can be deleted on nodes and this computer, and delete it."""
