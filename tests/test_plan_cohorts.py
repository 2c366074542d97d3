"""Which runs of a plan are trained together, where, and with compiled code or not."""

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from spacefiles import RUNS, SMALL, plan_of, run_ids

from triplu_ray.plan import Plan
from triplu_ray.sizing import Machine


@cache
def many_runs() -> Plan:
    return plan_of(RUNS)


@settings(max_examples=50)
@given(st.data())
def test_cohorts_partition_the_missing_runs(data: st.DataObject) -> None:
    ids = sorted(run_ids(many_runs()))
    finished = frozenset(data.draw(st.lists(st.sampled_from([*ids, "of another space"]))))
    size = data.draw(st.integers(1, 50))
    plan = plan_of({**RUNS, "cohort": size}, finished=finished)
    members = [run.run_id for cohort in plan.cohorts for run in cohort.runs]
    assert sorted(members) == sorted(run_ids(plan) - finished)
    assert plan.done == finished - {"of another space"}
    assert {run.run_id for run in plan.missing} == set(members)
    for cohort in plan.cohorts:
        assert 1 <= len(cohort.runs) <= size
        assert len({run.config.cohort_key for run in cohort.runs}) == 1
        assert len({run.params for run in cohort.runs}) == 1


def test_cohorts_are_as_large_as_they_may_be() -> None:
    plan = plan_of({**RUNS, "cohort": 100})
    # swiglu, triplu and quad_prod at two depths; seeds, rates and gains share a cohort
    assert sorted(len(cohort.runs) for cohort in plan.cohorts) == [4, 4, 4, 4, 12, 12]
    assert all(len(cohort.runs) == 1 for cohort in plan_of({**RUNS, "cohort": 1}).cohorts)


def test_cohorts_are_few_and_even() -> None:
    twelve = {**SMALL, "grid": {"seed": list(range(12)), "variant": ["swiglu"]}}
    for limit, sizes in ((5, [4, 4, 4]), (7, [6, 6]), (11, [6, 6]), (12, [12]), (99, [12])):
        cohorts = plan_of({**twelve, "cohort": limit}).cohorts
        assert [len(cohort.runs) for cohort in cohorts] == sizes


def test_auto_suits_the_machine() -> None:
    plan = plan_of({**SMALL, "grid": {"seed": list(range(12)), "variant": ["swiglu", "triplu"]}})

    def sizes(machine: Machine) -> list[int]:
        return [len(cohort.runs) for cohort in plan.on(machine).cohorts]

    gpu_bytes = 80 << 30
    assert sizes(Machine(workers=2)) == [1] * 24
    assert sizes(Machine(1, gpu_bytes)) == [12, 12]
    assert sizes(Machine(2, gpu_bytes)) == [12, 12]
    assert sizes(Machine(4, gpu_bytes)) == [6, 6, 6, 6]
    assert sizes(Machine(100, gpu_bytes)) == [1] * 24
    assert plan.on(Machine(4, gpu_bytes)).runs == plan.runs
    fixed = plan_of({**SMALL, "cohort": 3})
    assert fixed.on(Machine(1, gpu_bytes)).cohorts == fixed.cohorts


@given(share=st.floats(0.0, 0.99), seeds=st.integers(1, 9), finished=st.integers(0, 18))
def test_cores_take_whole_pairs_and_no_more_than_their_share(
    share: float, seeds: int, finished: int
) -> None:
    grid = {"seed": list(range(seeds)), "variant": ["swiglu", "triplu"]}
    plan = plan_of({**SMALL, "grid": grid, "cpu_share": share})
    assert not any(cohort.on_cpu for cohort in plan.on(Machine(workers=4)).cohorts)
    done = frozenset([run.run_id for run in plan.runs][:finished])
    plan = plan_of({**SMALL, "grid": grid, "cpu_share": share}, finished=done)
    cohorts = plan.on(Machine(1, 80 << 30)).cohorts
    run_ids = [run.run_id for cohort in cohorts for run in cohort.runs]
    assert sorted(run_ids) == sorted(run.run_id for run in plan.missing)
    alone = [cohort for cohort in cohorts if cohort.on_cpu]
    assert all(len(cohort.runs) == 1 for cohort in alone)
    # Every pair costs the same here: as many as the share holds, the first ones.
    on_cpu = {run.config.seed for cohort in alone for run in cohort.runs}
    others = {run.config.seed for c in cohorts if not c.on_cpu for run in c.runs}
    assert not on_cpu & others
    assert max(on_cpu, default=-1) < int(share * seeds + 1e-9) <= min(others, default=seeds)


def test_code_is_compiled_where_all_its_cohorts_together_pay_for_it() -> None:
    space = {**SMALL, "precision": "bf16", "num_steps": 300, "eval_interval": 100}
    short = {"seed": [1], "variant": ["swiglu"]}
    long = {"seed": list(range(40)), "variant": ["triplu"]}
    for grid, expected in ((short, False), (long, True)):
        plan = plan_of({**space, "grid": grid})
        compiled = plan.compiled(Machine())
        assert compiled == frozenset(c.cohort_id for c in plan.cohorts if expected)


def test_cohort_ids_depend_on_the_members_alone() -> None:
    plan = plan_of({**RUNS, "cohort": 4})
    other = plan_of(
        {**RUNS, "cohort": 4, "name": "other", "grid": {**RUNS["grid"], "seed": [2, 1]}}
    )
    by_members = {
        frozenset(run.run_id for run in cohort.runs): cohort.cohort_id
        for each in (plan, other)
        for cohort in each.cohorts
    }
    assert len(set(by_members.values())) == len(by_members)
    again = {c.cohort_id for c in plan_of({**RUNS, "cohort": 4}).cohorts}
    assert again == {cohort.cohort_id for cohort in plan.cohorts}


def test_runs_of_a_pair_follow_one_another() -> None:
    axes = {"variant": ["swiglu", "triplu", "quad_prod"], "num_layers": [1, 2], "seed": [1, 2, 3]}
    baseline = {"variant": "swiglu", "hidden": 8}
    cohorts = plan_of({"name": "pairs", "baseline": baseline, "grid": axes}).cohorts
    settings = [cohort.runs[0].config.pair_key for cohort in cohorts]
    assert len(cohorts) == 18
    assert all(len(set(settings[i : i + 3])) == 1 for i in range(0, 18, 3))
