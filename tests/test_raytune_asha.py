"""ASHA over the evaluations of suggestions."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from fabricate import curve
from searches import content, plan_in, search_in, train
from spacefiles import plan_of

from triplu_ray.raytune.asha import StudiesAsha, stored_means
from triplu_ray.store import Store


def trial(study: str, name: str) -> Any:
    return SimpleNamespace(trial_id=name, config={"study": study})


def shown(scheduler: StudiesAsha, study: str, name: str, means: Sequence[float]) -> list[str]:
    """The decision after each evaluation, until it is to stop."""
    added = trial(study, name)
    scheduler.on_trial_add(None, added)
    decisions = []
    for count in range(1, len(means) + 1):
        decisions.append(scheduler.on_trial_result(None, added, {"means": list(means[:count])}))
        if decisions[-1] == "STOP":
            break
    return decisions


ASHA = content(pruning="asha")


def test_what_is_behind_is_stopped_at_a_rung(store: Store) -> None:
    """20 evaluations: rungs at 2, 6 and 18."""
    (study,) = plan_of(ASHA).studies
    assert study.evaluations == 20
    scheduler = StudiesAsha([study], store)
    name = study.study_id
    good, bad = [3.0 - 0.05 * place for place in range(20)], [4.0] * 20
    assert shown(scheduler, name, "a", good) == ["CONTINUE"] * 20
    assert shown(scheduler, name, "b", bad) == ["CONTINUE", "STOP"]
    late = [*good[:5], *[4.0] * 15]
    assert shown(scheduler, name, "c", late) == ["CONTINUE"] * 5 + ["STOP"]


def test_evaluations_are_shown_once_however_results_come(store: Store) -> None:
    (study,) = plan_of(ASHA).studies
    scheduler = StudiesAsha([study], store)
    shown(scheduler, study.study_id, "a", [3.0] * 20)
    resumed = trial(study.study_id, "b")
    scheduler.on_trial_add(None, resumed)
    # It goes on from a checkpoint after its third evaluation: the rung at 2 was as good as any.
    assert scheduler.on_trial_result(None, resumed, {"means": [3.0, 3.0, 9.0]}) == "CONTINUE"
    assert scheduler.on_trial_result(None, resumed, {"means": [3.0, 3.0, 9.0]}) == "CONTINUE"
    # A cohort that lacks a seed has no mean to judge by.
    assert scheduler.on_trial_result(None, resumed, {"means": None}) == "CONTINUE"


def test_studies_do_not_compete(store: Store) -> None:
    grid = {"seed": [1, 2], "variant": ["triplu", "quad_prod"]}
    first, second = plan_of({**ASHA, "grid": grid}).studies
    scheduler = StudiesAsha([first, second], store)
    shown(scheduler, first.study_id, "a", [1.0] * 20)
    assert shown(scheduler, second.study_id, "b", [4.0] * 20) == ["CONTINUE"] * 20


def test_after_an_interruption_asha_knows_what_it_knew(store: Store) -> None:
    search = search_in(store, ASHA)
    whole = search.next()
    assert whole is not None
    train(store, search, whole)
    stopped = search.next()
    assert stopped is not None
    search.stopped(stopped.number, [9.0, 9.0])
    (study,) = plan_in(store, ASHA).studies
    means = stored_means(study, study.suggestions[0], store)
    # The curve of four evaluations that fabricated runs have, its mean over both seeds.
    curves = [curve(row, 4)[1:] for row in store.read_runs().to_pylist()]
    assert means == pytest.approx(
        [sum(rows[place]["loss"] for rows in curves) / 2 for place in range(4)]
    )
    scheduler = StudiesAsha([study], store)
    behind = [means[0], 8.9]
    assert shown(scheduler, study.study_id, "next", behind) == ["CONTINUE", "STOP"]
