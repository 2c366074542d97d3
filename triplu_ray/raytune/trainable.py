"""A worker: trains cohorts, stores their runs."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from ray import tune

from triplu_ray import provenance
from triplu_ray.corpus import Corpus
from triplu_ray.plan import Cohort, PlannedRun
from triplu_ray.search import mean_losses
from triplu_ray.selected import examine_selected, model_bytes
from triplu_ray.store import Store
from triplu_ray.studies import Study
from triplu_ray.train import CohortTrainer, train_cohort


@dataclass(frozen=True)
class SweepJob:
    """What every worker needs; it travels once, through Ray's object store."""

    cohorts: Mapping[str, Cohort]
    studies: Mapping[str, Study[PlannedRun]]
    corpora: Mapping[str, Corpus]
    space: str
    store_location: str
    num_threads: int
    device: str
    compiled: frozenset[str]
    """Ids of the cohorts, and of the studies, that run compiled code."""
    git_sha: str | None
    checkpoint_seconds: float
    keep_models: bool

    def cohort(self, config: Mapping[str, Any]) -> Cohort:
        """That of a trial: by its id, or by the study and the values that were suggested for it.

        A suggestion may name fewer `seeds` than its study has: those that are not stored yet.
        """
        if "study" not in config:
            return self.cohorts[config["cohort_id"]]
        study = self.studies[config["study"]]
        cohort = Cohort(tuple(study.runs(config["values"], config["seeds"])))
        assert cohort.cohort_id == config["cohort_id"]
        return cohort


class CohortTrainable(tune.Trainable):
    """Trains one cohort in a worker process: a step is what lies between two signs of life."""

    _reused = False

    def setup(self, config: dict[str, Any], job: "SweepJob | None" = None) -> None:
        """Take the job, build the cohort's models, or go on from their checkpoint."""
        assert job is not None  # with_parameters always passes it
        self._job = job
        self._store = Store(job.store_location)
        torch.set_num_threads(job.num_threads)
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next cohort in the same process."""
        self._reused = True
        self._begin(new_config)
        return True

    def _begin(self, config: Mapping[str, Any]) -> None:
        self._began = time.monotonic()
        self._age_at_begin = 0.0 if self._reused else provenance.process_age()
        self._start_seconds: float | None = None
        self._study = self._job.studies.get(config.get("study", ""))
        self._cohort = self._job.cohort(config)
        corpus = self._job.corpora[str(self._cohort.runs[0].corpus.sha256)]
        compiled = not self._job.compiled.isdisjoint({config["cohort_id"], config.get("study")})
        self._trainer = CohortTrainer(self._cohort, corpus, self._job.device, compiled=compiled)
        checkpoint = self._store.read_checkpoint(self._cohort.cohort_id)
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
            "means": self._means(),
            "stored": event is None,
            "done": event is None,
        }

    def _means(self) -> list[float] | None:
        """`mean_losses` of a suggestion; None of other cohorts, and while seeds of it lack here."""
        study, members = self._study, self._trainer.members
        if study is None or len(members) < len(study.seeds):
            return None
        losses = [
            ([row.loss for row in member.evaluations], member.diverged_step is not None)
            for member in members
        ]
        return mean_losses(losses, study.worst)

    def cleanup(self) -> None:
        """Keep what an interrupted cohort has reached, if it was here that it was reached."""
        if not self._stored and self._trainer.step > self._first_step:
            self._save(self._trainer.checkpoint())

    def _save(self, checkpoint: bytes) -> None:
        self._store.write_checkpoint(self._cohort.cohort_id, checkpoint)

    def _write_runs(self) -> None:
        job, runs = self._job, self._cohort.runs
        corpus = job.corpora[str(runs[0].corpus.sha256)]
        examine_selected(self._trainer, corpus)
        if job.keep_models:
            for index, run in enumerate(runs):
                content = model_bytes(self._trainer, index, corpus.vocab_size)
                self._store.write_model(run.run_id, content)
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
            evals = [*member.evaluations, *([member.heldout] if member.heldout else [])]
            self._store.write_run(row, [*map(vars, evals)], [*map(vars, member.measurements)])
        self._store.delete_checkpoint(self._cohort.cohort_id)
        self._stored = True
