import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from cohorts import corpus as tiny_corpus
from cohorts import plan

from triplu_ray.corpus import Corpus, CorpusSource, load_corpus
from triplu_ray.execution import member_losses
from triplu_ray.members import MemberState
from triplu_ray.plan import Cohort, CorpusFacts, PlannedRun
from triplu_ray.pmi import SLICES
from triplu_ray.selected import examine_selected, load_model, model_bytes
from triplu_ray.train import CohortTrainer, train_cohort


@cache
def subwords() -> Corpus:
    source = CorpusSource(
        "tinystories_lite",
        20_000,
        5_000,
        tokenizer="bbpe",
        tokenizer_vocab_size=300,
        heldout_bytes=3_000,
    )
    return load_corpus(source)


def trainer(folder: Path, corpus: Corpus, *, steps: int = 20) -> CohortTrainer:
    facts = CorpusFacts(corpus.vocab_size, corpus.sha256)
    tokenizer = {"tokenizer": "bbpe", "tokenizer_vocab_size": 300}
    planned = plan(folder, variant="triplu", num_steps=steps, grid={"seed": [1, 2]}).runs
    runs = tuple(
        PlannedRun(run.config.model_copy(update={**tokenizer, "context_length": 64}), facts)
        for run in planned
    )
    return CohortTrainer(Cohort(runs), corpus)


def finished(folder: Path) -> CohortTrainer:
    training = trainer(folder, subwords())
    for _ in train_cohort(training):
        pass
    return training


def test_what_is_random_in_training_is_not_in_what_is_measured_after_it(tmp_path: Path) -> None:
    """As when all members diverge between two evaluations, and when a process takes over."""
    runs = plan(tmp_path, variant="polyglu", context_length=64, grid={"seed": [1, 2]}).runs
    training, taking_over = (CohortTrainer(Cohort(runs), tiny_corpus()) for _ in range(2))
    training.evaluate()
    for _ in range(3):
        training.train_step()
    taking_over.restore(training.checkpoint())
    for one in (training, taking_over):
        examine_selected(one, tiny_corpus())
    measured = [member.measurements for member in training.members]
    assert measured == [member.measurements for member in taking_over.members]
    assert {row.probe for row in measured[0]} == {"minimal_pairs", "routing"}


def uniform(training: CohortTrainer) -> None:
    with torch.no_grad():
        training.model.head.weight.zero_()
    training.best_values.copy_(training.optimizer.values)


def many_bytes_a_character(folder: Path) -> Corpus:
    """Text of one to four bytes a character, with tokens that end within one."""
    text = "".join(f"Füße über {chr(0x4E00 + 7 * n)} \U0001f600 {n}\n" for n in range(600))
    files = {"train": text, "validation": text[3:9000], "heldout": text[5:4000]}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8", newline="")
    train, validation, heldout = (str(folder / name) for name in files)
    source = CorpusSource(
        "text",
        None,
        None,
        train,
        validation,
        tokenizer="bbpe",
        tokenizer_vocab_size=300,
        heldout_file=heldout,
    )
    return load_corpus(source)


@pytest.mark.parametrize("characters", ["ascii", "all"])
def test_a_uniform_model_needs_as_many_bits_a_byte_as_its_tokens_take(
    tmp_path: Path, characters: str
) -> None:
    corpus = subwords() if characters == "ascii" else many_bytes_a_character(tmp_path)
    training = trainer(tmp_path, corpus)
    uniform(training)
    (first, _) = training.evaluate()
    scored = training.validation[..., 1:].numpy()
    letters = byte_letters()
    pieces = [
        bytes(letters[letter] for letter in corpus.vocabulary[token]) for token in scored.flatten()
    ]
    expected = scored.size * math.log2(300) / len(b"".join(pieces))
    assert first.bits_per_byte == pytest.approx(expected, rel=1e-6)
    ends_within_a_character = any("\ufffd" in piece.decode(errors="replace") for piece in pieces)
    assert ends_within_a_character == (characters == "all")
    examine_selected(training, corpus)
    heldout = training.members[0].heldout
    assert heldout is not None
    assert corpus.heldout is not None
    # All of the text but its first token.
    text = corpus.decode(corpus.heldout)
    rest = len(text.encode()) - len(corpus.vocabulary[corpus.heldout[0]])
    assert len(text) < len(text.encode()) or characters == "ascii"
    expected = (len(corpus.heldout) - 1) * math.log2(300) / rest
    assert heldout.bits_per_byte == pytest.approx(expected, rel=1e-6)


def byte_letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for, as GPT-2 wrote them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(others)}


def test_heldout_text_is_scored_once_with_the_best_parameters(tmp_path: Path) -> None:
    training = finished(tmp_path)
    training.members[0].best_step = 10
    training.best_values[0] = 0.0
    examine_selected(training, subwords())
    for member in training.members:
        assert member.heldout is not None
        assert (member.heldout.split, member.heldout.step) == ("heldout", member.best_step)
        assert member.heldout.tokens == (member.best_step or 0) * 256
        assert member.heldout.train_loss is None
    first, second = training.members
    assert first.heldout is not None
    assert second.heldout is not None
    assert first.heldout.loss == pytest.approx(math.log(300), rel=1e-6)
    assert second.heldout.loss < math.log(300) - 0.2


def test_a_run_without_a_finite_loss_is_left_out(tmp_path: Path) -> None:
    training = trainer(tmp_path, subwords())
    training.members[1].diverged_step = 1
    training.evaluate()
    examine_selected(training, subwords())
    assert training.members[0].heldout is not None
    assert training.members[1].heldout is None
    assert training.members[1].measurements == []


def test_probes_of_a_subword_story_model(tmp_path: Path) -> None:
    training = finished(tmp_path)
    examine_selected(training, subwords())
    for member in training.members:
        values = measured(member)
        assert values["minimal_pairs", "all"][1] == 200
        assert 0 <= values["minimal_pairs", "all"][0] <= 1
        slices = [group for probe, group in values if probe == "pmi"]
        assert slices == [name for name in SLICES if name in slices]
        counts = [values["pmi", group][1] or 0 for group in slices]
        heldout = subwords().heldout
        assert heldout is not None
        assert sum(counts) == len(heldout) - 1
        # The slices' means, weighted, are the loss of the whole text.
        total = sum(
            values["pmi", group][0] * count
            for group, count in zip(slices, counts, strict=True)
            if count
        )
        assert member.heldout is not None
        expected = member.heldout.loss / math.log(2)
        assert total / sum(counts) == pytest.approx(expected, rel=1e-5)


def measured(member: MemberState) -> dict[tuple[str, str], tuple[float, int | None]]:
    return {(row.probe, row.group): (row.value, row.count) for row in member.measurements}


def test_a_kept_model_is_the_one_that_was_selected(tmp_path: Path) -> None:
    training = finished(tmp_path)
    examine_selected(training, subwords())
    for index, member in enumerate(training.members):
        model, config = load_model(model_bytes(training, index, 300))
        assert config == training.configs[index]
        losses = [member_losses(model, batch[None]) for batch in training.validation]
        mean = torch.stack(losses).double().mean().item()
        assert mean == pytest.approx(member.best_val_loss, abs=1e-6)


def test_characters_have_no_bits_per_byte(tmp_path: Path) -> None:
    from cohorts import cohort, corpus

    training = CohortTrainer(cohort(tmp_path, variant="swiglu", grid={"seed": [1]}), corpus())
    (evaluation,) = training.evaluate()
    assert evaluation.bits_per_byte is None
    assert corpus().num_bytes(np.array([1, 2])) is None
