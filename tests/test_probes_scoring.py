import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from triplu_ray.ffn import Product
from triplu_ray.model import Decoder, ModelShape
from triplu_ray.probes.scoring import (
    Tokens,
    greedy_continuations,
    sequence_losses,
    token_losses,
)
from triplu_ray.stacked import initialize

VOCAB, CONTEXT = 7, 6
SHAPE = ModelShape(
    vocab_size=VOCAB, context_length=CONTEXT, d_model=8, num_layers=1, num_heads=2, hidden=6
)


def decoder(seeds: tuple[int, ...] = (1, 2), std: float = 0.5) -> Decoder:
    """With weights large enough for opinions."""
    model = Decoder([Product(degree=3)] * len(seeds), SHAPE)
    initialize(model, seeds)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and "norm" not in name:
                parameter.mul_(std / 0.02)
    return model


def tokens(count: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(VOCAB, size=count).astype(np.uint16)


def losses_of(model: Decoder, member: int, window: Tokens) -> list[float]:
    """Of one window, every token after the first."""
    inputs = torch.from_numpy(window.astype(np.int64))
    logits = model(inputs[:-1].repeat(model.members, 1, 1))[member]
    return F.cross_entropy(logits, inputs[1:], reduction="none").tolist()


@given(count=st.integers(2, 40), batch_size=st.integers(1, 4))
def test_every_token_but_the_first_is_scored_once(count: int, batch_size: int) -> None:
    model, text = decoder(), tokens(count)
    scored = token_losses(model, text, CONTEXT, batch_size)
    assert scored.shape == (2, count - 1)
    for member in range(2):
        expected: list[float] = []
        while (done := len(expected)) < count - 1:
            # The last window reaches back until it is whole.
            start = max(0, min(done, count - 1 - CONTEXT))
            window = losses_of(model, member, text[start : start + CONTEXT + 1])
            expected += window[done - start :]
        assert scored[member] == pytest.approx(expected, abs=1e-5)


def test_a_uniform_model_needs_the_logarithm_of_the_vocabulary() -> None:
    model = decoder()
    with torch.no_grad():
        model.head.weight.zero_()
    assert token_losses(model, tokens(20), CONTEXT, 2) == pytest.approx(math.log(VOCAB))


@given(lengths=st.lists(st.integers(2, CONTEXT + 1), min_size=1, max_size=5))
def test_padding_adds_nothing_to_a_sequence(lengths: list[int]) -> None:
    model = decoder()
    sequences = [tokens(length, seed) for seed, length in enumerate(lengths)]
    together = sequence_losses(model, sequences, 2)
    for member in range(2):
        alone = [sum(losses_of(model, member, sequence)) for sequence in sequences]
        assert together[member] == pytest.approx(alone, abs=1e-4)


def test_greedy_continuations_are_those_of_one_prompt_at_a_time() -> None:
    model = decoder(seeds=(1, 2, 3))
    prompts = [tokens(length, seed) for seed, length in enumerate((1, 3, 2, 3, 1))]
    given = greedy_continuations(model, prompts, 3, 2)
    assert given.shape == (3, 5, 3)
    for member in range(3):
        for index, prompt in enumerate(prompts):
            text = torch.from_numpy(prompt.astype(np.int64))
            for _ in range(3):
                logits = model(text.repeat(3, 1, 1))[member, -1]
                text = torch.cat([text, logits.argmax()[None]])
            assert given[member, index].tolist() == text[len(prompt) :].tolist()
    assert len({tuple(answer) for answer in given.reshape(-1, 3).tolist()}) > 3
