"""The memory of a job by arithmetic, compared with what torch stores."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from train.advice.memory import USABLE, Batch, Memory, fits, fullest_rank
from train.advice.network import joined, text_network
from train.advice.passes import MovedBytes
from train.loss import mean_loss
from train.models.gpt import build_gpt
from train.models.gpt_sizes import GPT_SIZES
from train.options import Options
from train.reporting.device_use import stored_bytes
from train.strategies.degrees import Degrees

SIZE = replace(GPT_SIZES["gpt-10m"], layers=2)
"""Blocks are alike."""
VOCABULARY, LENGTH, SAMPLES = 257, 16, 2


def network(precision="fp32", *, by_blocks=False):
    return text_network(SIZE, vocabulary=VOCABULARY, length=LENGTH, precision=precision, by_blocks=by_blocks)


def memory(sizes, *, batch=None, **options):
    job = Options(model="gpt-10m", dataset="text", **options)
    return fullest_rank(network(job.precision), job, sizes, batch or Batch(micro_batch=SAMPLES, number=1))


@pytest.fixture(scope="module")
def model():
    return build_gpt(VOCABULARY, SIZE, 0)


@pytest.mark.parametrize("words", [{}, {"precision": "bf16"}, {"precision": "bf16", "compile": True}])
def test_arithmetic_moves_what_torchs_operations_do(model, words):
    options = Options(model="gpt-10m", dataset="text", **words)
    counted = []
    for samples in (2, 4):
        tokens = torch.zeros(samples, LENGTH, dtype=torch.int64)
        with MovedBytes(options) as moved:
            with torch.autocast("cpu", torch.bfloat16, enabled="precision" in words):
                loss = mean_loss(model(tokens), tokens)
            loss.backward()
        model.zero_grad()
        counted.append(moved)
    fewer, more = counted
    expected = joined(
        text_network(
            SIZE, vocabulary=VOCABULARY, length=LENGTH, precision=options.precision, by_blocks=True,
            compiled=options.compile,
        ).layers
    )  # fmt: skip
    each = (more.bytes - fewer.bytes) / 2
    assert expected.moved_bytes == pytest.approx(each, rel=0.05)
    assert expected.moved_once_bytes == pytest.approx(fewer.bytes - 2 * each, rel=0.15)
    assert expected.launches == pytest.approx(more.launches, rel=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_arithmetic_of_one_process_agrees_with_torchs_storages(model, precision):
    saved, ours = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ours:
            saved[storage.data_ptr()] = tensor  # held: another tensor would get its place
        return tensor

    tokens = torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)
    autocast = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast:
        logits = model(tokens)
        loss = mean_loss(logits, tokens)
    optimizer = torch.optim.Adam(model.parameters())
    loss.backward()
    optimizer.step()

    estimate = memory(Degrees(), precision=precision)
    parameters = list(model.parameters())
    assert estimate.weights == stored_bytes(parameters)
    assert estimate.gradients == stored_bytes(p.grad for p in parameters)
    states = [v for state in optimizer.state.values() for v in state.values() if v.numel() > 1]
    assert estimate.optimizer == stored_bytes(states)
    # The loss keeps the logarithms of the outputs; outputs and gradient are not among the saved tensors.
    retained = estimate.activations + SAMPLES * LENGTH * VOCABULARY * 4
    assert stored_bytes(saved.values()) == pytest.approx(retained, rel=0.03)
    optimizer.zero_grad()


def test_recomputed_blocks_keep_their_inputs_and_one_block_is_whole_at_a_time():
    many = Batch(micro_batch=SAMPLES, number=1)
    plain = memory(Degrees(), batch=many).activations
    block = joined(network().layers[1:2])
    inputs = LENGTH * SIZE.width * 4
    again = memory(Degrees(), batch=many, activation_checkpointing=True).activations
    assert plain - again == SAMPLES * ((SIZE.layers - 1) * block.saved_bytes - SIZE.layers * inputs)


def test_fsdp_keeps_a_quarter_on_each_of_four_ranks_and_gathers_a_part():
    alone, four = memory(Degrees()), memory(Degrees(shard=4), strategy="fsdp")
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(four, part) == getattr(alone, part) / 4
    embedding = (VOCABULARY + SIZE.context) * SIZE.width
    assert four.gathered == 4 * 2 * (embedding + 2 * 4 * SIZE.width**2)
    assert four.activations == alone.activations


def test_fsdp_keeps_whole_gradients_where_micro_batches_are_accumulated():
    several = memory(Degrees(shard=4), strategy="fsdp", batch=Batch(micro_batch=1, number=2))
    assert several.gradients == memory(Degrees()).gradients


def test_offloaded_weights_gradients_and_states_take_none_of_the_gpus_memory():
    plain = memory(Degrees(shard=4), strategy="fsdp")
    host = memory(Degrees(shard=4), strategy="fsdp", cpu_offload=True)
    assert (host.weights, host.gradients, host.optimizer) == (0, 0, 0)
    assert (host.gathered, host.activations) == (plain.gathered, plain.activations)
    several = Batch(micro_batch=1, number=2)
    added_up = memory(Degrees(shard=4), strategy="fsdp", cpu_offload=True, batch=several)
    assert added_up.gradients == memory(Degrees()).gradients, "they are added up on the GPU"


def test_prefetched_parts_are_whole_beside_the_one_that_computes():
    sizes = Degrees(shard=4)
    single, three = (memory(sizes, strategy="fsdp", prefetch=number) for number in (1, 3))
    assert single.gathered == memory(sizes, strategy="fsdp").gathered
    assert three.gathered - single.gathered == 4 * 2 * (4 * SIZE.width**2)


def test_sharded_weights_are_gathered_in_bf16_and_need_no_copies():
    whole, half = (memory(Degrees(shard=4), strategy="fsdp", precision=kind) for kind in ("fp32", "bf16"))
    assert (half.weights, half.gradients) == (whole.weights, whole.gradients)
    assert half.gathered == 0.75 * whole.gathered, "weights in half precision, gradients added up in whole"
    copies = 2 * SIZE.layers * SIZE.weights_per_layer
    assert half.activations < memory(Degrees(), precision="bf16").activations - copies


def test_zero1_divides_the_optimizers_state_alone():
    solo, four = memory(Degrees()), memory(Degrees(replicate=4), strategy="zero1")
    assert (four.weights, four.gradients, four.optimizer) == (
        solo.weights,
        solo.gradients,
        solo.optimizer / 4,
    )


def test_tensor_parallel_divides_blocks_and_not_the_embedding():
    alone, two = memory(Degrees()), memory(Degrees(tp=2), strategy="tp")
    block = joined(network().layers[1:2])
    assert alone.weights - two.weights == pytest.approx(4 * SIZE.layers * block.split_weights / 2)
    assert two.activations < alone.activations
    assert two.outputs == alone.outputs


def test_first_stage_of_a_pipeline_keeps_as_many_micro_batches_as_there_are_stages():
    whole = memory(Degrees(), batch=Batch(micro_batch=1, number=8))
    two = memory(Degrees(pp=2), strategy="pp", batch=Batch(micro_batch=1, number=8))
    copied = 2 * network().layers[-1].copied_weights  # bytes, of the head, on the last stage
    assert two.activations == pytest.approx(whole.activations - copied, rel=0.1), "half of the layers, twice"
    assert two.weights < whole.weights


def test_memory_fits_up_to_a_boundary():
    planted = Memory(weights=10e9, gradients=0, optimizer=0, gathered=0, activations=0, outputs=0)
    boundary_gb = planted.total / 1e9 / USABLE
    assert fits(planted, boundary_gb * 1.0001)
    assert not fits(planted, boundary_gb * 0.9999)
