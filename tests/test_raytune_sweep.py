"""What surrounds Tune in a sweep: what is compiled for whom, and what it came to."""

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from searches import content
from spacefiles import SMALL, plan_of

from triplu_ray.execution import Abilities
from triplu_ray.progress import SweepProgress
from triplu_ray.raytune import sweep as run_sweep
from triplu_ray.raytune.callback import SweepCallback
from triplu_ray.raytune.record import SweepRecord
from triplu_ray.raytune.sweep import _compiled, _Rounds
from triplu_ray.sizing import Machine
from triplu_ray.store import Store

ABLE, UNABLE = Abilities({}, None, None), Abilities({}, "a C++ compiler", None)
GPUS = Machine(2, 1 << 30)


@pytest.mark.parametrize("wanted", ["auto", True, False])
@pytest.mark.parametrize("on_gpu", [ABLE, UNABLE])
@pytest.mark.parametrize("on_cores", [ABLE, UNABLE])
def test_code_is_compiled_where_there_is_a_compiler(
    wanted: str | bool, on_gpu: Abilities, on_cores: Abilities
) -> None:
    grid = {"seed": [*range(10)], "variant": ["swiglu", "triplu"]}
    space = {**SMALL, "grid": grid, "cpu_share": 0.3, "compile": wanted, "num_steps": 1_000_000}
    plan = plan_of(space).on(GPUS)
    assert {cohort.on_cpu for cohort in plan.cohorts} == {True, False}
    able = {False: on_gpu is ABLE, True: on_cores is ABLE}
    assert _compiled(plan, GPUS, [on_gpu, on_cores]) == {
        cohort.cohort_id for cohort in plan.cohorts if able[cohort.on_cpu] and wanted
    }


def test_without_helpers_all_is_as_the_workers_are() -> None:
    space = {**content(), "compile": True}
    plan = plan_of(space)
    ids = {cohort.cohort_id for cohort in plan.cohorts}
    ids |= {study.study_id for study in plan.studies}
    assert len(ids) == 3
    assert _compiled(plan, Machine(), [ABLE]) == ids
    assert _compiled(plan, Machine(), [UNABLE]) == frozenset()


@pytest.mark.parametrize("ends", [True, False, KeyboardInterrupt()])
def test_a_sweep_that_trained_nothing_itself_comes_to_its_end(
    store: Store, monkeypatch: pytest.MonkeyPatch, ends: bool | KeyboardInterrupt
) -> None:
    """Of a space of nothing but a search, whose suggestions another sweep trains."""

    def search(_: Any) -> bool:
        if isinstance(ends, KeyboardInterrupt):
            raise ends
        return ends

    module = sys.modules["triplu_ray.raytune.sweep"]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(module, "running_ray", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(module, "worker_abilities", lambda *_: [ABLE])
    monkeypatch.setattr(module, "machine_of", lambda *_: Machine())
    monkeypatch.setattr(_Rounds, "search", search)
    plan = plan_of({**content(), "grid": {"seed": [1], "variant": ["triplu"]}})
    assert plan.cohorts == ()
    outcome = run_sweep(plan, {}, store, Console(quiet=True))
    assert (outcome.trained, outcome.failed, outcome.interrupted) == (0, (), ends is not True)
    (record,) = store.read_records("sweeps")
    assert (record["trained"], record["interrupted"]) == (0, ends is not True)


def test_the_runs_that_workers_stored_are_counted_and_no_others(store: Store) -> None:
    """One of three was stored by another sweep before a worker took its cohort."""
    plan = plan_of({**SMALL, "grid": {"seed": [1, 2, 3], "variant": ["triplu"]}, "cohort": 3})
    (cohort,) = plan.cohorts
    console = Console(quiet=True)
    progress = SweepProgress(console, plan.cohorts)
    callback = SweepCallback(progress, SweepRecord(store, "small", console))
    trial: Any = SimpleNamespace(config={"cohort_id": cohort.cohort_id})
    told: dict[str, Any] = {
        "step": 1, "best_val_loss": None, "tokens_per_second": None, "busy_seconds": 1.0,
        "notes": [], "failed": [], "elsewhere": None, "unfit": None,
    }  # fmt: skip
    written = [run.run_id for run in cohort.runs[1:]]
    for ended, so_far in ((False, []), (False, written[:1]), (True, written)):
        result = {**told, "written": so_far, "ended": ended, "done": ended}
        callback.on_trial_result(1, [], trial, result)
    callback.on_trial_complete(1, [], trial)
    assert callback.written == set(written)
