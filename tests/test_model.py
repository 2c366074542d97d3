from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from variants import every_variant

from triplu_ray.ffn import (
    Alternating,
    FeedForwardConfig,
    GatedLinearUnit,
    Gelu,
    Product,
    ValueProduct,
)
from triplu_ray.model import Block, Decoder, ModelShape
from triplu_ray.reference import ReferenceDecoder
from triplu_ray.stacked import Starts, cross_entropy, initialize, normal_start

SHAPE = ModelShape(
    vocab_size=11, context_length=8, d_model=12, num_layers=2, num_heads=3, hidden=10
)
SWIGLU, TRIPLU = GatedLinearUnit(kind="swiglu"), Product(degree=3, gain=5.0)


def decoder(*ffns: FeedForwardConfig) -> Decoder:
    model = Decoder(ffns, SHAPE)
    initialize(model, range(1, len(ffns) + 1))
    return model


@every_variant
def test_parameters_are_as_many_as_said(ffn: FeedForwardConfig) -> None:
    model = decoder(ffn, ffn)
    assert sum(p.numel() for p in model.parameters()) == 2 * SHAPE.num_params(ffn)


@every_variant
def test_flops_are_as_many_as_torch_counts(ffn: FeedForwardConfig) -> None:
    with FlopCounterMode(display=False) as counter:
        decoder(ffn)(torch.zeros(1, 3, SHAPE.context_length, dtype=torch.long))
    tokens = 3 * SHAPE.context_length
    # A router that reads whole sequences runs once for each, which no count a token holds.
    router = 2 * 32 * (SHAPE.d_model + 4) * SHAPE.num_layers * 3 if ffn.sees_later_tokens else 0
    assert counter.get_total_flops() == tokens * SHAPE.flops_per_token(ffn) + router


@every_variant
def test_no_logit_depends_on_a_later_token_unless_said(ffn: FeedForwardConfig) -> None:
    model = decoder(ffn, ffn)
    embedded = []
    hook = model.embedding.register_forward_hook(lambda *call: embedded.append(call[-1]))
    logits = model(torch.randint(0, 11, (2, 1, 8), generator=torch.Generator().manual_seed(1)))
    hook.remove()
    for position in range(8):
        (gradient,) = torch.autograd.grad(logits[:, position].sum(), embedded[0], retain_graph=True)
        later, seen = gradient[:, :, position + 1 :], gradient[:, :, : position + 1]
        leaks = ffn.sees_later_tokens and position < 7
        assert torch.any(later != 0) == leaks
        assert torch.count_nonzero(seen[:, :, -1]) > 0


@every_variant
def test_a_member_computes_what_it_would_alone(ffn: FeedForwardConfig) -> None:
    tokens = torch.randint(0, 11, (1, 2, 8), generator=torch.Generator().manual_seed(1))
    together, alone = decoder(ffn, ffn, ffn), Decoder([ffn], SHAPE)
    initialize(alone, [3])
    torch.testing.assert_close(together(tokens.expand(3, -1, -1))[2], alone(tokens)[0])


@pytest.mark.parametrize("ffn", [Alternating(), ValueProduct()], ids=lambda ffn: ffn.label)
def test_gradients_agree_with_finite_differences(ffn: FeedForwardConfig) -> None:
    """Of those that are more than one layer, which alone would be SwiGLU's."""
    start = normal_start(1.0)
    torch.manual_seed(0)
    x = torch.randn(1, 6, SHAPE.d_model, dtype=torch.float64, requires_grad=True)
    for layer, hidden in SHAPE.layers_of(ffn):
        block = Block([layer], hidden, SHAPE, Starts(start, start), torch.float64)
        initialize(block, [1])
        block.double()
        parameters = tuple(block.parameters())

        def apply(x: torch.Tensor, *_: torch.Tensor, block: Block = block) -> torch.Tensor:
            output: torch.Tensor = block(x, 3)
            return output

        assert torch.autograd.gradcheck(apply, (x, *parameters))


def as_reference(name: str, value: torch.Tensor) -> torch.Tensor:
    """A linear weight is `[inputs, outputs]` here and `[outputs, inputs]` in torch."""
    linear = name.endswith("weight") and value.dim() == 2 and name != "embedding.weight"
    return value.T if linear else value


@pytest.mark.parametrize("ffn", [SWIGLU, TRIPLU, Gelu(), Product(degree=2)])
def test_loss_and_gradient_equal_the_references(ffn: FeedForwardConfig) -> None:
    model = decoder(ffn, ffn)
    reference = ReferenceDecoder(ffn, SHAPE)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.copy_(as_reference(name, model.get_parameter(name)[1]))
    windows = torch.randint(0, 11, (5, 9), generator=torch.Generator().manual_seed(1))
    tokens, targets = windows[:, :-1], windows[:, 1:]
    losses = cross_entropy(model(tokens.expand(2, -1, -1)), targets.flatten().expand(2, -1))
    expected = reference(tokens, targets)
    torch.testing.assert_close(losses[1], expected)
    torch.autograd.backward([losses.sum(), expected])
    for name, parameter in reference.named_parameters():
        gradient = model.get_parameter(name).grad
        assert gradient is not None
        torch.testing.assert_close(
            as_reference(name, gradient[1]), parameter.grad, rtol=1e-4, atol=1e-6
        )


def test_mingpt_initialization_shrinks_output_projections() -> None:
    model = Decoder([SWIGLU], replace(SHAPE, d_model=96, hidden=300), "mingpt")
    initialize(model, [1])
    for name, parameter in model.named_parameters():
        if name.endswith("output.weight"):
            assert parameter.std().item() == pytest.approx(0.02 / 2, rel=0.03)
        elif name.endswith(("qkv.weight", "streams.0.weight", "head.weight")):
            assert parameter.std().item() == pytest.approx(0.02, rel=0.06)


def test_initial_loss_is_that_of_a_uniform_guess() -> None:
    model = decoder(TRIPLU)
    windows = torch.randint(0, 11, (1, 64, 9), generator=torch.Generator().manual_seed(1))
    loss = cross_entropy(model(windows[..., :-1]), windows[..., 1:].flatten(1))
    assert loss.item() == pytest.approx(torch.log(torch.tensor(11.0)).item(), abs=0.01)
