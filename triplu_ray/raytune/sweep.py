"""From a plan to stored runs.

Tune sees a single axis, the cohort's id, or the suggestions of a search; the store, not Tune's own
state, says what is done.
"""

import math
import os
import random
import tempfile
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ray import tune
from rich.console import Console

from triplu_ray import provenance
from triplu_ray.corpus import Corpus
from triplu_ray.errors import UserError
from triplu_ray.execution import Abilities
from triplu_ray.leases import claims_on, clear_lapsed, delete_claims_of
from triplu_ray.plan import Plan
from triplu_ray.progress import SweepProgress
from triplu_ray.raytune.callback import SweepCallback
from triplu_ray.raytune.cluster import (
    granted_there,
    kinds_of_shares,
    machine_of,
    running_ray,
    worker_abilities,
)
from triplu_ray.raytune.nodes import check_nodes
from triplu_ray.raytune.record import FailedCohort, SweepRecord
from triplu_ray.raytune.trainable import CohortTrainable, SweepJob
from triplu_ray.resumption import drop_useless
from triplu_ray.sizing import Machine, granted_here
from triplu_ray.space import Granted
from triplu_ray.store import Store

POLL_SECONDS = 2.0
"""Between looks at what another sweep has left."""

TELL_SECONDS = 30.0


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

    Uses the cluster that `RAY_ADDRESS` names, or else starts Ray on this machine. What another
    sweep is at is left to it, and taken up if it is left. Raises UserError if that cluster cannot
    be reached or has nodes with other code or without the store, this machine can never grant what
    a cohort asks for, or the workers' hardware lacks what the precision or compilation needs.
    """
    header, origin = plan.space.header, plan.space.origin
    granted = None if "RAY_ADDRESS" in os.environ else granted_here(header.resources)
    can = granted and worker_abilities(plan, granted)
    record = SweepRecord(store, header.name, console)
    with (
        running_ray(origin, granted),
        tempfile.TemporaryDirectory(prefix="triplu_ray-") as scratch,
    ):
        record.begin()
        code = provenance.code()
        if granted is None or can is None:
            granted = granted_there(origin, header.resources, console)
            check_nodes(store, record.path, code, kinds_of_shares(plan, granted))
            can = worker_abilities(plan, granted)
        machine = machine_of(granted, can[0])
        plan, interrupted = plan.on(machine), False
        job = SweepJob(
            cohorts={cohort.cohort_id: cohort for cohort in plan.cohorts},
            corpora=dict(corpora),
            space=header.name,
            store_location=store.location,
            num_threads=max(1, int(granted.cpu)),
            device=granted.device,
            compiled=_compiled(plan, machine, can),
            git_sha=provenance.git_sha(),
            checkpoint_seconds=header.checkpoint_seconds,
            keep_models=header.keep_models,
            sweep_id=record.sweep_id,
            marker=record.path,
            code=code,
            studies={study.study_id: study for study in plan.studies},
            gpu_bytes=machine.gpu_bytes,
        )
        suggested = [run for run in plan.missing if run.run_id in plan.suggested]
        suggested += [run for study in plan.studies for run in study.to_come]
        with SweepProgress(console, plan.cohorts, suggested) as progress:
            callback = SweepCallback(progress, record)
            rounds = _Rounds(plan, granted, job, store, callback, progress, scratch)
            try:
                interrupted = not (rounds.train() and rounds.search())
            except KeyboardInterrupt:
                interrupted = True
            delete_claims_of(store, record.sweep_id)
            clear_lapsed(store)
    drop_useless(store, callback.pruned)
    record.end(len(callback.written), interrupted)
    if callback.unfit:
        raise UserError(f"{callback.unfit}; what was running is kept in checkpoints")
    return SweepOutcome(len(callback.written), tuple(record.failed), interrupted)


class _Rounds:
    """Tune's turns over a plan's cohorts: first those that no other sweep is at, then the rest."""

    def __init__(
        self,
        plan: Plan,
        granted: Granted,
        job: SweepJob,
        store: Store,
        callback: SweepCallback,
        progress: SweepProgress,
        scratch: str,
    ) -> None:
        self._granted, self._job, self._store = granted, job, store
        self._callback, self._progress, self._scratch = callback, progress, scratch
        self._plan, self._todo = plan, list(plan.cohorts)

    def train(self) -> bool:
        """Until every cohort has ended, here or elsewhere; False if it was interrupted."""
        told = -math.inf
        while self._todo:
            taken = clear_lapsed(self._store, without=self._job.sweep_id)
            free = [cohort for cohort in self._todo if not claims_on(cohort, taken)]
            if len(free) < len(self._todo) and time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                for claim in {c for cohort in self._todo for c in claims_on(cohort, taken)}:
                    self._progress.told(f"in another sweep: {claim}")
            if free:
                each = {"cohort_id": tune.grid_search([cohort.cohort_id for cohort in free])}
                self._tuner(tune.TuneConfig(reuse_actors=True), each).fit()
                ended = self._callback.ended
                if not {cohort.cohort_id for cohort in free} <= ended | self._callback.elsewhere:
                    return False
                self._callback.elsewhere.clear()
                self._todo = [cohort for cohort in self._todo if cohort.cohort_id not in ended]
            self._leave_out_finished()
            if self._todo:
                _pause()
        return True

    def search(self) -> bool:
        """Until every study has its suggestions; False if it was interrupted."""
        if not self._plan.is_searching:
            return True
        from triplu_ray.raytune.search import search_config

        search, tune_config = search_config(self._plan, self._store, self._progress)
        while search.begin_turn():
            self._tuner(tune_config, {}).fit()
            if not search.is_finished:
                return False
            self._callback.elsewhere.clear()
            while search.is_left_to_others:
                _pause()
                search.look_again(clear_lapsed(self._store, without=self._job.sweep_id))
        return True

    def _leave_out_finished(self) -> None:
        """Those that remain are not trained here: what is finished of them, others have done."""
        run_ids = [run.run_id for cohort in self._todo for run in cohort.runs]
        finished = self._store.finished_among(run_ids)
        for cohort in [*self._todo]:
            if finished.issuperset(run.run_id for run in cohort.runs):
                self._todo.remove(cohort)
                self._progress.finished(cohort.cohort_id, " in another sweep")

    def _tuner(self, tune_config: tune.TuneConfig, param_space: dict[str, Any]) -> tune.Tuner:
        trainable = tune.with_parameters(CohortTrainable, job=self._job)
        # It travels with the trainable: ids, not cohorts.
        on_cpu = frozenset(cohort.cohort_id for cohort in self._plan.cohorts if cohort.on_cpu)
        share = partial(_share, self._granted, on_cpu)
        return tune.Tuner(
            tune.with_resources(trainable, share),
            param_space=param_space,
            tune_config=tune_config,
            run_config=tune.RunConfig(
                name=uuid.uuid4().hex,
                storage_path=self._scratch,
                verbose=0,
                callbacks=[self._callback],
                failure_config=tune.FailureConfig(
                    max_failures=self._plan.space.header.max_failures
                ),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )


def _share(
    granted: Granted, on_cpu: Collection[str], config: Mapping[str, Any]
) -> tune.PlacementGroupFactory:
    """What Tune reserves for a trial; `on_cpu` are ids of cohorts."""
    cpu, gpu = granted
    with_gpu = gpu and config["cohort_id"] not in on_cpu
    return tune.PlacementGroupFactory([{"CPU": cpu} | ({"GPU": gpu} if with_gpu else {})])


def _pause() -> None:
    """Two sweeps that gave way to one another should not meet again."""
    time.sleep(POLL_SECONDS * random.uniform(0.5, 1.5))


def _compiled(plan: Plan, machine: Machine, can: Sequence[Abilities]) -> frozenset[str]:
    """Ids of the cohorts, and of the studies, that run compiled code.

    `can` says what the workers can do: with GPUs, if there are any, and at last on cores alone.
    """
    wanted = plan.space.header.compile
    if wanted is False:
        return frozenset()
    on_cpu = {cohort.cohort_id: cohort.on_cpu for cohort in plan.cohorts}
    on_cpu |= {study.study_id: False for study in plan.studies}
    worth = on_cpu.keys() if wanted is True else plan.compiled(machine)
    lacking = {True: can[-1].missing_compiler, False: can[0].missing_compiler}
    return frozenset(name for name in worth if not lacking[on_cpu[name]])
