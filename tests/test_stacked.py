import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from triplu_ray import stacked


def test_keyed_generator_depends_on_its_key_alone() -> None:
    first = stacked.keyed_generator("batch", 1, 7).integers(0, 1 << 30, 5)
    np.random.default_rng(0).normal(size=100)
    again = stacked.keyed_generator("batch", 1, 7).integers(0, 1 << 30, 5)
    other = stacked.keyed_generator("batch", 7, 1).integers(0, 1 << 30, 5)
    assert (first == again).all()
    assert (first != other).any()


def test_a_member_starts_as_it_would_alone() -> None:
    together = stacked.Linear(3, 4, 5, bias=True)
    stacked.initialize(together, [7, 8, 9])
    alone = stacked.Linear(1, 4, 5, bias=True)
    stacked.initialize(alone, [8])
    assert torch.equal(together.weight[1], alone.weight[0])
    assert not torch.equal(together.weight[0], together.weight[1])
    assert torch.count_nonzero(together.weight) == together.weight.numel()


def test_a_module_says_which_of_its_parameters_never_decay() -> None:
    layer = stacked.Stacked(2)
    layer.declare("weight", (3,), stacked.constant(1.0))
    layer.declare("offset", (3,), stacked.constant(1.0), decayed=False)
    assert layer.undecayed == {"offset"}


def test_weights_have_the_stated_spread() -> None:
    layer = stacked.Linear(1, 300, 400, bias=True)
    stacked.initialize(layer, [1])
    # 120,000 draws: the sample's own error is 0.02 / sqrt(2 x 120,000) = 0.00004.
    assert layer.weight.std().item() == pytest.approx(0.02, abs=0.0002)
    assert layer.weight.mean().item() == pytest.approx(0.0, abs=0.0003)
    assert layer.bias is not None
    assert torch.count_nonzero(layer.bias) == 0


@given(members=st.integers(1, 4), seed=st.integers(0, 99))
def test_linear_is_each_members_own_map(members: int, seed: int) -> None:
    layer = stacked.Linear(members, 3, 2, bias=True)
    stacked.initialize(layer, range(seed, seed + members))
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(members, 5, 3))).float()
    assert layer.bias is not None
    expected = [F.linear(x[m], layer.weight[m].T, layer.bias[m]) for m in range(members)]
    torch.testing.assert_close(layer(x), torch.stack(expected))


def test_linear_scale_multiplies_the_output() -> None:
    layer = stacked.Linear(2, 3, 4)
    stacked.initialize(layer, [1, 2])
    x = torch.randn(2, 5, 3)
    scale = torch.tensor([2.0, 3.0]).view(2, 1, 1)
    torch.testing.assert_close(layer(x, scale=scale), scale * layer(x))


@pytest.mark.parametrize("members", [1, 3])
def test_layer_norm_equals_torchs(members: int) -> None:
    layer = stacked.LayerNorm(members, 6, torch.float32)
    stacked.initialize(layer, range(members))
    with torch.no_grad():
        layer.weight.normal_()
        layer.bias.normal_()
    x = torch.randn(members, 5, 6)
    expected = [F.layer_norm(x[m], (6,), layer.weight[m], layer.bias[m]) for m in range(members)]
    torch.testing.assert_close(layer(x), torch.stack(expected))


def test_embedding_reads_each_members_own_table() -> None:
    layer = stacked.Embedding(2, 10, 3)
    stacked.initialize(layer, [1, 2])
    indices = torch.tensor([[[0, 9]], [[9, 4]]])
    expected = torch.stack([layer.weight[m][indices[m]] for m in range(2)])
    assert torch.equal(layer(indices), expected)


def test_attention_equals_torchs_fused_kernel() -> None:
    members, batch, time, width, heads = 2, 3, 5, 8, 2
    layer = stacked.CausalSelfAttention(members, width, heads, 7, stacked.Starts())
    stacked.initialize(layer, [1, 2])
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    x = torch.randn(members, batch * time, width)
    expected = []
    for m in range(members):
        assert layer.qkv.bias is not None
        assert layer.output.bias is not None
        projected = F.linear(x[m], layer.qkv.weight[m].T, layer.qkv.bias[m])
        query, key, value = (
            part.view(batch, time, heads, -1).transpose(1, 2) for part in projected.chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch * time, width)
        expected.append(F.linear(mixed, layer.output.weight[m].T, layer.output.bias[m]))
    torch.testing.assert_close(layer(x, time), torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_cross_entropy_by_hand() -> None:
    # Member 0 is uniform over four entries; member 1 gives the target three times the others' odds.
    logits = torch.zeros(2, 3, 4)
    logits[1, :, 2] = math.log(3)
    losses = stacked.cross_entropy(logits, torch.full((2, 3), 2))
    assert losses.tolist() == pytest.approx([math.log(4), math.log(2)])


def test_a_value_path_is_multiplied_before_it_is_mixed() -> None:
    attention = stacked.CausalSelfAttention(1, 4, 2, 3, stacked.Starts(), multiplies_values=True)
    stacked.initialize(attention, [1])
    x = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(1))
    query, key, value = attention.qkv(x)[0].split(4, dim=-1)
    assert attention.value_factor is not None
    value = value * (x[0] @ attention.value_factor.weight[0])
    heads = [
        F.scaled_dot_product_attention(
            query[None, :, head], key[None, :, head], value[None, :, head], is_causal=True
        )[0]
        for head in (slice(0, 2), slice(2, 4))
    ]
    expected = torch.cat(heads, dim=-1) @ attention.output.weight[0]
    torch.testing.assert_close(attention(x, 3)[0], expected)
