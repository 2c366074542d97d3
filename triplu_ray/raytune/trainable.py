"""A worker: trains cohorts, stores their runs."""

import gc
import itertools
import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import torch
from ray import tune

from triplu_ray import provenance
from triplu_ray.checkpoint import DamagedCheckpointError
from triplu_ray.corpus import Corpus
from triplu_ray.errors import UserError
from triplu_ray.leases import Claim, Lease
from triplu_ray.plan import Cohort, PlannedStudy, suggested_cohort
from triplu_ray.raytune.nodes import complaint
from triplu_ray.resumption import drop, drop_useless, keep, parts_to_resume
from triplu_ray.search import mean_losses
from triplu_ray.selected import examine_selected, model_bytes
from triplu_ray.sizing import divisors, micro_batches
from triplu_ray.store import Store
from triplu_ray.train import CohortTrainer, Progress, train_cohort


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
    """Ids of the cohorts, and of the studies, that run compiled code."""
    git_sha: str | None
    checkpoint_seconds: float
    keep_models: bool
    sweep_id: str
    marker: str
    """A file that the driver wrote into the store: who does not see it has another store."""
    code: Mapping[str, str]
    """What the driver runs: `provenance.code`."""
    studies: Mapping[str, PlannedStudy] = field(default_factory=dict)
    gpu_bytes: int | None = None
    """Memory granted to a worker on its GPU, as the driver knows it; None on a CPU."""

    def device_of(self, cohort: Cohort) -> str:
        """Where a cohort is trained."""
        return "cpu" if cohort.on_cpu else self.device

    def cohort(self, config: Mapping[str, Any]) -> Cohort:
        """That of a trial: by its id, or by the values that were suggested for a study."""
        if "study" not in config:
            return self.cohorts[config["cohort_id"]]
        cohort = suggested_cohort(self.studies[config["study"]], config["values"])
        assert cohort.cohort_id == config["cohort_id"]
        return cohort


class CohortTrainable(tune.Trainable):
    """Trains one cohort in a worker process: a step is what lies between two signs of life.

    The store's errors and a GPU's full memory end a cohort and not the process: they are part of
    the last result, since Tune's answer, the same thing again, is of no use then.
    """

    _reused = False

    def setup(self, config: dict[str, Any], job: "SweepJob | None" = None) -> None:
        """Take the job and the first cohort."""
        assert job is not None  # with_parameters always passes it
        self._job = job
        self._notes: list[str] = []
        self._store = Store(job.store_location, tell=self._notes.append)
        torch.set_num_threads(job.num_threads)
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next cohort in the same process."""
        self._reused = True
        self._take(new_config)
        return True

    def _take(self, config: Mapping[str, Any]) -> None:
        self._began = time.monotonic()
        self._age_at_begin = 0.0 if self._reused else provenance.process_age()
        self._start_seconds: float | None = None
        self._trainer: CohortTrainer | None = None
        self._lease: Lease | None = None
        self._written: list[str] = []
        self._failed: list[dict[str, Any]] = []
        self._elsewhere: Claim | None = None
        self._unfit: str | None = None
        self._study = self._job.studies.get(config.get("study", ""))
        names = {config["cohort_id"], config.get("study")}
        self._compiled = not names.isdisjoint(self._job.compiled)
        self._micro_batches = 0
        self._events = self._trial(self._job.cohort(config))

    def step(self) -> dict[str, Any]:
        """Train until there is something to tell; the last step stores the runs."""
        try:
            return next(self._events)
        except Exception:
            # Who knows how far an update had come: the last checkpoint is exact.
            self._trainer = None
            raise

    def cleanup(self) -> None:
        """Keep what an interrupted cohort has reached, if it was here that it was reached."""
        trainer = self._trainer
        if trainer is not None and trainer.step > self._first_step:
            self._save(trainer.checkpoint())
        if self._lease is not None:
            self._lease.release()

    def _trial(self, cohort: Cohort) -> Iterator[dict[str, Any]]:
        """What Tune hears of a cohort."""
        try:
            if why := complaint(self._store, self._job.marker, self._job.code):
                self._unfit = f"node {socket.gethostname()}: {why}"
            else:
                yield from self._train_leased(cohort)
        except UserError as error:
            self._give_up(cohort, str(error))
        yield self._result(ended=True)

    def _train_leased(self, cohort: Cohort) -> Iterator[dict[str, Any]]:
        """Train a cohort unless another sweep is at it."""
        self._lease = lease = Lease(self._store, self._job.sweep_id, self._job.space, cohort)
        self._elsewhere = lease.acquire()
        if self._elsewhere:
            return
        try:
            yield from self._train_parts(cohort)
        finally:
            lease.release()
            self._elsewhere = lease.lost_to

    def _train_parts(self, cohort: Cohort) -> Iterator[dict[str, Any]]:
        """Train a cohort whole, or in halves where its members are too many for the GPU."""
        # Another sweep may have finished some since this one planned.
        finished = self._store.finished_among([run.run_id for run in cohort.runs])
        unfinished = tuple(run for run in cohort.runs if run.run_id not in finished)
        # In the parts that their checkpoints make of them, one after the other.
        left = replace(cohort, runs=unfinished)
        parts = parts_to_resume(self._store, left) if unfinished else []
        while parts and not (self._lease and self._lease.lost_to):
            (whole, checkpoint), out_of_memory = parts.pop(0), False
            try:
                yield from self._train(whole, checkpoint)
            except torch.OutOfMemoryError as error:
                out_of_memory = len(whole.runs) > 1 or self._split_batch(whole)
                if not out_of_memory:
                    self._give_up(whole, f"out of GPU memory: {' '.join(str(error).split())}")
            except UserError as error:
                self._give_up(whole, str(error))
            self._trainer = None
            if out_of_memory:
                # Only here, where no exception holds the cohort's tensors any more.
                gc.collect()
                torch.cuda.empty_cache()
                halves = self._halved(whole) if len(whole.runs) > 1 else [whole]
                smaller = (parts_to_resume(self._store, half) for half in halves)
                parts = [*itertools.chain.from_iterable(smaller), *parts]

    def _split_batch(self, run: Cohort) -> bool:
        """Let what follows work on a batch in more parts, if it can be cut further."""
        config = run.runs[0].config
        parts = [] if config.ffn.draws_noise else divisors(config.batch_size)
        more = [n for n in parts if n > self._micro_batches]
        if more:
            self._micro_batches = more[0]
            self._notes.append(
                f"{run.description}: out of GPU memory; going on with its batch in {more[0]} parts"
            )
        return bool(more)

    def _halved(self, whole: Cohort) -> list[Cohort]:
        """Two cohorts of half the members."""
        middle = len(whole.runs) // 2
        halves = [replace(whole, runs=runs) for runs in (whole.runs[:middle], whole.runs[middle:])]
        self._notes.append(
            f"{whole.description}: out of GPU memory with {len(whole.runs)} members; going on with "
            f"{len(halves[0].runs)} and {len(halves[1].runs)}, one after the other"
        )
        return halves

    def _train(self, cohort: Cohort, checkpoint: str) -> Iterator[dict[str, Any]]:
        self._cohort = cohort
        self._trainer = trainer = self._prepared(cohort, checkpoint)
        self._first_step = trainer.step
        trainer.prepare()
        if self._start_seconds is None:
            self._start_seconds = self._age_at_begin + time.monotonic() - self._began
        events = train_cohort(trainer, save=self._save, save_seconds=self._job.checkpoint_seconds)
        for event in events:
            assert self._lease is not None
            self._lease.step = trainer.step
            yield self._result(event)
            if self._lease.lost_to:
                return
        reached = trainer.checkpoint()
        self._trainer = None  # its parameters are those of the best steps now
        try:
            self._write_runs(cohort, trainer)
        except Exception:
            self._save(reached)
            raise
        drop(self._store, cohort.cohort_id)
        if checkpoint != cohort.cohort_id:
            drop_useless(self._store)

    def _prepared(self, cohort: Cohort, checkpoint: str) -> CohortTrainer:
        """The cohort's models as they begin, or as a checkpoint, by its name, has them."""
        corpus = self._job.corpora[str(cohort.runs[0].corpus.sha256)]
        device, config = self._job.device_of(cohort), cohort.runs[0].config
        gpu_bytes = None if cohort.on_cpu else self._job.gpu_bytes
        estimated = micro_batches(config, corpus.vocab_size, gpu_bytes)
        self._micro_batches = max(self._micro_batches, estimated)
        trainer = CohortTrainer(
            cohort, corpus, device, compiled=self._compiled, micro_batches=self._micro_batches
        )
        content = self._store.read_checkpoint(checkpoint)
        if content is not None:
            try:
                trainer.restore(content)
            except DamagedCheckpointError as error:
                self._store.set_aside_checkpoint(checkpoint, str(error))
        return trainer

    def _save(self, checkpoint: bytes) -> None:
        """Keep a checkpoint; a store that is full now may not be so at the end."""
        try:
            keep(self._store, self._cohort, checkpoint)
        except UserError as error:
            self._notes.append(str(error))

    def _give_up(self, cohort: Cohort, why: str) -> None:
        run_ids = [run.run_id for run in cohort.runs]
        failure = {"cohort_id": cohort.cohort_id, "run_ids": run_ids, "reason": why}
        self._failed.append(failure)

    def _means(self) -> list[float] | None:
        """`mean_losses` of a suggestion; None of other cohorts, and while it lacks seeds here."""
        study, members = self._study, self._trainer.members if self._trainer else []
        if study is None or len(members) < len(study.seeds):
            return None
        losses = [
            ([row.loss for row in member.evaluations], member.diverged_step is not None)
            for member in members
        ]
        return mean_losses(losses, study.worst)

    def _result(self, event: Progress | None = None, *, ended: bool = False) -> dict[str, Any]:
        notes, self._notes[:] = [*self._notes], []
        return {
            "step": event.step if event else 0,
            "best_val_loss": event.best_val_loss if event else None,
            "tokens_per_second": event.tokens_per_second if event else None,
            "busy_seconds": time.monotonic() - self._began,
            "notes": notes,
            "written": self._written,
            "failed": self._failed,
            "elsewhere": str(self._elsewhere) if self._elsewhere else None,
            "unfit": self._unfit,
            "means": self._means(),
            "ended": ended,
            "done": ended,
        }

    def _write_runs(self, cohort: Cohort, trainer: CohortTrainer) -> None:
        job, runs = self._job, {run.run_id: run for run in cohort.runs}
        corpus = job.corpora[str(cohort.runs[0].corpus.sha256)]
        examine_selected(trainer, corpus)
        members = zip(trainer.members, trainer.summaries(), strict=True)
        for index, (member, summary) in enumerate(members):
            run = runs[member.run_id]
            if job.keep_models:
                content = model_bytes(trainer, index, corpus.vocab_size)
                self._store.write_model(run.run_id, content)
            planned = run.row()
            row = {
                **planned,
                **summary,
                "cohort_id": cohort.cohort_id,
                "space": job.space,
                "config": json.dumps(planned["config"]),
                "corpus_sha256": run.corpus.sha256,
                "start_seconds": self._start_seconds,
                "peak_memory_mib": provenance.peak_memory_mib(),
                "git_sha": job.git_sha,
                "versions": json.dumps(provenance.versions()),
                "hardware": provenance.hardware(
                    job.device_of(cohort),
                    job.num_threads,
                    len(runs),
                    compiled=trainer.compiled,
                    micro_batches=trainer.micro_batches,
                ),
                "finished_at": datetime.now(UTC),
            }
            evals = [*member.evaluations, *([member.heldout] if member.heldout else [])]
            self._store.write_run(row, [*map(vars, evals)], [*map(vars, member.measurements)])
            self._written.append(run.run_id)
