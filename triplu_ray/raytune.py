"""Sweeps on Ray Tune: one trial trains one cohort. The only file that imports ray.

Tune sees a single axis, the cohort's id; the store, not Tune's own state, says what is done.
"""

import contextlib
import json
import logging
import os
import socket
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new engine prints even when told not to
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # the store holds the results

import ray
import torch
from ray import tune
from ray.tune.experiment import Trial
from rich.console import Console

from triplu_ray import provenance
from triplu_ray.corpus import Corpus
from triplu_ray.environment import worker_environment
from triplu_ray.errors import UserError
from triplu_ray.execution import Abilities, abilities
from triplu_ray.plan import Cohort, Plan
from triplu_ray.progress import SweepProgress
from triplu_ray.sizing import Machine
from triplu_ray.store import Store
from triplu_ray.train import CohortTrainer, train_cohort


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
    """Train a plan's missing runs; `corpora` by their fingerprint.

    Uses the cluster that `RAY_ADDRESS` names, or else starts Ray on this machine. Raises UserError
    if that cluster cannot be reached, this machine can never grant what a cohort asks for, or the
    workers' hardware lacks what the precision or compilation needs.
    """
    started_at, started = datetime.now(UTC), time.monotonic()
    with _running_ray(plan), tempfile.TemporaryDirectory(prefix="triplu_ray-") as scratch:
        ray_start_seconds = time.monotonic() - started
        can = _abilities(plan)
        machine = Machine(_num_workers(plan), can.gpu_bytes)
        plan = plan.on(machine)
        compiled = _compiled_cohorts(plan, machine, can)
        interrupted = False
        with SweepProgress(console, plan.cohorts) as progress:
            callback = _Callback(progress)
            tuner = _tuner(plan, corpora, store, compiled, callback, scratch)
            try:
                tuner.fit()
            except KeyboardInterrupt:
                interrupted = True
    trained = store.finished_run_ids() & {run.run_id for run in plan.missing}
    failed = tuple(
        FailedCohort(cohort.cohort_id, run_ids, callback.failures[cohort.cohort_id])
        for cohort in plan.cohorts
        for run_ids in [tuple(run.run_id for run in cohort.runs)]
        if cohort.cohort_id in callback.failures
    )
    ended = callback.finished | callback.failures.keys()
    interrupted = interrupted or len(ended) < len(plan.cohorts)
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


@contextlib.contextmanager
def _running_ray(plan: Plan) -> Iterator[None]:
    """Ray, quiet: connected to RAY_ADDRESS, or started here and stopped at the end."""
    resources = plan.space.header.resources
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    warnings.filterwarnings("ignore", module="ray")
    if address:
        _check_reachable(address)
    try:
        ray.init(
            address=address or "local",
            runtime_env={"env_vars": worker_environment()},
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            **options,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = f"RAY_ADDRESS={address}: no Ray cluster answers" if address else "Ray did not start"
        raise UserError(f"{where}: {reason}") from error
    try:
        if not address:
            there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            for key, asked in (("CPU", resources.cpu), ("GPU", resources.gpu)):
                if asked > there.get(key, 0):
                    raise UserError(
                        f"{plan.space.origin}: resources.{key.lower()}: expected at most what this "
                        f"machine has ({there.get(key, 0):g}), got {asked:g}"
                    )
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes; a port that nobody listens on is known at once."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError as error:
            raise UserError(
                f"RAY_ADDRESS={address}: no Ray cluster answers there: {error}"
            ) from error


def _abilities(plan: Plan) -> Abilities:
    """What the workers' hardware can do; UserError if that is less than a precision needs."""
    resources = plan.space.header.resources
    precisions = sorted({run.config.precision for run in plan.missing})
    device = _device(plan)
    if os.environ.get("RAY_ADDRESS") or resources.gpu:
        remote = ray.remote(num_cpus=resources.cpu, num_gpus=resources.gpu)(abilities)
        can: Abilities = ray.get(remote.remote(precisions, device))
    else:
        can = abilities(precisions, device)
    for precision, units in can.missing_units.items():
        raise UserError(f"{plan.space.origin}: precision: {precision} needs {units}")
    share = min(1.0, resources.gpu)
    return replace(can, gpu_bytes=can.gpu_bytes and int(share * can.gpu_bytes))


def _device(plan: Plan) -> str:
    return "cuda" if plan.space.header.resources.gpu else "cpu"


def _num_workers(plan: Plan) -> int:
    """How many cohorts the cluster, as large as it is now, trains at a time."""
    resources = plan.space.header.resources
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    asked = {"CPU": resources.cpu, "GPU": resources.gpu}
    return max(1, min(int(there.get(key, 0) / share) for key, share in asked.items() if share))


def _compiled_cohorts(plan: Plan, machine: Machine, can: Abilities) -> frozenset[str]:
    wanted = plan.space.header.compile
    if wanted is True and can.missing_compiler:
        raise UserError(f"{plan.space.origin}: compile: on needs {can.missing_compiler}")
    if wanted is False or can.missing_compiler:
        return frozenset()
    if wanted is True:
        return frozenset(cohort.cohort_id for cohort in plan.cohorts)
    return plan.compiled_cohorts(machine)


def _tuner(
    plan: Plan,
    corpora: Mapping[str, Corpus],
    store: Store,
    compiled: frozenset[str],
    callback: "_Callback",
    scratch: str,
) -> tune.Tuner:
    header = plan.space.header
    granted = {key: amount for key, amount in header.resources.model_dump().items() if amount}
    job = SweepJob(
        cohorts={cohort.cohort_id: cohort for cohort in plan.cohorts},
        corpora=dict(corpora),
        space=header.name,
        store_location=store.location,
        num_threads=max(1, int(header.resources.cpu)),
        device=_device(plan),
        compiled=compiled,
        git_sha=provenance.git_sha(),
        checkpoint_seconds=header.checkpoint_seconds,
    )
    return tune.Tuner(
        tune.with_resources(tune.with_parameters(CohortTrainable, job=job), granted),
        param_space={"cohort_id": tune.grid_search(list(job.cohorts))},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=scratch,
            verbose=0,
            callbacks=[callback],
            failure_config=tune.FailureConfig(max_failures=header.max_failures),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )


@dataclass(frozen=True)
class SweepJob:
    """What every worker needs; it travels once, through Ray's object store."""

    cohorts: Mapping[str, Cohort]
    corpora: Mapping[str, Corpus]
    space: str
    store_location: str
    num_threads: int
    device: str
    compiled: frozenset[str]
    """Ids of the cohorts that run compiled code."""
    git_sha: str | None
    checkpoint_seconds: float


class CohortTrainable(tune.Trainable):
    """Trains one cohort in a worker process: a step is what lies between two signs of life."""

    _reused = False

    def setup(self, config: dict[str, Any], job: "SweepJob | None" = None) -> None:
        """Take the job, build the cohort's models, or go on from their checkpoint."""
        assert job is not None  # with_parameters always passes it
        self._job = job
        self._store = Store(job.store_location)
        torch.set_num_threads(job.num_threads)
        self._begin(config["cohort_id"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next cohort in the same process."""
        self._reused = True
        self._begin(new_config["cohort_id"])
        return True

    def _begin(self, cohort_id: str) -> None:
        self._began = time.monotonic()
        self._age_at_begin = 0.0 if self._reused else provenance.process_age()
        self._start_seconds: float | None = None
        self._cohort = self._job.cohorts[cohort_id]
        corpus = self._job.corpora[str(self._cohort.runs[0].corpus.sha256)]
        compiled = cohort_id in self._job.compiled
        self._trainer = CohortTrainer(self._cohort, corpus, self._job.device, compiled=compiled)
        checkpoint = self._store.read_checkpoint(cohort_id)
        if checkpoint is not None:
            self._trainer.restore(checkpoint)
        self._first_step = self._trainer.step
        self._trainer.prepare()
        self._stored = False
        self._events = train_cohort(
            self._trainer, save=self._save, save_seconds=self._job.checkpoint_seconds
        )

    def step(self) -> dict[str, Any]:
        """Train until there is something to tell; the last step stores the runs."""
        if self._start_seconds is None:
            self._start_seconds = self._age_at_begin + time.monotonic() - self._began
        event = next(self._events, None)
        if event is None:
            self._write_runs()
        trainer = self._trainer
        return {
            "step": trainer.step,
            "best_val_loss": event.best_val_loss if event else None,
            "tokens_per_second": event.tokens_per_second if event else None,
            "busy_seconds": time.monotonic() - self._began,
            "done": event is None,
        }

    def cleanup(self) -> None:
        """Keep what an interrupted cohort has reached, if it was here that it was reached."""
        if not self._stored and self._trainer.step > self._first_step:
            self._save(self._trainer.checkpoint())

    def _save(self, checkpoint: bytes) -> None:
        self._store.write_checkpoint(self._cohort.cohort_id, checkpoint)

    def _write_runs(self) -> None:
        job, runs = self._job, self._cohort.runs
        rows = zip(runs, self._trainer.summaries(), self._trainer.members, strict=True)
        for run, summary, member in rows:
            planned = run.row()
            row = {
                **planned,
                **summary,
                "cohort_id": self._cohort.cohort_id,
                "space": job.space,
                "config": json.dumps(planned["config"]),
                "corpus_sha256": run.corpus.sha256,
                "start_seconds": self._start_seconds,
                "peak_memory_mib": provenance.peak_memory_mib(),
                "git_sha": job.git_sha,
                "versions": json.dumps(provenance.versions()),
                "hardware": provenance.hardware(
                    job.device, job.num_threads, len(runs), compiled=self._trainer.compiled
                ),
                "finished_at": datetime.now(UTC),
            }
            self._store.write_run(row, [vars(evaluation) for evaluation in member.evaluations])
        self._store.delete_checkpoint(self._cohort.cohort_id)
        self._stored = True


class _Callback(tune.Callback):
    """Hands Tune's events to the display and keeps what the outcome needs."""

    def __init__(self, progress: SweepProgress) -> None:
        self._progress = progress
        self._running: dict[str, float] = {}
        self.finished: set[str] = set()
        self.failures: dict[str, str] = {}
        self.busy_seconds = 0.0
        self.most_running = 0

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks for a restore, which is never asked of it

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self._running[cohort_id] = 0.0
        self.most_running = max(self.most_running, len(self._running))
        self._progress.started(cohort_id)

    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self._running[cohort_id] = result["busy_seconds"]
        if not result["done"]:
            self._progress.reached(
                cohort_id, result["step"], result["best_val_loss"], result["tokens_per_second"]
            )

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self.busy_seconds += self._running.pop(cohort_id, 0.0)
        self.finished.add(cohort_id)
        self._progress.finished(cohort_id)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self.busy_seconds += self._running.pop(cohort_id, 0.0)
        self.failures[cohort_id] = _reason(trial)
        self._progress.failed(cohort_id, self.failures[cohort_id])

    def on_trial_recover(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self.busy_seconds += self._running.pop(cohort_id, 0.0)
        self._progress.retried(cohort_id, _reason(trial))


def _reason(trial: Trial) -> str:
    """Why a trial failed, in one line: the end of the remote traceback, the exception itself."""
    if trial.error_file is None:
        return "no reason given"
    text = Path(trial.error_file).read_text(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()][-1]
