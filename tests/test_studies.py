import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spacefiles import SMALL, plan_of, run_ids

from triplu_ray.plan import Plan, PlannedRun, PlannedStudy
from triplu_ray.search import Suggestion
from triplu_ray.sizing import Machine

GAIN: dict[str, Any] = {"gain": {"low": 1, "high": 60, "log": True}}
RATE: dict[str, Any] = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
SEARCH: dict[str, Any] = {"keys": GAIN, "num_suggestions": 3, "confirm_seeds": [11, 12]}
GRID: dict[str, Any] = {"seed": [1, 2], "variant": ["swiglu", "triplu"]}
CONTENT: dict[str, Any] = {**SMALL, "grid": GRID, "search": SEARCH}
Loss = Callable[[PlannedRun], float | None]


def content(**search: Any) -> dict[str, Any]:
    return {**CONTENT, "search": {**SEARCH, **search}}


def study_of(plan: Plan, name: str = "triplu") -> PlannedStudy:
    (found,) = (study for study in plan.studies if study.name == name)
    return found


def suggested(*values: dict[str, float]) -> tuple[Suggestion, ...]:
    return tuple(Suggestion(number, one) for number, one in enumerate(values, 1))


def gains(*values: float) -> tuple[Suggestion, ...]:
    return suggested(*({"gain": value} for value in values))


def plan_with(
    content: dict[str, Any], suggestions: Sequence[Suggestion], loss: Loss | None = None
) -> Plan:
    """The plan once all its studies had these suggestions; and losses, where they have some."""
    made = {study.study_id: tuple(suggestions) for study in plan_of(content).studies}
    plan = plan_of(content, suggestions=made)
    if loss is None:
        return plan
    results = {run.run_id: loss(run) for run in plan.runs}
    return plan_of(content, results=results, suggestions=made)


def by_gain(run: PlannedRun) -> float:
    """Lowest at a gain of 7; the seed adds its own, and the baseline is level."""
    gain = run.row()["gain"]
    return 2.0 + 0.1 * run.config.seed + (0.5 if gain is None else abs(math.log(gain / 7)))


def axes(runs: Sequence[PlannedRun]) -> list[tuple[str, float | None, int]]:
    return sorted((run.config.ffn.label, run.row()["gain"], run.config.seed) for run in runs)


# Before anything is suggested


def test_at_first_only_runs_without_a_searched_key_are_known() -> None:
    plan = plan_of(CONTENT)
    assert axes(plan.runs) == [("swiglu", None, 1), ("swiglu", None, 2)]
    study = study_of(plan)
    assert (study.seeds, study.keys, study.suggestions) == ((1, 2), ("gain",), ())
    assert plan.is_searching
    # 3 suggestions x 2 seeds; SwiGLU, the best and the paper's gain on 2 seeds
    assert plan.pending == 3 * 2 + 3 * 2
    assert {run.config.hidden for run in plan.stand_ins} == {322, 242}


def test_each_combination_but_for_the_seed_is_a_study() -> None:
    grid = {"variant": ["swiglu", "product"], "degree": [2, 3], "num_layers": [1, 2]}
    plan = plan_of({**CONTENT, "grid": {**GRID, **grid}})
    assert {study.name for study in plan.studies} == {
        f"{label} degree={degree} num_layers={layers}"
        for (label, degree), layers in itertools.product(
            [("double_prod", 2), ("triplu", 3)], [1, 2]
        )
    }
    assert len({study.study_id for study in plan.studies}) == 4
    assert all(study.seeds == (1, 2) for study in plan.studies)
    assert len(plan.runs) == 2 * 2


def test_an_alias_and_its_kind_are_one_study() -> None:
    grid = {"seed": [1], "variant": ["triplu", "product"], "degree": [3]}
    assert len(plan_of({**CONTENT, "grid": grid}).studies) == 1


def test_a_key_of_every_run_gives_the_baseline_a_study_too() -> None:
    plan = plan_of(content(keys={**GAIN, **RATE}))
    assert {study.name: study.keys for study in plan.studies} == {
        "swiglu": ("learning_rate",),
        "triplu": ("gain", "learning_rate"),
    }
    assert plan.runs == ()


def test_a_study_is_known_by_what_decides_its_suggestions() -> None:
    def study_id(content: dict[str, Any], *overrides: str) -> str:
        return study_of(plan_of(content, *overrides)).study_id

    same = study_id(CONTENT)
    assert same.startswith("triplu-")
    assert study_id(content(num_suggestions=9, concurrency=2, confirm_seeds=[])) == same
    assert study_id({**CONTENT, "grid": {"variant": ["triplu"], "seed": [2, 1]}}) == same
    others = [
        study_id(content(seed=2)),
        study_id(content(sampler="random")),
        study_id(content(pruning="asha")),
        study_id(content(keys={"gain": {"low": 1, "high": 50, "log": True}})),
        study_id(CONTENT, "seed=[1,2,3]"),
        study_id(CONTENT, "num_steps=500"),
    ]
    assert len({same, *others}) == 7


# Suggestions


def test_the_runs_of_a_suggestion_are_those_of_a_grid() -> None:
    plan = plan_with(CONTENT, gains(5.0, 8.1))
    grid = {"seed": [1, 2], "variant": ["swiglu", "triplu"], "gain": [5, 8.1]}
    assert run_ids(plan) == run_ids(plan_of({**SMALL, "grid": grid}))
    (study,) = plan.studies
    assert plan.suggested == {
        run.run_id for value in (5.0, 8.1) for run in study.runs({"gain": value})
    }
    # One is to come; suggestions are no cohorts of the plan's.
    assert plan.pending == 2 + 3 * 2
    assert axes([run for cohort in plan.cohorts for run in cohort.runs]) == [
        ("swiglu", None, 1), ("swiglu", None, 2)
    ]  # fmt: skip


def test_a_suggestion_is_judged_by_the_mean_over_its_seeds() -> None:
    (study,) = plan_with(CONTENT, gains(7.0, 14.0), by_gain).studies
    assert [study.objective(one) for one in study.suggestions] == pytest.approx(
        [2.15, 2.15 + math.log(2)]
    )
    assert study.done == list(study.suggestions)
    assert not study.is_done
    assert study.best == study.suggestions[0]


def test_a_diverged_seed_is_worse_than_any_loss() -> None:
    def loss(run: PlannedRun) -> float | None:
        return None if run.row()["gain"] == 7 and run.config.seed == 2 else 4.3

    (study,) = plan_with(CONTENT, gains(7.0, 14.0), loss).studies
    assert [study.objective(one) for one in study.suggestions] == pytest.approx(
        [2 * math.log(79), 4.3]
    )
    assert study.best == study.suggestions[1]


def test_while_a_seed_is_missing_nothing_is_said() -> None:
    plan = plan_with(CONTENT, gains(7.0))
    first, _ = study_of(plan).runs({"gain": 7.0})
    made = {study_of(plan).study_id: gains(7.0)}
    (study,) = plan_of(CONTENT, results={first.run_id: 1.0}, suggestions=made).studies
    assert (study.objective(study.suggestions[0]), study.done, study.best) == (None, [], None)


def test_the_paired_gap_is_measured_from_the_baseline() -> None:
    paired = content(objective="paired_gap")
    (study,) = plan_with(paired, gains(7.0, 14.0), by_gain).studies
    # SwiGLU's mean is 2.65.
    assert [study.objective(one) for one in study.suggestions] == pytest.approx(
        [-0.5, -0.5 + math.log(2)]
    )
    swiglu = [run.run_id for run in plan_of(paired).runs]
    assert list(study.reference) == swiglu
    (early,) = plan_of(paired).studies
    assert not early.is_ready


def test_one_that_was_stopped_counts_as_it_stood() -> None:
    stopped = Suggestion(2, {"gain": 14.0}, (4.0, 3.0))
    plan = plan_with(CONTENT, [*gains(7.0), stopped], by_gain)
    study = study_of(plan)
    assert study.objective(study.suggestions[1]) == 3.0
    assert study.best == study.suggestions[0]
    # Its runs are nobody's business any more.
    assert {gain for _, gain, _ in axes(plan.runs)} == {None, 7.0}
    assert study.line() == ("triplu: 2 of 3 suggestions done, 1 stopped early; best so far gain 7")


def test_how_far_a_study_is() -> None:
    assert study_of(plan_of(CONTENT)).line() == "triplu: 0 of 3 suggestions done"
    begun = study_of(plan_with(CONTENT, gains(7.0)))
    assert begun.line() == "triplu: 0 of 3 suggestions done, 1 begun"
    done = study_of(plan_with(CONTENT, gains(7.0, 14.0, 3.0), by_gain))
    assert done.line() == "triplu: 3 of 3 suggestions done; best gain 7"


def test_fewer_suggestions_than_there_are_ask_for_the_first() -> None:
    plan = plan_with(content(num_suggestions=1), gains(7.0, 14.0, 3.0), by_gain)
    assert len(study_of(plan).suggestions) == 1
    assert study_of(plan).is_done


# Confirmation


def test_the_best_is_confirmed_on_seeds_apart() -> None:
    plan = plan_with(CONTENT, gains(14.0, 7.0, 3.0), by_gain)
    assert not plan.is_searching
    assert plan.pending == 0
    fresh = [run for run in plan.runs if run.config.seed in (11, 12)]
    assert axes(fresh) == sorted(
        (label, gain, seed)
        for label, gain in (("swiglu", None), ("triplu", 5.0), ("triplu", 7.0))
        for seed in (11, 12)
    )
    confirmation = study_of(plan).confirmation
    assert confirmation is not None
    assert axes(confirmation.best) == [("triplu", 7.0, 11), ("triplu", 7.0, 12)]
    assert axes(confirmation.fixed) == [("triplu", 5.0, 11), ("triplu", 5.0, 12)]
    assert axes(confirmation.baseline) == [("swiglu", None, 11), ("swiglu", None, 12)]
    # Pairs follow one another, after what was known before.
    order = [(run.config.seed, run.config.ffn.label) for c in plan.cohorts for run in c.runs]
    assert [seed for seed, _ in order] == [1, 2, 11, 11, 11, 12, 12, 12]


def test_without_seeds_nothing_is_confirmed() -> None:
    plan = plan_with(content(confirm_seeds=[]), gains(14.0, 7.0, 3.0), by_gain)
    assert (plan.pending, study_of(plan).confirmation) == (0, None)
    assert {run.config.seed for run in plan.runs} == {1, 2}


def test_a_study_that_is_done_does_not_wait_for_others() -> None:
    both = {**CONTENT, "grid": {**GRID, "variant": ["swiglu", "triplu", "quad_prod"]}}
    triplu = study_of(plan_of(both))
    made = {triplu.study_id: gains(7.0, 14.0, 3.0)}
    results = {run.run_id: by_gain(run) for run in plan_of(both, suggestions=made).runs}
    plan = plan_of(both, suggestions=made, results=results)
    assert study_of(plan).confirmation is not None
    assert study_of(plan, "quad_prod").confirmation is None
    fresh = {run.config.ffn.label for run in plan.runs if run.config.seed in (11, 12)}
    assert fresh == {"swiglu", "triplu"}


def test_what_the_best_is_compared_with() -> None:
    grid = {"seed": [1], "variant": ["product"], "degree": [2, 3, 4, 5]}
    by_alias = plan_of({**CONTENT, "grid": grid})
    assert {study.name.split()[0]: study.fixed for study in by_alias.studies} == {
        "double_prod": {"gain": 1.0},
        "triplu": {"gain": 5.0},
        "quad_prod": {"gain": 25.0},
        "product_5": None,
    }
    assert study_of(plan_of(content(compare_with={"gain": 9}))).fixed == {"gain": 9}
    # The paper says nothing of a rate that goes with a gain.
    both = {**GAIN, **RATE}
    assert study_of(plan_of(content(keys=both))).fixed is None
    named = plan_of(content(keys=both, compare_with={"gain": 5, "learning_rate": 3e-4}))
    assert {study.name: study.fixed for study in named.studies} == {
        "swiglu": {"learning_rate": 3e-4},
        "triplu": {"gain": 5, "learning_rate": 3e-4},
    }


def test_a_baseline_that_is_searched_too_is_held_against_at_its_own_best() -> None:
    rates = content(keys=RATE, num_suggestions=2)
    made = suggested({"learning_rate": 1e-3}, {"learning_rate": 5e-3})

    def loss(run: PlannedRun) -> float:
        slow = run.config.learning_rate == 1e-3
        return 1.0 if slow == (run.config.ffn.label == "swiglu") else 2.0

    plan = plan_with(rates, made, loss)
    confirmation = study_of(plan).confirmation
    assert confirmation is not None
    assert {run.config.learning_rate for run in confirmation.best} == {5e-3}
    assert [(run.config.seed, run.config.learning_rate) for run in confirmation.baseline] == [
        (11, 1e-3), (12, 1e-3)
    ]  # fmt: skip
    # Runs of a pair are neighbours though their rates differ.
    order = [run.config.seed for cohort in plan.cohorts for run in cohort.runs]
    assert order == [11, 11, 12, 12]


def test_the_record_says_what_was_searched() -> None:
    plan = plan_with(CONTENT, gains(14.0, 7.0, 3.0), by_gain)
    search = plan.record()["search"]
    (study,) = search["studies"]
    assert (search["num_suggestions"], search["confirm_seeds"]) == (3, [11, 12])
    assert {key: study[key] for key in ("name", "seeds", "fixed", "suggested", "best")} == {
        "name": "triplu", "seeds": (1, 2), "fixed": {"gain": 5.0}, "suggested": 3,
        "best": {"gain": 7.0},
    }  # fmt: skip
    confirmation = study_of(plan).confirmation
    assert confirmation is not None
    assert study["confirmation"]["best"] == [run.run_id for run in confirmation.best]
    assert plan_of(SMALL).record()["search"] is None


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([2.0, 3.0, 4.0, 5.0, 6.0]), max_size=3, unique=True),
    st.lists(st.none() | st.floats(1, 4), min_size=6, max_size=6),
    st.integers(0, 6),
)
def test_whatever_is_known_the_runs_add_up(
    values: list[float], losses: list[float | None], known: int
) -> None:
    plan = plan_with(CONTENT, gains(*values))
    study = study_of(plan)
    ids = [run.run_id for one in study.suggestions for run in study.runs(one.values)]
    results = dict(list(zip(ids, losses, strict=False))[:known])
    later = plan_of(
        CONTENT, results=results, suggestions={study.study_id: tuple(study.suggestions)}
    )
    best = study_of(later).best
    # A best that is the paper's gain is confirmed and compared by the same runs.
    same = study_of(later).is_done and best is not None and best.values == {"gain": 5.0}
    assert len(later.runs) + later.pending == 2 + 3 * 2 + 3 * 2 - 2 * same
    assert run_ids(plan) <= run_ids(later)
    done = study_of(later).done
    assert [one.values["gain"] for one in done] == values[: min(known // 2, len(values))]

    def badness(suggestion: Suggestion) -> tuple[int, float]:
        finite = [one for one in study_of(later).losses(suggestion.values) or [] if one is not None]
        return -len(finite), statistics.fmean(finite or [0.0])

    assert best is None or badness(best) == min(map(badness, done))


# Of the file


def test_an_override_of_the_key_or_of_search_takes_the_place_of_the_other() -> None:
    fixed = plan_of(CONTENT, "gain=5")
    assert (fixed.studies, run_ids(fixed)) == (
        (),
        run_ids(plan_of({**SMALL, "grid": GRID}, "gain=5")),
    )
    assert plan_of(CONTENT, "gain=[1,5]").studies == ()
    assert plan_of(CONTENT, "search=null").studies == ()
    more = plan_of(CONTENT, "search.num_suggestions=5")
    assert more.pending == 5 * 2 + 3 * 2
    gain = {"base": "base.yaml", "search": SEARCH}
    plan = plan_of(gain, beside={"base.yaml": {**SMALL, "grid": {**GRID, "gain": [1, 5]}}})
    assert study_of(plan).study_id == study_of(plan_of(CONTENT)).study_id
    child = {"base": "base.yaml", "gain": 3}
    assert plan_of(child, beside={"base.yaml": CONTENT}).studies == ()


def test_code_is_compiled_where_its_suggestions_pay_for_it() -> None:
    many = plan_of(content(num_suggestions=100))
    assert study_of(many).study_id in many.compiled(Machine())
    few = plan_of(content(num_suggestions=1), "num_steps=250")
    assert few.compiled(Machine()) == frozenset()
    # Each depth is code of its own, which no other suggestion shares.
    layers = {"num_layers": {"low": 1, "high": 3}}
    deep = plan_of(content(keys=layers, num_suggestions=100), "num_steps=250")
    assert deep.compiled(Machine()) == frozenset()
