import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spacefiles import SMALL, plan_of, run_ids

from triplu_ray.errors import UserError
from triplu_ray.plan import Plan, PlannedRun
from triplu_ray.selection import chosen_lines

RATES, SEEDS = [1e-4, 3e-4, 1e-3], [101, 102]
SELECT: dict[str, Any] = {
    **SMALL,
    "select": {"key": "learning_rate", "values": RATES, "seeds": SEEDS},
}
Losses = Callable[[PlannedRun], float | None]


def is_candidate(run: PlannedRun) -> bool:
    return run.config.seed in SEEDS


def candidates(plan: Plan) -> list[PlannedRun]:
    return [run for run in plan.runs if is_candidate(run)]


def evaluated(plan: Plan) -> list[tuple[str, float, int]]:
    """Variant, learning rate and seed of the runs whose value is chosen."""
    return [
        (run.config.ffn.label, run.config.learning_rate, run.config.seed)
        for run in plan.runs
        if not is_candidate(run)
    ]


def results_of(plan: Plan, loss: Losses) -> dict[str, float | None]:
    return {run.run_id: loss(run) for run in candidates(plan)}


def at(best: Mapping[str, float]) -> Losses:
    """Lowest at each variant's best rate, whatever the seed."""
    return lambda run: abs(math.log(run.config.learning_rate / best[run.config.ffn.label]))


def test_until_something_is_known_there_are_candidates_only() -> None:
    plan = plan_of(SELECT)
    assert Counter(
        (run.config.ffn.label, run.config.learning_rate, run.config.seed) for run in plan.runs
    ) == Counter(itertools.product(["swiglu", "triplu"], RATES, SEEDS))
    assert plan.pending == 2 * 3
    assert {run.config.hidden for run in plan.runs} == {322, 242}


def test_each_variant_is_evaluated_at_its_own_best() -> None:
    plan = plan_of(SELECT)
    results = results_of(plan, at({"swiglu": 1e-3, "triplu": 3e-4}))
    later = plan_of(SELECT, results=results)
    assert candidates(later) == candidates(plan)
    assert sorted(evaluated(later)) == [
        *(("swiglu", 1e-3, seed) for seed in (1, 2, 3)),
        *(("triplu", 3e-4, seed) for seed in (1, 2, 3)),
    ]
    assert later.pending == 0


def test_a_variant_waits_for_its_own_candidates_alone() -> None:
    plan = plan_of(SELECT)
    results = results_of(plan, at({"swiglu": 1e-3, "triplu": 3e-4}))
    del results[next(run.run_id for run in plan.runs if run.config.ffn.label == "swiglu")]
    later = plan_of(SELECT, results=results)
    assert {variant for variant, *_ in evaluated(later)} == {"triplu"}
    assert later.pending == 3


def test_a_diverged_candidate_is_a_result() -> None:
    plan = plan_of(SELECT)

    def loss(run: PlannedRun) -> float | None:
        hot = run.config.learning_rate == 1e-3 and run.config.seed == 102
        return None if hot else 1.0 - run.config.learning_rate

    later = plan_of(SELECT, results=results_of(plan, loss))
    assert {rate for _, rate, _ in evaluated(later)} == {3e-4}
    everything = plan_of(SELECT, results=results_of(plan, lambda _: None))
    assert {rate for _, rate, _ in evaluated(everything)} == {1e-4}


def test_what_is_equal_but_for_the_seed_is_chosen_for_together() -> None:
    grid = {**SMALL["grid"], "gain": {"values": [1, 5], "when": {"variant": "triplu"}}}
    content = {**SELECT, "grid": {**grid, "num_layers": [1, 2]}}
    plan = plan_of(content)
    # SwiGLU, and TriPLU with two gains, at two depths
    assert len(plan.runs) == 6 * len(RATES) * len(SEEDS)
    assert plan.pending == 6 * 3

    def loss(run: PlannedRun) -> float:
        deep, high = run.config.num_layers == 2, run.row()["gain"] == 5
        return abs(run.config.learning_rate - (1e-4 if deep else 1e-3 if high else 3e-4))

    later = plan_of(content, results=results_of(plan, loss))
    assert {
        (row["num_layers"], row["gain"], row["learning_rate"])
        for row in later.rows()
        if row["seed"] not in SEEDS
    } == {
        *((2, gain, 1e-4) for gain in (None, 1.0, 5.0)),
        *((1, gain, 3e-4) for gain in (None, 1.0)),
        (1, 5.0, 1e-3),
    }
    assert chosen_lines(later.space.header.select, later.rows(), later.axes()) == [
        "swiglu num_layers=1: learning_rate 0.0003",
        "swiglu num_layers=2: learning_rate 0.0001",
        "triplu gain=1.0 num_layers=1: learning_rate 0.0003",
        "triplu gain=1.0 num_layers=2: learning_rate 0.0001",
        "triplu gain=5.0 num_layers=1: learning_rate 0.001",
        "triplu gain=5.0 num_layers=2: learning_rate 0.0001",
    ]


def test_an_alias_and_its_kind_are_chosen_for_once() -> None:
    grid = {"seed": [1, 2, 3], "variant": ["triplu", "product"]}
    plan = plan_of({**SELECT, "grid": grid, "degree": 3, "gain": 5})
    assert (len(plan.runs), plan.pending) == (len(RATES) * len(SEEDS), 3)


def test_a_seed_that_is_not_given_is_the_default() -> None:
    grid = {"variant": ["swiglu"]}
    plan = plan_of({**SELECT, "grid": grid})
    assert plan.pending == 1
    with pytest.raises(UserError, match=r"select\.seeds: expected seeds apart .* got 1 in both"):
        plan_of({**SELECT, "grid": grid}, "select.seeds=[1]")


@cache
def of_nothing() -> Plan:
    return plan_of(SELECT)


@settings(max_examples=30)
@given(st.dictionaries(st.integers(0, 11), st.none() | st.sampled_from([1.0, 1.5, 2.0])))
def test_whatever_is_known_the_runs_add_up(known: dict[int, float | None]) -> None:
    ids = [run.run_id for run in of_nothing().runs]
    plan = plan_of(SELECT, results={ids[place]: loss for place, loss in known.items()})
    assert [run.run_id for run in candidates(plan)] == ids
    chosen = evaluated(plan)
    assert len(chosen) + plan.pending == 6
    # All seeds of a variant, at one rate
    rates: dict[str, set[float]] = {}
    for variant, rate, _ in chosen:
        rates.setdefault(variant, set()).add(rate)
    assert all(len(values) == 1 for values in rates.values())
    assert Counter(variant for variant, *_ in chosen) == dict.fromkeys(rates, 3)
    # A result more takes none of them away.
    more = {ids[place]: loss for place, loss in known.items()}
    more |= {run_id: 1.0 for run_id in ids if run_id not in more}
    assert run_ids(plan) <= run_ids(plan_of(SELECT, results=more))


# What becomes of them


def test_cohorts_of_candidates_stay_whole_when_others_are_known() -> None:
    grid = {"seed": [1, 2, 3], "variant": ["triplu"], "gain": [1, 5]}
    content = {**SELECT, "grid": grid, "cohort": 5}
    plan = plan_of(content)
    results = {
        run_id: loss
        for run_id, loss in results_of(plan, lambda run: run.config.learning_rate).items()
        if run_id in {run.run_id for run in plan.runs if run.row()["gain"] == 1}
    }
    finished = frozenset(results)
    before = plan_of(content, finished=finished).cohorts
    after = plan_of(content, finished=finished, results=results)
    assert after.pending == 3
    assert after.cohorts[: len(before)] == before
    assert {run.config.seed for cohort in after.cohorts[len(before) :] for run in cohort.runs} == {
        1, 2, 3
    }  # fmt: skip


def test_runs_of_a_pair_follow_one_another_at_rates_of_their_own() -> None:
    content = {**SELECT, "grid": {"variant": ["swiglu", "triplu"], "seed": [1, 2, 3]}}
    plan = plan_of(content)
    results = results_of(plan, at({"swiglu": 1e-3, "triplu": 3e-4}))
    later = plan_of(content, finished=frozenset(results), results=results)
    order = [
        (cohort.runs[0].config.seed, cohort.runs[0].config.ffn.label) for cohort in later.cohorts
    ]
    assert order == list(itertools.product([1, 2, 3], ["swiglu", "triplu"]))


def test_any_number_that_every_run_has_can_be_chosen() -> None:
    select = {"key": "warmup_steps", "values": [0, 100], "seeds": [9]}
    plan = plan_of({**SMALL, "select": select})
    assert {run.config.warmup_steps for run in plan.runs} == {0, 100}
    assert plan.axes() == ["seed", "variant", "warmup_steps"]


def test_the_record_says_what_was_selected() -> None:
    assert plan_of(SELECT).record()["select"] == SELECT["select"]
    assert plan_of(SMALL).record()["select"] is None


def test_a_variant_may_have_values_of_its_own() -> None:
    mine = {**SELECT["select"], "values_for": {"triplu": [3e-4, 3e-3]}}
    content = {**SELECT, "select": mine}
    plan = plan_of(content)
    pairs = [*itertools.product(["swiglu"], RATES), *itertools.product(["triplu"], [3e-4, 3e-3])]
    assert Counter(
        (run.config.ffn.label, run.config.learning_rate, run.config.seed) for run in plan.runs
    ) == Counter((*pair, seed) for pair in pairs for seed in SEEDS)
    assert plan.pending == 2 * 3
    assert plan.record()["select"] == mine
    later = plan_of(content, results=results_of(plan, at({"swiglu": 1e-4, "triplu": 3e-3})))
    assert {(label, rate) for label, rate, _ in evaluated(later)} == {
        ("swiglu", 1e-4), ("triplu", 3e-3),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values_for", "message"),
    [
        ("{reglu: [1]}", r"select\.values_for\.reglu: applies to no run of the space"),
        ("{triplo: [1]}", r"select\.values_for: unknown variant 'triplo'; did you mean 'triplu'\?"),
        ("{triplu: []}", r"select\.values_for\.triplu: expected a list of at least one value"),
        ("{triplu: [-1]}", r"select\.values_for\.triplu: .* greater than 0"),
        ("{triplu: [1, 1]}", r"select\.values_for\.triplu: expected distinct values"),
        ("{triplu: 1}", r"select\.values_for\.triplu: "),
        ("[1]", r"select\.values_for: "),
    ],
)
def test_values_of_a_variant_are_checked_as_all_others(values_for: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_of(SELECT, f"select.values_for={values_for}")


def test_an_override_of_the_key_or_of_select_takes_the_place_of_the_other() -> None:
    fixed = plan_of(SELECT, "learning_rate=1e-3")
    assert (fixed.pending, run_ids(fixed)) == (0, run_ids(plan_of(SMALL, "learning_rate=1e-3")))
    axis = plan_of(SELECT, "learning_rate=[1e-4, 1e-3]")
    assert run_ids(axis) == run_ids(plan_of(SMALL, "learning_rate=[1e-4, 1e-3]"))
    plain = {**SMALL, "learning_rate": 1e-3}
    select = "select={key: learning_rate, values: [1e-4, 3e-4, 1e-3], seeds: [101, 102]}"
    assert run_ids(plan_of(plain, select)) == run_ids(plan_of(SELECT))
    assert len(plan_of(SELECT, "select.seeds=[7]").runs) == 6
    assert run_ids(plan_of(SELECT, "select=null")) == run_ids(plan_of(SMALL))


def test_a_child_selects_what_its_base_gives() -> None:
    base = {**SMALL, "learning_rate": 1e-3}
    child = {"base": "base.yaml", "select": SELECT["select"]}
    assert run_ids(plan_of(child, beside={"base.yaml": base})) == run_ids(plan_of(SELECT))
    more = {"base": "base.yaml", "select": {"values": [1e-3]}}
    assert len(plan_of(more, beside={"base.yaml": SELECT}).runs) == 2 * len(SEEDS)
    gives = {"base": "base.yaml", "learning_rate": 1e-3}
    assert plan_of(gives, beside={"base.yaml": SELECT}).pending == 0
