"""Test a step's communication and its hidden part, with simple cases calculated by hand."""

import pytest

from train.advice.communication import communication
from train.advice.machines import Machines
from train.advice.memory import Batch
from train.advice.network import Layer, Network
from train.advice.speed import ATTAINED, step_s
from train.options import Options
from train.reporting.gpu_peaks import Peaks
from train.strategies.degrees import Degrees

MB = 10**6
WITHIN, BETWEEN = 100 * MB, 10 * MB
BATCH = Batch(micro_batch=1, number=1)


def network(weights=25 * MB, *, outer=0, flops=0.0):
    """Two layers of 100 MB together; the outer weights are gathered and reduced with the whole network."""
    layer = Layer(weights=weights // 2, flops=flops / 2, passed_bytes=1.0 * MB, largest_part=weights // 4)
    return Network(layers=(layer, layer), unwrapped_weights=outer, tokens=16)


def machines(count=2, gpus=2, *, backend="nccl"):
    return Machines(
        shape="s",
        count=count,
        gpus=gpus,
        gpu="planted",
        gpu_memory_gb=80.0,
        between_gb_s=BETWEEN / 1e9,
        hourly_usd=None,
        peaks=Peaks(tflops={"fp32": 1.0}, gb_s=1e6, link_gb_s=WITHIN / 1e9),
        backend=backend,
    )


def sent(sizes, strategy="fsdp", among=None, batch=BATCH, **of_network):
    return communication(network(**of_network), Options(strategy=strategy), sizes, batch, among or machines())


def test_single_rank_sends_nothing():
    traffic = sent(Degrees(), "ddp", machines(1, 1))
    assert (traffic.shown, traffic.behind_all, traffic.buckets) == (0, 0, ())


def test_ring_of_all_ranks_is_as_fast_as_its_slowest_link():
    four = sent(Degrees(replicate=4), "ddp")
    assert sum(four.buckets) == pytest.approx(1.5 * 100 * MB / BETWEEN)
    two = sent(Degrees(replicate=2), "ddp", machines(1, 2))
    assert sum(two.buckets) == pytest.approx(100 * MB / WITHIN)


def test_gradients_are_sent_in_buckets_of_which_the_last_has_the_outer_weights():
    traffic = sent(Degrees(replicate=2), "ddp", machines(1, 2), outer=5 * MB)
    first, each = 2**20, 25 * 2**20
    rest = 80 * MB - first - 3 * each
    assert [seconds * WITHIN for seconds in traffic.buckets] == pytest.approx(
        [first, each, each, each, rest + 20 * MB]
    )


def test_backward_pass_hides_buckets_only_after_they_are_whole():
    sizes, among, options = Degrees(replicate=2), machines(1, 2), Options(strategy="ddp")
    fast, _ = step_s(network(flops=1.0), options, sizes, BATCH, among, graphs=False)
    slow, _ = step_s(network(flops=1e13), options, sizes, BATCH, among, graphs=False)
    computing = 1e13 / 1e12 / ATTAINED[0]
    assert fast == pytest.approx(100 * MB / WITHIN / 0.8, rel=0.01), "nothing is computed meanwhile"
    last = (100 * MB - 2**20) % (25 * 2**20)
    assert slow - computing == pytest.approx(last / WITHIN / 0.8, rel=0.05), "but the last bucket"


def test_shards_within_a_machine_do_not_use_the_network():
    hsdp = sent(Degrees(replicate=2, shard=2), "hsdp")
    assert hsdp.behind_all == pytest.approx(3 * 0.5 * 100 * MB / WITHIN)
    assert hsdp.behind_last == pytest.approx(100 * MB / BETWEEN), "both shards, over one network"


def test_rings_of_neighbours_that_split_layers_share_the_network():
    whole, split = (sent(Degrees(shard=2, tp=tp), "fsdp", machines(2, tp)) for tp in (1, 2))
    assert split.behind_all == pytest.approx(2 * whole.behind_all)


def test_pipeline_gathers_once_more_than_it_has_micro_batches_and_reduces_at_the_end():
    batch = Batch(micro_batch=1, number=4)
    traffic = sent(Degrees(pp=2, shard=2), batch=batch)
    stage = 0.5 * 50 * MB / WITHIN
    assert traffic.behind_all == pytest.approx((4 + 1) * stage)
    passed = 4 * MB / (BETWEEN / 2)
    assert traffic.shown == pytest.approx(stage + passed), "two ranks of a machine send at once"
    zero2 = sent(Degrees(pp=2, shard=2), "zero2", batch=batch)
    assert zero2.behind_all == pytest.approx(stage)


def test_nothing_hides_the_first_weights_and_the_last_gradients():
    traffic = sent(Degrees(shard=2), "fsdp", machines(1, 2), outer=5 * MB)
    assert traffic.ends == pytest.approx((2 * 20 + 25) * MB / 2 / WITHIN, rel=0.05)


def test_gloo_hides_nothing_of_shards_and_reduces_all_for_all_ranks():
    traffic = sent(Degrees(shard=2), "fsdp", machines(1, 2, backend="gloo"))
    assert (traffic.behind_all, traffic.ends) == (0, 0)
    assert traffic.shown == pytest.approx((2 + 2) * 0.5 * 100 * MB / WITHIN)


def test_link_that_is_not_known_has_no_answer():
    unknown = Machines(
        shape="s", count=2, gpus=1, gpu="A10", gpu_memory_gb=24.0, between_gb_s=None, hourly_usd=None
    )
    assert sent(Degrees(replicate=2), "ddp", unknown) is None
