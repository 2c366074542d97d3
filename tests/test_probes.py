from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cohorts import plan

from triplu_ray import probes
from triplu_ray.arithmetic import arithmetic_prompts
from triplu_ray.config import RunConfig
from triplu_ray.corpus import Corpus, CorpusSource, load_corpus
from triplu_ray.minimal_pairs import minimal_pairs
from triplu_ray.plan import Cohort, CorpusFacts, PlannedRun
from triplu_ray.probes import Probed, run_probes
from triplu_ray.train import CohortTrainer


def arithmetic() -> Corpus:
    return load_corpus(CorpusSource("arithmetic_lite", 20_000, 5_000))


def trainer(folder: Path, text: Corpus, **changes: Any) -> CohortTrainer:
    """Two seeds, untrained."""
    runs = plan(folder, variant="swiglu", grid={"seed": [1, 2]}).runs
    facts = CorpusFacts(text.vocab_size, text.sha256)
    configs = [run.config.model_copy(update=changes) for run in runs]
    return CohortTrainer(Cohort(tuple(PlannedRun(config, facts) for config in configs)), text)


def probed(training: CohortTrainer, corpus: Corpus) -> dict[tuple[str, str], Probed]:
    found = run_probes(training.model, training.config, corpus, training.validation, 4)
    return {(row.probe, row.group): row for row in found}


def test_answers_count_if_they_are_right_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = arithmetic()
    items = arithmetic_prompts()

    def answer(_model: Any, prompts: Any, num_tokens: int, _batch_size: int) -> Any:
        """Member 0 knows everything, member 1 adds, but never ends a product's line."""
        given = np.zeros((2, len(items), num_tokens), np.int64)
        for index, item in enumerate(items):
            assert corpus.decode(prompts[index]) == "\n" + item.prompt
            right = corpus.encode(item.answer)
            given[:, index, : len(right)] = right
            if "*" in item.prompt:
                given[1, index, len(right) - 1] = corpus.encode("0")[0]
        return given

    monkeypatch.setattr(probes, "greedy_continuations", answer)
    rows = probed(trainer(tmp_path, corpus, corpus="arithmetic_lite"), corpus)
    assert set(rows) == {("arithmetic", "all"), ("arithmetic", "multiplication")}
    assert rows["arithmetic", "all"].values.tolist() == [1.0, 0.5]
    assert rows["arithmetic", "all"].count == 200
    assert rows["arithmetic", "multiplication"].values.tolist() == [1.0, 0.0]
    assert rows["arithmetic", "multiplication"].count == 100


def test_an_untrained_model_answers_nothing(tmp_path: Path) -> None:
    corpus = arithmetic()
    rows = probed(trainer(tmp_path, corpus, corpus="arithmetic_lite"), corpus)
    assert rows["arithmetic", "all"].values.max() < 0.05


@pytest.mark.parametrize("context_length", [1, 8, 14, 15, 16, 64])
def test_problems_are_asked_where_they_fit_with_their_answers(
    tmp_path: Path, context_length: int
) -> None:
    """`\\n99 * 99 =` and ` 9801\\n`, whose last character only needs to come out."""
    corpus = arithmetic()
    changes: dict[str, Any] = {"corpus": "arithmetic_lite", "context_length": context_length}
    rows = probed(trainer(tmp_path, corpus, **changes), corpus)
    assert bool(rows) == (context_length >= 15)


def test_minimal_pairs_by_category(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = load_corpus(CorpusSource("tinystories_lite", 20_000, 5_000))
    pairs = minimal_pairs()
    category = pairs[0].category
    good = {corpus.encode("\n" + pair.good).tobytes(): pair for pair in pairs}

    def losses(_model: Any, sequences: Any, _batch_size: int) -> Any:
        """Member 0 likes what is right, member 1 only in one category, and the rest as little."""
        liked = [good.get(sequence.tobytes()) for sequence in sequences]
        assert len(sequences) == 2 * len(pairs)
        first = [1.0 if pair else 2.0 for pair in liked]
        second = [1.0 if pair and pair.category == category else 2.0 for pair in liked]
        return np.array([first, second])

    monkeypatch.setattr(probes, "sequence_losses", losses)
    rows = probed(trainer(tmp_path, corpus, context_length=64), corpus)
    share = sum(pair.category == category for pair in pairs) / len(pairs)
    assert rows["minimal_pairs", category].values.tolist() == [1.0, 1.0]
    # A tie counts half.
    assert rows["minimal_pairs", "all"].values.tolist() == [1.0, share + (1 - share) / 2]


def test_a_context_too_short_for_a_sentence_has_no_minimal_pairs(tmp_path: Path) -> None:
    corpus = load_corpus(CorpusSource("tinystories_lite", 20_000, 5_000))
    assert probed(trainer(tmp_path, corpus, context_length=16), corpus) == {}


def test_sentences_fit_into_the_papers_context() -> None:
    longest = max(len(sentence) for pair in minimal_pairs() for sentence in (pair.good, pair.bad))
    assert longest + 1 <= RunConfig.model_fields["context_length"].default + 1
