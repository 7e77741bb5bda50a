"""The memory that has to be free beside a CUDA graph. Imports nothing heavy: `gpuctl advise` counts with it, too."""


def memory_beside(graph_bytes: float) -> float:
    """Return the bytes that have to be free beside the graph of a step.

    Other batches need about as much as the graph, and the allocator's blocks do not fit exactly.
    """
    return 1.25 * graph_bytes + 0.5e9
