"""Compare advice with measured steps, on simulated machines; `bench/advise.py` has all cases."""

import pytest

from bench.advise import CASES, compare
from bench.parts.planted import lacking


@pytest.mark.slow
@pytest.mark.skipif(lacking() is not None, reason=f"needs {lacking()}")
@pytest.mark.parametrize("name", ["ddp, shown", "hsdp"])
def test_measured_step_is_in_the_range_that_is_advised(name):
    (low, high), measured = compare(CASES[name])
    assert low <= measured <= high
