"""In how many all-reduces DistributedDataParallel averages a step's gradients, and how large they are. Pure."""

import math
from dataclasses import dataclass

from gpuctl.scaling.measurements import Job

MIB = 2**20
FIRST_BUCKET_BYTES, BUCKET_BYTES = MIB, 25 * MIB
"""Of whole gradients, where --bucket-mb does not say."""


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The all-reduces of a step."""

    count: int
    """At most: a bucket takes whole tensors until it is full."""
    sent_bytes: int
    """That a rank gives into all of them."""
    largest_bytes: int
    """Into the largest; more where a tensor is larger than a bucket."""


def buckets_of(job: Job, bucket_mb: float | None) -> Buckets | None:
    """What a job averages its gradients in; `bucket_mb`: its --bucket-mb. None where it did not tell their bytes."""
    if not job.gradient_bytes:
        return None
    # A bucket is filled with whole gradients, and compressed when it is sent.
    whole = max(4 * (job.parameters or 0), job.gradient_bytes)
    first, others = FIRST_BUCKET_BYTES, BUCKET_BYTES
    if bucket_mb is not None:
        first = others = max(1, int(bucket_mb * MIB))
    count = 1 + math.ceil(max(0, whole - first) / others)
    largest = min(whole, others)
    return Buckets(
        count=count,
        sent_bytes=job.gradient_bytes,
        largest_bytes=round(largest * job.gradient_bytes / whole),
    )
