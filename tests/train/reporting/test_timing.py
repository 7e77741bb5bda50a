import time

import pytest
import torch

from train.reporting.timing import WARM_UP_STEPS, StepTime, StepTimer, summarize


def take_step(timer, *, samples=8, data_s=0.0, compute_s=0.0, communication_s=None):
    timer.start()
    time.sleep(data_s)
    timer.data_ready(samples)
    time.sleep(compute_s)
    if communication_s is not None:
        timer.gradients_ready()
        time.sleep(communication_s)
    timer.backward_done()
    timer.end()


def test_step_timer_splits_a_step_into_parts_that_add_up():
    timer = StepTimer(torch.device("cpu"))
    began = time.perf_counter()
    take_step(timer, data_s=0.01, compute_s=0.02, communication_s=0.03)
    elapsed_ms = (time.perf_counter() - began) * 1000
    (step,) = timer.steps()
    assert step.data_ms >= 10
    assert step.compute_ms >= 20
    assert step.communication_ms >= 30
    assert step.step_ms == pytest.approx(step.data_ms + step.compute_ms + step.communication_ms)
    assert step.step_ms <= elapsed_ms


def test_step_timer_without_exchange_has_no_communication():
    timer = StepTimer(torch.device("cpu"))
    take_step(timer, compute_s=0.001)
    take_step(timer, communication_s=0.001)
    take_step(timer, compute_s=0.001)
    first, second, third = timer.steps()
    assert first.communication_ms == third.communication_ms == 0
    assert second.communication_ms >= 1


def test_step_timer_steps_are_readable_while_running():
    timer = StepTimer(torch.device("cpu"))
    take_step(timer)
    first = timer.steps()[0]
    take_step(timer)
    assert len(timer.steps()) == 2
    assert timer.steps()[0] == first


@pytest.mark.parametrize("averages", [True, False])
def test_marks_within_a_graph_are_no_times(averages):
    """The marks are made when the graph is recorded, and not when it is replayed."""
    timer = StepTimer(torch.device("cpu"))
    take_step(timer, communication_s=0.001 if averages else None)
    for recorded in (True, False):
        timer.start()
        timer.data_ready(8)
        timer.in_graph(recorded=recorded)
        if averages:
            timer.gradients_ready()
        time.sleep(0.002)
        timer.backward_done()
        timer.end()
    plain, first, later = timer.steps()
    assert [step.in_graph for step in (plain, first, later)] == [False, True, True]
    assert [step.is_first for step in (plain, first, later)] == [True, True, False]
    assert later.communication_ms == (None if averages else 0)
    assert 2 <= later.compute_ms <= later.step_ms


def step(ms, *, data=0.1, communication=0.3, samples=10, is_first=False, apart=None, in_graph=False):
    return StepTime(
        data_ms=data * ms,
        compute_ms=(1 - data - (communication or 0)) * ms,
        communication_ms=None if communication is None else communication * ms,
        samples=samples,
        apart_ms=apart or ms,
        is_first=is_first,
        in_graph=in_graph,
    )


def test_summary_of_graphs_is_of_no_other_steps():
    """Steps before the recording take longer, and their communication is no share of a graph."""
    warm_up = [step(900, is_first=True), *[step(50)] * (2 * WARM_UP_STEPS)]
    graphs = [step(8, apart=10, communication=None, in_graph=True), step(5, samples=3)] * 3
    timing = summarize([*warm_up, *graphs, step(20)])
    assert (timing.p50_ms, timing.samples_per_s, timing.graphs) == pytest.approx((8, 1000, True))
    shares = (timing.data_share, timing.compute_share, timing.communication_share)
    assert shares == (pytest.approx(0.1), None, None)
    alone = summarize([*warm_up, step(8, communication=0, in_graph=True)])
    assert (alone.compute_share, alone.communication_share) == pytest.approx((0.9, 0))
    assert summarize([*warm_up, step(8, in_graph=True, is_first=True)]).graphs is False


def test_summarize_leaves_out_the_warm_up():
    warm_up = [step(1000, communication=0.9)] * WARM_UP_STEPS
    timing = summarize([*warm_up, *(step(ms) for ms in range(10, 111))])
    assert (timing.p50_ms, timing.p95_ms) == pytest.approx((60, 105))
    assert timing.data_share == pytest.approx(0.1)
    assert timing.communication_share == pytest.approx(0.3)
    assert timing.data_share + timing.compute_share + timing.communication_share == pytest.approx(1)


@pytest.mark.parametrize(("steps", "counted"), [(1, 1), (2, 1), (3, 2), (9, 5), (10, 5), (100, 95)])
def test_summarize_works_for_a_short_run(steps, counted):
    slow, quick = 1000, 10
    timing = summarize([step(slow)] * (steps - counted) + [step(quick)] * counted)
    assert timing.p95_ms == pytest.approx(quick)


def test_speed_is_that_of_the_usual_batch_without_first_steps():
    compiling = [step(9000, is_first=True), step(5000, samples=3, is_first=True)]
    timing = summarize([*compiling, *[step(8, apart=10), step(8, apart=10), step(1, samples=3)] * 20])
    assert timing.samples_per_s == pytest.approx(10 / 0.010)
    assert timing.p95_ms <= 8


@pytest.mark.parametrize("firsts", [0, 1, 2])
def test_nothing_is_known_where_every_step_was_a_first_one(firsts):
    assert summarize([step(100, samples=samples, is_first=True) for samples in range(firsts)]) is None


def test_step_timer_knows_the_first_step_of_each_batch_size():
    timer = StepTimer(torch.device("cpu"))
    for samples in (8, 8, 5, 8, 5, 16):
        take_step(timer, samples=samples)
    assert [(step.samples, step.is_first) for step in timer.steps()] == [
        (8, True),
        (8, False),
        (5, True),
        (8, False),
        (5, False),
        (16, True),
    ]
    assert timer.steps(since=4) == timer.steps()[4:]


def test_time_between_two_steps_counts_unless_something_else_was_between():
    timer = StepTimer(torch.device("cpu"))
    take_step(timer)
    time.sleep(0.02)
    take_step(timer)
    time.sleep(0.05)
    timer.interrupt()
    take_step(timer)
    first, second, third = timer.steps()
    assert first.apart_ms == pytest.approx(first.step_ms)
    assert second.apart_ms >= 20
    assert third.apart_ms == pytest.approx(third.step_ms)
