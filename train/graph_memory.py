"""Compute the free memory that a CUDA graph needs around it. Imports nothing heavy: `gpuctl advise` uses it."""


def memory_beside(graph_bytes: float) -> float:
    """Return the bytes that have to be free in addition to the graph of a step.

    Other batches need about as much as the graph, and the allocator's blocks do not fit exactly.
    """
    return 1.25 * graph_bytes + 0.5e9
