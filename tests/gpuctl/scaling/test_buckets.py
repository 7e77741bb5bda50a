"""The all-reduces of a step, as DistributedDataParallel makes them at most."""

import pytest

from gpuctl.scaling.gradient_buckets import MIB, Buckets, buckets_of
from gpuctl.scaling.measurements import Job

RESNET18 = 11_181_642


@pytest.mark.parametrize(
    ("parameters", "sent", "bucket_mb", "count", "largest"),
    [
        (RESNET18, 4 * RESNET18, None, 3, 25 * MIB),
        (RESNET18, 4 * RESNET18, 25.0, 2, 25 * MIB),  # without the small one before
        (RESNET18, 4 * RESNET18, 100.0, 1, 4 * RESNET18),
        (RESNET18, 2 * RESNET18, None, 3, 25 * MIB // 2),  # halved when they are sent
        (2**18, MIB, None, 1, MIB),
        (2**18 + 1, MIB + 4, None, 2, MIB + 4),
        (1000, 4000, None, 1, 4000),
        (1000, 4000, 0.001, 4, 1048),
        (None, 4 * RESNET18, None, 3, 25 * MIB),
    ],
)
def test_buckets_of_computes_count_and_sizes(
    parameters: int | None, sent: int, bucket_mb: float | None, count: int, largest: int
) -> None:
    result = buckets_of(Job(parameters=parameters, gradient_bytes=sent), bucket_mb)
    assert result == Buckets(count=count, sent_bytes=sent, largest_bytes=largest)


@pytest.mark.parametrize(
    ("parameters", "bucket_mb", "made"),
    [
        (RESNET18, None, 3),
        (RESNET18, 25.0, 2),
        (RESNET18, 5.0, 6),
        (40 * 490_700, None, 4),
        (40 * 490_700, 5.0, 14),
    ],
)
def test_buckets_of_counts_at_least_as_many_as_torch(
    parameters: int, bucket_mb: float | None, made: int
) -> None:
    """`made`: counted by a communication hook of torch 2.13; of ResNet-18, and of 40 layers of 700 times 700."""
    result = buckets_of(Job(parameters=parameters, gradient_bytes=4 * parameters), bucket_mb)
    assert result.count >= made


def test_buckets_of_is_none_without_gradient_bytes() -> None:
    assert buckets_of(Job(parameters=RESNET18), None) is None
