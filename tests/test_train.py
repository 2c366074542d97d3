import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cohorts import cohort, corpus

from triplu_ray.batches import training_offsets, windows
from triplu_ray.members import Evaluation
from triplu_ray.plan import Cohort
from triplu_ray.reference import ReferenceDecoder, train_step
from triplu_ray.selected import examine_selected
from triplu_ray.train import CohortTrainer, train_cohort

FOUR: dict[str, Any] = {
    "variant": "triplu",
    "grid": {"seed": [1, 2], "learning_rate": [1e-3, 1e-2]},
    "num_steps": 300,
    "eval_interval": 100,
}
MUON: dict[str, Any] = {
    "variant": "triplu",
    "optimizer": "muon",
    "learning_rate": 0.02,
    "adamw_learning_rate": 3e-3,
    "grid": {"seed": [1, 2]},
}


def trained(planned: Cohort, micro_batches: int = 1, **options: Any) -> CohortTrainer:
    trainer = CohortTrainer(planned, corpus(), micro_batches=micro_batches)
    for _ in train_cohort(trainer, **options):
        pass
    return trainer


def without_seconds(rows: list[Evaluation]) -> list[Evaluation]:
    return [replace(row, seconds=0.0) for row in rows]


def test_importing_the_training_core_does_not_import_ray() -> None:
    code = "import triplu_ray.train, sys; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_training_equals_the_plain_loop(tmp_path: Path) -> None:
    planned = cohort(tmp_path, variant="triplu", grid={"seed": [5]}, num_steps=30)
    config = planned.runs[0].config
    trainer = CohortTrainer(planned, corpus())
    reference = ReferenceDecoder(config.ffn, config.shape(corpus().vocab_size))
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            mine = trainer.model.get_parameter(name)[0]
            linear = mine.dim() == 2 and name not in ("embedding.weight", "positions")
            parameter.copy_(mine.T if linear else mine)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.1)
    tokens = torch.from_numpy(corpus().train.astype(np.int32))
    losses = []
    for step in range(config.num_steps):
        offsets = training_offsets(len(tokens), 5, step, config.batch_size, config.context_length)
        batch = windows(tokens, torch.from_numpy(offsets), config.context_length)
        losses.append(train_step(reference, optimizer, batch[:, :-1], batch[:, 1:]))
        trainer.train_step()
    trainer.synchronize()
    # Summed in another order: 30 steps leave a relative difference of a few 1e-6.
    mean = trainer.members[0].train_loss_sum / config.num_steps
    assert mean == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize("variant", ["swiglu", "triplu", "gelu"])
def test_a_member_of_four_is_bit_equal_to_the_same_run_alone(tmp_path: Path, variant: str) -> None:
    four = cohort(tmp_path, **{**FOUR, "variant": variant})
    together = trained(four)
    assert len(four.runs) == 4
    for index, run in enumerate(four.runs):
        alone = trained(Cohort((run,)))
        assert torch.equal(together.optimizer.values[index], alone.optimizer.values[0])
        assert torch.equal(together.best_values[index], alone.best_values[0])
        mine, expected = together.members[index], alone.members[0]
        assert without_seconds(mine.evaluations) == without_seconds(expected.evaluations)
        assert len(mine.evaluations) == 4


@pytest.mark.parametrize("optimizer", [{}, MUON])
@pytest.mark.parametrize("micro_batches", [2, 4])
def test_a_batch_in_parts_is_the_same_batch(
    tmp_path: Path, optimizer: dict[str, Any], micro_batches: int
) -> None:
    planned = cohort(tmp_path, **{"variant": "triplu", "grid": {"seed": [1, 2]}, **optimizer})
    whole, parts = trained(planned), trained(planned, micro_batches)
    assert parts.micro_batch_size == 4 // micro_batches
    for member, expected in zip(parts.members, whole.members, strict=True):
        assert len(member.evaluations) == 5
        for row, other in zip(member.evaluations, expected.evaluations, strict=True):
            assert row.loss == pytest.approx(other.loss, abs=1e-4)
            assert row.train_loss == pytest.approx(other.train_loss, abs=1e-4)
    first, second = (CohortTrainer(planned, corpus(), micro_batches=n) for n in (1, micro_batches))
    for trainer in (first, second):
        trainer.train_step()
    torch.testing.assert_close(second.optimizer.gradients, first.optimizer.gradients)


def test_members_differ_in_gain_and_decay(tmp_path: Path) -> None:
    planned = cohort(
        tmp_path, variant="triplu", grid={"gain": [1.0, 5.0], "weight_decay": [0.0, 0.5]}
    )
    together = trained(planned)
    finals = [member.last_val_loss for member in together.members]
    assert len(planned.runs) == len(set(finals)) == 4
    for index, run in enumerate(planned.runs):
        alone = trained(Cohort((run,)))
        assert alone.members[0].last_val_loss == finals[index]


def test_evaluations_come_on_schedule_and_the_best_is_kept(tmp_path: Path) -> None:
    planned = cohort(
        tmp_path, variant="triplu", grid={"seed": [1]}, num_steps=23, learning_rate=0.1
    )
    trainer = trained(planned)
    (member,) = trainer.members
    assert [row.step for row in member.evaluations] == [0, 5, 10, 15, 20, 23]
    assert [row.tokens for row in member.evaluations] == [64 * s for s in (0, 5, 10, 15, 20, 23)]
    losses = {row.step: row.loss for row in member.evaluations}
    assert member.best_val_loss == min(losses.values())
    assert losses[member.best_step or 0] == member.best_val_loss
    assert member.evaluations[0].train_loss is None
    assert member.evaluations[0].loss == pytest.approx(math.log(62), abs=0.02)
    trainer.optimizer.values.copy_(trainer.best_values)
    trainer.members[0].evaluations.clear()
    (again,) = trainer.evaluate()
    assert again.loss == member.best_val_loss


def test_summary_of_a_finished_run(tmp_path: Path) -> None:
    trainer = trained(cohort(tmp_path, variant="swiglu", grid={"seed": [1]}))
    (summary,) = trainer.summaries()
    assert summary["status"] == "finished"
    assert summary["tokens"] == 20 * 64
    assert summary["perplexity"] == pytest.approx(math.exp(summary["best_val_loss"]))
    assert summary["tokens_per_second"] == pytest.approx(summary["tokens"] / summary["seconds"])
    assert summary["diverged_step"] is None


def test_divergence_ends_the_member_and_not_the_cohort(tmp_path: Path) -> None:
    planned = cohort(
        tmp_path, variant="triplu", gain=5.0, grid={"learning_rate": [1e-3, 1e6, 1e-2]}
    )
    together = trained(planned)
    lost, kept = together.members[1], (together.members[0], together.members[2])
    assert lost.diverged_step is not None
    assert all(math.isfinite(row.loss) for row in lost.evaluations)
    assert all(row.step < lost.diverged_step for row in lost.evaluations)
    for index, member in zip((0, 2), kept, strict=True):
        alone = trained(Cohort((planned.runs[index],)))
        assert member.diverged_step is None
        assert member.last_val_loss == alone.members[0].last_val_loss
    summary = together.summaries()[1]
    assert summary["status"] == "diverged"
    assert summary["final_val_loss"] is None
    assert summary["tokens"] == lost.diverged_step * 64


def test_a_cohort_whose_members_all_diverge_ends_early(tmp_path: Path) -> None:
    planned = cohort(tmp_path, variant="triplu", grid={"learning_rate": [1e6, 1e7]}, num_steps=500)
    trainer = trained(planned)
    assert trainer.step < 100
    assert all(member.diverged_step is not None for member in trainer.members)


@pytest.mark.parametrize("optimizer", [{"variant": "triplu"}, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("stop_after", [1, 7, 10, 19, 20])
def test_a_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, stop_after: int, optimizer: dict[str, Any]
) -> None:
    grid = {"seed": [1, 2], "learning_rate": [1e-3, 1e6]}
    planned = cohort(tmp_path, **{**optimizer, "grid": grid})
    whole = trained(planned)
    first = CohortTrainer(planned, corpus())
    for progress in train_cohort(first, progress_seconds=0.0):
        if progress.step >= stop_after:
            break
    second = CohortTrainer(planned, corpus())
    second.restore(first.checkpoint())
    second.prepare()
    for _ in train_cohort(second):
        pass
    assert second.resumes == 1
    for mine, expected in zip(second.members, whole.members, strict=True):
        assert without_seconds(mine.evaluations) == without_seconds(expected.evaluations)
        assert mine.diverged_step == expected.diverged_step
    for index, member in enumerate(whole.members):
        if member.diverged_step is None:
            assert torch.equal(second.optimizer.values[index], whole.optimizer.values[index])
    assert torch.equal(second.best_values, whole.best_values)


@pytest.mark.parametrize("step", [0, 5, 13, 20])
def test_an_evaluation_that_a_checkpoint_lacks_is_made_up_for(tmp_path: Path, step: int) -> None:
    """As of a process whose evaluation failed; one that it has is not made again."""
    planned = cohort(tmp_path, variant="triplu", grid={"learning_rate": [1e-3, 1e6]}, num_steps=20)
    whole = trained(planned)
    lacking = CohortTrainer(planned, corpus())
    for _ in range(step):
        if lacking.evaluation_is_due:
            lacking.evaluate()
        lacking.train_step()
    second = CohortTrainer(planned, corpus())
    second.restore(lacking.checkpoint())
    assert second.evaluation_is_due == (step % 5 == 0)
    for _ in train_cohort(second):
        pass
    third = CohortTrainer(planned, corpus())
    third.restore(second.checkpoint())
    assert list(train_cohort(third)) == []
    for trainer in (second, third):
        for mine, expected in zip(trainer.members, whole.members, strict=True):
            assert without_seconds(mine.evaluations) == without_seconds(expected.evaluations)
            assert mine.best_val_loss == expected.best_val_loss


@pytest.mark.parametrize("gain", [1e38, 1e30])
def test_a_member_that_is_lost_before_the_first_step_leaves_the_others_alone(
    tmp_path: Path, gain: float
) -> None:
    planned = cohort(tmp_path, variant="triplu", grid={"gain": [1.0, gain]}, context_length=64)
    together = trained(planned)
    kept, lost = together.members
    assert (lost.diverged_step, lost.best_step, lost.evaluations) == (0, None, [])
    alone = trained(Cohort(planned.runs[:1]))
    assert without_seconds(kept.evaluations) == without_seconds(alone.members[0].evaluations)
    for trainer in (together, alone, trained(Cohort(planned.runs[1:]))):
        examine_selected(trainer, corpus())
        trainer.summaries()
    assert kept.measurements == alone.members[0].measurements != []
    assert lost.measurements == []
    assert together.summaries()[1]["tokens"] == 0


@pytest.mark.parametrize("variant", ["untied_squared_relu", "polyglu"])
def test_what_changes_from_step_to_step_resumes_exactly(tmp_path: Path, variant: str) -> None:
    planned = cohort(tmp_path, variant=variant, grid={"seed": [1, 2]}, hidden=12)
    whole = trained(planned)
    first = CohortTrainer(planned, corpus())
    for progress in train_cohort(first, progress_seconds=0.0):
        if progress.step >= 7:
            break
    second = CohortTrainer(planned, corpus())
    second.restore(first.checkpoint())
    for _ in train_cohort(second):
        pass
    assert torch.equal(second.optimizer.values, whole.optimizer.values)
    for mine, expected in zip(second.members, whole.members, strict=True):
        assert mine.measurements == expected.measurements


def test_pairs_are_followed_along_training(tmp_path: Path) -> None:
    planned = cohort(
        tmp_path, variant="untied_squared_relu", initial_similarity=0.999, grid={"seed": [1, 2]}
    )
    for member in trained(planned).members:
        rows = member.measurements
        assert [(row.group, row.step) for row in rows] == [
            ("layer 0", step) for step in (0, 5, 10, 15, 20)
        ]
        assert rows[0].value == pytest.approx(0.999, abs=2e-3)
        assert rows[-1].value != rows[0].value


def test_patience_ends_a_member_and_at_last_the_cohort(tmp_path: Path) -> None:
    # The first overshoots and gets worse; the second learns for long.
    planned = cohort(
        tmp_path, variant="swiglu", grid={"learning_rate": [3.0, 1e-3]}, patience=2, num_steps=60
    )
    trainer = trained(planned)
    hot, cool = trainer.members
    assert hot.stopped_step is not None
    assert hot.evaluations[-1].step == hot.stopped_step < 60
    assert cool.evaluations[-1].step == 60
    alone = trained(Cohort(planned.runs[:1]))
    assert alone.step == hot.stopped_step
    assert torch.equal(alone.optimizer.values[0], trainer.optimizer.values[0])
    assert alone.summaries()[0]["tokens"] == hot.stopped_step * 64


def test_muon_learns_and_a_member_is_bit_equal_to_the_same_run_alone(tmp_path: Path) -> None:
    planned = cohort(
        tmp_path, **{**MUON, "grid": {"seed": [1, 2], "adamw_learning_rate": [1e-3, 3e-3]}}
    )
    together = trained(planned)
    assert len(planned.runs) == 4
    for index, run in enumerate(planned.runs):
        first, *_, last = together.members[index].evaluations
        assert last.loss < first.loss - 0.25
        alone = trained(Cohort((run,)))
        assert torch.equal(together.optimizer.values[index], alone.optimizer.values[0])
    assert len({member.last_val_loss for member in together.members}) == 4


def test_both_rates_of_muon_follow_the_schedule(tmp_path: Path) -> None:
    planned = cohort(tmp_path, **MUON, schedule="linear", warmup_steps=4)
    trainer = CohortTrainer(planned, corpus())
    for _ in range(12):
        trainer.train_step()
    # Update 11 of 20, the last 16 of which fall: 1 - (11 - 4) / 16 of the peak is left.
    expected = [[0.02 * 9 / 16] * 2, [3e-3 * 9 / 16] * 2]
    torch.testing.assert_close(trainer.optimizer.rates, torch.tensor(expected, dtype=torch.float64))


def test_checkpoints_are_offered_by_wall_time(tmp_path: Path) -> None:
    planned = cohort(tmp_path, variant="swiglu", grid={"seed": [1]})
    often: list[bytes] = []
    trained(planned, save=often.append, save_seconds=0.0)
    never: list[bytes] = []
    trained(planned, save=never.append, save_seconds=1e9)
    assert len(often) == 20
    assert never == []
