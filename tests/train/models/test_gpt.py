"""Test the text model: its shape, its attention, and its first weights."""

import itertools
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

from train.loss import NOT_COUNTED, mean_loss
from train.models import gpt
from train.models.gpt import STD, build_gpt, initialise, materialise
from train.models.gpt_sizes import GPT_SIZES, GPTSize, head_rows
from train.options import Options
from train.train_step import ModelWithLoss

TINY = GPTSize(layers=2, width=32, heads=4, context=16, lr=0.01)


def tiny(seed=0):
    return build_gpt(11, TINY, seed)


def tokens(*shape):
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(0))


def test_logits_are_of_each_token_and_every_weight_is_trained():
    model = tiny()
    logits = model(tokens(3, 9))
    assert logits.shape == (3, 9, 11)
    logits.square().sum().backward()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    assert all(p.grad.abs().sum() > 0 for p in matrices)
    assert all(p.grad is not None for p in model.parameters())


def test_model_is_a_sequence_that_can_be_cut_between_any_parts():
    model = tiny()
    names = [name for name, _ in model.named_children()]
    assert names == ["embedding", "block0", "block1", "norm", "head"]
    whole = model(tokens(2, 8))
    for cut in range(1, len(names)):
        assert torch.equal(model[cut:](model[:cut](tokens(2, 8))), whole)


def test_later_token_changes_no_earlier_logit():
    model = tiny()
    first, other = tokens(1, 12), tokens(1, 12)
    other[0, 7] = (other[0, 7] + 1) % 11
    same = (model(first) == model(other)).all(dim=-1)[0]
    assert same[:7].all()
    assert not same[7:].any()


def test_number_of_heads_follows_from_the_local_width():
    """With tensor parallelism, each half has its columns of query, key and value, and its rows of output."""
    attention, inputs = tiny().block0.attention, torch.randn(2, 5, 32)
    whole = attention(inputs)
    halves = []
    for half in (slice(0, 16), slice(16, 32)):
        part = build_gpt(11, TINY, 0).block0.attention
        for name in ("query", "key", "value"):
            layer = getattr(part, name)
            layer.weight, layer.bias = nn.Parameter(layer.weight[half]), nn.Parameter(layer.bias[half])
        part.output.weight = nn.Parameter(part.output.weight[:, half])
        halves.append(part(inputs))
    assert torch.allclose(halves[0] + halves[1], whole, atol=1e-6)


def test_head_and_embedding_are_one_weight():
    model = tiny()
    assert model.head.weight is model.embedding.token.weight
    assert sum(p is model.head.weight for p in model.parameters()) == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocabulary", [256, 257, 1001])
def test_rows_added_to_the_head_are_in_no_loss_gradient_or_weight(monkeypatch, vocabulary, smoothing):
    monkeypatch.setattr(gpt, "gains_by_padding", lambda _inputs: True)
    model = build_gpt(vocabulary, TINY, 0).double()
    text = torch.randint(vocabulary, (3, 9), generator=torch.Generator().manual_seed(0))
    labels = text.roll(-1, 1)
    labels[:, -1] = NOT_COUNTED
    plain = nn.functional.linear(model[:-1](text), model.head.weight)
    expected = mean_loss(plain, labels, label_smoothing=smoothing)
    gradients = torch.autograd.grad(expected, list(model.parameters()))

    loss, logits = ModelWithLoss(model, Options(dataset="text", label_smoothing=smoothing))(text, labels)
    loss.backward()
    assert logits is None, "they would be in memory until the backward pass has ended"
    assert loss.item() == pytest.approx(expected.item(), rel=1e-14)
    for weight, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(weight.grad, gradient, rtol=1e-12, atol=1e-15)
    assert model(text).shape == plain.shape
    assert model.state_dict()["head.weight"].shape == (vocabulary, TINY.width)


@pytest.mark.parametrize(
    ("padded_on", "dtype", "rows"),
    [("cpu", torch.bfloat16, 64), ("cpu", torch.float32, 11), ("cuda", torch.bfloat16, 11)],
)
def test_head_is_padded_in_half_precision_on_gpus(monkeypatch, padded_on, dtype, rows):
    """The CPU stands for the GPU."""
    assert [head_rows(vocabulary) for vocabulary in (256, 257, 50_257)] == [256, 320, 50_304]
    monkeypatch.setattr(gpt, "PADDED_ON", padded_on)
    shapes = []

    class Record(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is nn.functional.linear:
                shapes.append(tuple(args[1].shape))
            return function(*args, **(kwargs or {}))

    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16), Record():
        tiny().head(torch.zeros(1, 2, TINY.width))
    assert shapes == [(rows, TINY.width)]


def test_initialised_on_meta_equals_the_plain_build():
    weightless = build_gpt(11, TINY, None)
    assert all(p.is_meta for p in weightless.parameters())
    materialise(weightless, torch.device("cpu"), 5)
    plain = tiny(seed=5).state_dict()
    assert all(torch.equal(value, plain[name]) for name, value in weightless.state_dict().items())
    assert weightless.head.weight is weightless.embedding.token.weight
    assert not torch.equal(
        plain["embedding.token.weight"], tiny(seed=6).state_dict()["embedding.token.weight"]
    )


def test_part_of_the_model_is_initialised_as_the_whole():
    whole = tiny().state_dict()
    other = dict(tiny(seed=1).named_children())
    stage = nn.Sequential(OrderedDict((name, other[name]) for name in ("block1", "norm", "head")))
    initialise(stage, 0)
    assert all(torch.equal(value, whole[name]) for name, value in stage.state_dict().items())


def test_weights_at_the_start_are_as_gpt2s():
    model = build_gpt(257, GPTSize(layers=8, width=128, heads=2, context=64, lr=0.01), 0)
    block = model.block3
    assert block.attention.query.weight.std().item() == pytest.approx(STD, rel=0.05)
    assert model.embedding.token.weight.std().item() == pytest.approx(STD, rel=0.05)
    for residual in (block.attention.output, block.mlp.down):
        assert residual.weight.std().item() == pytest.approx(STD / 4, rel=0.05)
        assert residual.bias.abs().sum() == 0
    assert (block.mlp_norm.weight == 1).all()
    assert not torch.equal(block.attention.query.weight, block.attention.key.weight)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("gpt-10m", 30), ("gpt-124m", 124), ("gpt-350m", 355), ("gpt-1b", 1316), ("gpt-7b", 6658)],
)
def test_sizes_have_the_weights_of_their_names_with_gpt2s_tokens(name, millions):
    """The smallest model is named by its blocks: most of its weights belong to the tokens."""
    size = GPT_SIZES[name]
    model = build_gpt(50_257, size, None)
    weights = sum(p.numel() for p in model.parameters())
    assert round(weights / 1e6) == millions
    matrices = size.layers * size.weights_per_layer + 50_257 * size.width
    assert size.flops_per_token(50_257, 0) == 6 * matrices
    assert matrices == pytest.approx(weights, rel=0.02)


def test_training_lowers_the_loss():
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=TINY.lr)
    text = torch.arange(64).remainder(11).view(4, 16)
    losses = []
    for _ in range(20):
        loss = cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
    assert all(after < before + 0.1 for before, after in itertools.pairwise(losses))
