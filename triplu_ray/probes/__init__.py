"""Probes: what a run's selected model can do beside its loss, measured once after training.

Each applies by itself where it makes sense. A value is of one run; `count` says over how much.

    minimal_pairs   accuracy of the likelier sentence of a pair being the right one, by category
    pmi             loss in bits a token by how often adjacent tokens met in training (heldout text)
    arithmetic      exact match of greedy answers
    routing         PolyGLU: entropy and weights of the activations, loss with frozen choices

Along training `similarity` (untied squared ReLU) is noted at every evaluation by the trainer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from triplu_ray.arithmetic import arithmetic_prompts
from triplu_ray.config import RunConfig
from triplu_ray.corpus import Corpus
from triplu_ray.ffn import PolyGlu
from triplu_ray.minimal_pairs import accuracy, minimal_pairs
from triplu_ray.model import Decoder
from triplu_ray.pmi import SLICES, pair_statistics, slice_means, slices
from triplu_ray.probes.branches import routing_probe
from triplu_ray.probes.scoring import greedy_continuations, sequence_losses, token_losses

STORIES = {"tinystories", "tinystories_lite"}
"""Corpora whose language the minimal pairs are written in."""


@dataclass(frozen=True)
class Probed:
    """A value of every member."""

    probe: str
    group: str
    values: NDArray[np.float64]
    """`[M]`."""
    count: int | None = None


def run_probes(
    model: Decoder, config: RunConfig, corpus: Corpus, validation: Tensor, batch_size: int
) -> Iterator[Probed]:
    """All probes that apply to the members of a cohort, whose weights are the selected ones.

    `batch_size` says how many sequences of each member are worked on at once.
    """
    if config.corpus in STORIES:
        yield from _minimal_pairs(model, config, corpus, batch_size)
    if config.tokenizer == "bbpe":
        yield from _pmi(model, config, corpus, batch_size)
    if config.corpus == "arithmetic_lite":
        yield from _arithmetic(model, config, corpus, batch_size)
    if isinstance(config.ffn, PolyGlu):
        for group, values in routing_probe(model, validation).items():
            yield Probed("routing", group, values.double().cpu().numpy())


def _minimal_pairs(
    model: Decoder, config: RunConfig, corpus: Corpus, batch_size: int
) -> Iterator[Probed]:
    """Sentences stand at the beginning of a line; none where a context is too short for one."""
    pairs = minimal_pairs()
    sentences = [pair.good for pair in pairs] + [pair.bad for pair in pairs]
    sequences = [corpus.encode(f"\n{sentence}") for sentence in sentences]
    if max(map(len, sequences)) > config.context_length + 1:
        return
    losses = sequence_losses(model, sequences, batch_size)
    good, bad = np.split(losses, 2, axis=1)
    categories = np.array([pair.category for pair in pairs])
    for group in ["all", *dict.fromkeys(categories.tolist())]:
        chosen = (categories == group) | (group == "all")
        values = [
            accuracy(-right[chosen], -wrong[chosen]) for right, wrong in zip(good, bad, strict=True)
        ]
        yield Probed("minimal_pairs", group, np.array(values), int(chosen.sum()))


def _pmi(model: Decoder, config: RunConfig, corpus: Corpus, batch_size: int) -> Iterator[Probed]:
    """On the heldout text, or on the validation text where there is none."""
    text = corpus.validation if corpus.heldout is None else corpus.heldout
    losses = token_losses(model, text, config.context_length, batch_size)
    statistics = pair_statistics(corpus.train, corpus.vocab_size)
    slice_of = slices(statistics, text[:-1], text[1:])
    means, counts = slice_means(slice_of, losses)
    for index, group in enumerate(SLICES):
        if counts[index]:
            yield Probed("pmi", group, means[:, index], int(counts[index]))


def _arithmetic(
    model: Decoder, config: RunConfig, corpus: Corpus, batch_size: int
) -> Iterator[Probed]:
    """A prompt stands at the beginning of a line; an answer counts if it is right to its end.

    None where a context is too short for a problem and its answer.
    """
    items = arithmetic_prompts()
    prompts = [corpus.encode(f"\n{item.prompt}") for item in items]
    answers = [corpus.encode(item.answer) for item in items]
    longest = max(map(len, answers))
    if max(map(len, prompts)) + longest - 1 > config.context_length:
        return
    given = greedy_continuations(model, prompts, longest, batch_size)
    right = np.array([_begin_with(given[:, i], answer) for i, answer in enumerate(answers)]).T
    is_product = np.array(["*" in item.prompt for item in items])
    for group, chosen in (("all", is_product | True), ("multiplication", is_product)):
        yield Probed("arithmetic", group, right[:, chosen].mean(1), int(chosen.sum()))


def _begin_with(given: NDArray[np.int64], answer: Sequence[int] | NDArray[np.uint16]) -> list[bool]:
    matches: list[bool] = (given[:, : len(answer)] == np.asarray(answer)).all(1).tolist()
    return matches
