import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplu_ray.members import Evaluation, Measurement, MemberState


def evaluation(step: int, loss: float) -> Evaluation:
    return Evaluation("run", step, 64 * step, "validation", loss, None, None, 0.0)


def recorded(losses: list[float], patience: int | None) -> MemberState:
    """Evaluations at every tenth step, as long as the run goes on."""
    member = MemberState("run")
    for index, loss in enumerate(losses):
        if member.is_running:
            member.record(evaluation(10 * index, loss), patience)
    return member


@given(
    losses=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=12),
    patience=st.none() | st.integers(1, 4),
)
def test_a_run_stops_after_so_many_evaluations_without_a_new_best(
    losses: list[float], patience: int | None
) -> None:
    expected = None
    for end in range(1, len(losses) + 1):
        best = losses.index(min(losses[:end]))
        if expected is None and patience is not None and end - 1 - best >= patience:
            expected = 10 * (end - 1)
    member = recorded(losses, patience)
    assert member.stopped_step == expected
    seen = losses if expected is None else losses[: expected // 10 + 1]
    assert member.best_val_loss == min(seen)
    assert member.best_step == 10 * seen.index(min(seen))


def test_bits_per_byte_are_losses_times_a_constant() -> None:
    summary = recorded([3.0, 2.0, 2.5], None).summary(20, bits_per_byte=0.5)
    assert summary["best_bits_per_byte"] == 1.0
    assert summary["final_bits_per_byte"] == 1.25
    assert recorded([3.0], None).summary(20, None)["best_bits_per_byte"] is None


def test_a_stopped_run_is_finished_and_a_diverged_one_has_no_final_loss() -> None:
    stopped = recorded([2.0, 3.0], 1).summary(50, None)
    assert (stopped["status"], stopped["steps"], stopped["stopped_step"]) == ("finished", 10, 10)
    member = recorded([2.0], None)
    member.diverged_step = 7
    diverged = member.summary(50, 0.5)
    assert (diverged["status"], diverged["steps"]) == ("diverged", 7)
    assert diverged["final_val_loss"] is diverged["final_bits_per_byte"] is None
    assert diverged["best_val_loss"] == 2.0


def test_a_run_that_diverged_before_its_first_step_has_taken_none() -> None:
    member = MemberState("run", diverged_step=0)
    summary = member.summary(50, 0.5)
    assert (summary["steps"], summary["status"], summary["best_val_loss"]) == (0, "diverged", None)


@pytest.mark.parametrize(("loss", "perplexity"), [(0.0, 1.0), (2.0, math.exp(2)), (1e4, math.inf)])
def test_perplexity_is_a_number_for_every_loss(loss: float, perplexity: float) -> None:
    assert recorded([loss], None).summary(0, None)["perplexity"] == perplexity


def test_a_state_survives_a_checkpoint() -> None:
    member = recorded([3.0, 2.0], None)
    member.measurements.append(Measurement("run", "similarity", "layer 0", 10, 0.5))
    member.heldout = evaluation(10, 2.5)
    assert MemberState.from_dict(asdict(member)) == member


def test_the_mean_training_loss_begins_anew_after_an_evaluation() -> None:
    member = MemberState("run", train_loss_sum=6.0, train_loss_steps=3)
    assert member.mean_train_loss() == pytest.approx(2.0)
    member.record(evaluation(3, 1.0), None)
    assert member.mean_train_loss() is None
