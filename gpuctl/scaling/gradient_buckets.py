"""Number and size of the all-reduces with which DistributedDataParallel averages a step's gradients. Pure."""

import math
from dataclasses import dataclass

from gpuctl.scaling.measurements import Job

MIB = 2**20
FIRST_BUCKET_BYTES, BUCKET_BYTES = MIB, 25 * MIB
"""Bytes of uncompressed gradients, without --bucket-mb."""


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The all-reduces of a step."""

    count: int
    """Upper bound: a bucket takes whole tensors until it is full."""
    sent_bytes: int
    """Bytes that a rank contributes to all buckets."""
    largest_bytes: int
    """Bytes of the largest bucket; more if a tensor is larger than a bucket."""


def buckets_of(job: Job, bucket_mb: float | None) -> Buckets | None:
    """Return the buckets of a job with that --bucket-mb. `None`: the job did not report its gradients' bytes."""
    if not job.gradient_bytes:
        return None
    # A bucket is filled with whole gradients, and compressed when it is sent.
    whole = max(4 * (job.parameters or 0), job.gradient_bytes)
    first, later = FIRST_BUCKET_BYTES, BUCKET_BYTES
    if bucket_mb is not None:
        first = later = max(1, int(bucket_mb * MIB))
    count = 1 + math.ceil(max(0, whole - first) / later)
    largest = min(whole, later)
    return Buckets(
        count=count,
        sent_bytes=job.gradient_bytes,
        largest_bytes=round(largest * job.gradient_bytes / whole),
    )
