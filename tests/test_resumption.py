from pathlib import Path

import pytest
from cohorts import plan
from fabricate import curve, stored_run
from hypothesis import given
from hypothesis import strategies as st

from triplu_ray.plan import Cohort
from triplu_ray.resumption import drop, drop_useless, keep, parts_to_resume
from triplu_ray.store import Store

SEEDS = range(6)


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Cohort:
    grid = {"seed": [*SEEDS], "variant": ["triplu"]}
    return Cohort(plan(tmp_path_factory.mktemp("six"), grid=grid).runs)


def of(six: Cohort, *seeds: int) -> Cohort:
    return Cohort(tuple(six.runs[seed] for seed in seeds))


def seeds_of(parts: list[tuple[Cohort, str]]) -> list[tuple[list[int], str]]:
    return [([run.config.seed for run in part.runs], name) for part, name in parts]


def store_runs(store: Store, cohort: Cohort) -> None:
    for run in cohort.runs:
        row = stored_run(run.row(), 2.0)
        store.write_run(row, curve(row, 2))


def left(store: Store) -> set[str]:
    return {path.name for path in Path(store.location).glob("checkpoints/*")}


def names(*cohorts: Cohort) -> set[str]:
    return {f"{one.cohort_id}.{ending}" for one in cohorts for ending in ("json", "safetensors")}


cuts = st.lists(st.sets(st.sampled_from(SEEDS), min_size=1), max_size=4)


@given(before=cuts, wanted=st.permutations(SEEDS), count=st.integers(1, 6))
def test_every_run_has_one_part_and_the_newest_checkpoint_that_holds_it(
    six: Cohort,
    tmp_path_factory: pytest.TempPathFactory,
    before: list[set[int]],
    wanted: list[int],
    count: int,
) -> None:
    store = Store(str(tmp_path_factory.mktemp("store")))
    newest: dict[int, str] = {}
    for seeds in before:
        kept = of(six, *seeds)
        keep(store, kept, b"")
        newest |= dict.fromkeys(seeds, kept.cohort_id)
    parts = seeds_of(parts_to_resume(store, of(six, *wanted[:count])))
    assert sorted(seed for seeds, _ in parts for seed in seeds) == sorted(wanted[:count])
    for held, name in parts:
        assert held == [seed for seed in wanted if seed in held]
        assert {newest.get(seed) for seed in held} in ({name}, {None})
        assert held[0] in newest or name == of(six, *held).cohort_id


def test_one_without_a_record_is_its_own_cohorts(six: Cohort, store: Store) -> None:
    old = of(six, 0, 1)
    store.write_checkpoint(old.cohort_id, b"")
    assert seeds_of(parts_to_resume(store, old)) == [([0, 1], old.cohort_id)]
    one = of(six, 0)
    assert seeds_of(parts_to_resume(store, one)) == [([0], one.cohort_id)]


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b"{}", b'{"run_ids": 3}'])
def test_what_is_no_record_is_passed_over(six: Cohort, store: Store, record: bytes) -> None:
    other = of(six, 0, 1)
    keep(store, other, b"")
    store.files.write(f"checkpoints/{other.cohort_id}.json", record)
    one = of(six, 0)
    assert seeds_of(parts_to_resume(store, one)) == [([0], one.cohort_id)]
    drop_useless(store)
    assert len(left(store)) == 2


def test_what_nobody_goes_on_from_is_cleared_away(six: Cohort, store: Store) -> None:
    stored, half, pruned, mixed, aside = (of(six, *seeds) for seeds in (
        (0, 1), (1, 2), (3, 4), (0, 3), (1,)
    ))  # fmt: skip
    for cohort in (stored, half, pruned, mixed, aside):
        keep(store, cohort, b"")
    store.set_aside_checkpoint(aside.cohort_id, "for a test")
    (damaged,) = left(store) - names(stored, half, pruned, mixed, aside)
    store_runs(store, stored)
    drop_useless(store)
    assert left(store) == names(half, pruned, mixed) | {damaged}
    drop_useless(store, {run.run_id for run in pruned.runs})
    assert left(store) == names(half) | {damaged}
    drop(store, half.cohort_id)
    assert left(store) == {damaged}


def test_an_empty_store_has_nothing_to_clear(store: Store) -> None:
    drop_useless(store)
    drop(store, "none")
    assert left(store) == set()
