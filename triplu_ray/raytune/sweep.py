"""From a plan to stored runs.

Tune sees a single axis, the cohort's id, or the suggestions of a search; the store, not Tune's own
state, says what is done.
"""

import contextlib
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ray import tune
from rich.console import Console

from triplu_ray import provenance
from triplu_ray.corpus import Corpus
from triplu_ray.execution import Abilities
from triplu_ray.plan import Plan
from triplu_ray.progress import SweepProgress
from triplu_ray.raytune.callback import SweepCallback
from triplu_ray.raytune.cluster import device_of, machine_of, running_ray, worker_abilities
from triplu_ray.raytune.trainable import CohortTrainable, SweepJob
from triplu_ray.sizing import Machine
from triplu_ray.store import Store


@dataclass(frozen=True)
class FailedCohort:
    """A cohort that Tune gave up on."""

    cohort_id: str
    run_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep came to."""

    trained: int
    """Runs stored by this sweep."""
    failed: tuple[FailedCohort, ...]
    interrupted: bool
    """Whether it was stopped before all cohorts had ended."""


def sweep(
    plan: Plan,
    corpora: Mapping[str, Corpus],
    store: Store,
    console: Console,
) -> SweepOutcome:
    """Train a plan's missing runs, then what its studies suggest; `corpora` by their fingerprint.

    Uses the cluster that `RAY_ADDRESS` names, or else starts Ray on this machine. Raises UserError
    if that cluster cannot be reached, this machine can never grant what a cohort asks for, or the
    workers' hardware lacks what the precision or compilation needs.
    """
    started_at, started = datetime.now(UTC), time.monotonic()
    can = worker_abilities(plan)
    with running_ray(plan), tempfile.TemporaryDirectory(prefix="triplu_ray-") as scratch:
        ray_start_seconds = time.monotonic() - started
        can = can or worker_abilities(plan)
        assert can is not None  # Ray is there
        machine = machine_of(plan, can)
        plan = plan.on(machine)
        suggested = [run for run in plan.missing if run.run_id in plan.suggested]
        suggested += [run for study in plan.studies for run in study.to_come]
        cohorts = list(plan.cohorts)
        with SweepProgress(console, cohorts, suggested) as progress:
            callback = SweepCallback(progress)
            trials = _Trials(plan, corpora, store, _compiled(plan, machine, can), callback, scratch)
            if cohorts:
                each = {"cohort_id": tune.grid_search([cohort.cohort_id for cohort in cohorts])}
                trials.run("cohorts", tune.TuneConfig(reuse_actors=True), each)
            interrupted = callback.num_ended < len(cohorts)
            if plan.is_searching and not interrupted:
                from triplu_ray.raytune.search import search_config

                search, tune_config = search_config(plan, store, progress)
                trials.run("search", tune_config)
                cohorts += search.cohorts
                interrupted = not search.is_finished
    for cohort_id in callback.pruned:
        store.delete_checkpoint(cohort_id)
    wanted = {run.run_id for run in plan.missing}.union(
        run.run_id for cohort in cohorts for run in cohort.runs
    )
    trained = store.finished_run_ids() & wanted
    failed = tuple(
        FailedCohort(cohort.cohort_id, run_ids, callback.failures[cohort.cohort_id])
        for cohort in cohorts
        for run_ids in [tuple(run.run_id for run in cohort.runs)]
        if cohort.cohort_id in callback.failures
    )
    store.write_record(
        f"sweeps/{started_at:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}",
        {
            "space": plan.space.header.name,
            "started_at": started_at.isoformat(),
            "wall_seconds": time.monotonic() - started,
            "ray_start_seconds": ray_start_seconds,
            "workers": callback.most_running,
            "busy_seconds": callback.busy_seconds,
            "trained": len(trained),
            "failed": [vars(cohort) for cohort in failed],
            "interrupted": interrupted,
        },
    )
    return SweepOutcome(len(trained), failed, interrupted)


def _compiled(plan: Plan, machine: Machine, can: Abilities) -> frozenset[str]:
    """Ids of the cohorts, and of the studies, that run compiled code."""
    wanted = plan.space.header.compile
    if wanted is False or can.missing_compiler:
        return frozenset()
    if wanted is True:
        cohorts = [cohort.cohort_id for cohort in plan.cohorts]
        return frozenset([*cohorts, *(study.study_id for study in plan.studies)])
    return plan.compiled(machine)


class _Trials:
    """Tune, as cohorts and suggestions are trained on it alike."""

    def __init__(
        self,
        plan: Plan,
        corpora: Mapping[str, Corpus],
        store: Store,
        compiled: frozenset[str],
        callback: SweepCallback,
        scratch: str,
    ) -> None:
        header = plan.space.header
        granted = {key: amount for key, amount in header.resources.model_dump().items() if amount}
        job = SweepJob(
            cohorts={cohort.cohort_id: cohort for cohort in plan.cohorts},
            studies={study.study_id: study for study in plan.studies},
            corpora=dict(corpora),
            space=header.name,
            store_location=store.location,
            num_threads=max(1, int(header.resources.cpu)),
            device=device_of(plan),
            compiled=compiled,
            git_sha=provenance.git_sha(),
            checkpoint_seconds=header.checkpoint_seconds,
            keep_models=header.keep_models,
        )
        trainable = tune.with_parameters(CohortTrainable, job=job)
        self._trainable = tune.with_resources(trainable, granted)
        self._max_failures = header.max_failures
        self._callback = callback
        self._scratch = scratch

    def run(
        self, name: str, tune_config: tune.TuneConfig, param_space: Mapping[str, Any] | None = None
    ) -> None:
        """All trials, until they have ended or Ctrl-C ends them."""
        tuner = tune.Tuner(
            self._trainable,
            param_space=dict(param_space or {}),
            tune_config=tune_config,
            run_config=tune.RunConfig(
                name=name,
                storage_path=self._scratch,
                verbose=0,
                callbacks=[self._callback],
                failure_config=tune.FailureConfig(max_failures=self._max_failures),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        with contextlib.suppress(KeyboardInterrupt):
            tuner.fit()
