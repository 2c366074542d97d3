"""What a sweep shows while it runs: a live display on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

if TYPE_CHECKING:
    from triplu_ray.plan import Cohort, PlannedRun


_PLAIN_LINE_SECONDS = 30.0


class SweepProgress:
    """Overall progress with ETA and a line for every running cohort, on stderr."""

    def __init__(
        self, console: Console, cohorts: "Sequence[Cohort]", to_come: "Sequence[PlannedRun]" = ()
    ) -> None:
        """`to_come` are runs, or what stands for them, of cohorts that are `added` later."""
        self._console = console
        self._cohorts: dict[str, Cohort] = {}
        self._flops: dict[str, int] = {}
        self._share_done: dict[str, float] = {}
        self._share_at_start: dict[str, float] = {}
        for cohort in cohorts:
            self.added(cohort)
        self._all_flops = sum(self._flops.values()) + sum(run.training_flops for run in to_come)
        self._num_runs = sum(len(cohort.runs) for cohort in cohorts) + len(to_come)
        self._runs_done = 0
        self._started = self._told = time.monotonic()
        self._lines: dict[str, TaskID] = {}
        self._display: Progress | None = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
            )
            self._display = Progress(*columns, console=console, transient=True)
            self._overall = self._display.add_task("all runs", total=1.0, text="")

    def __enter__(self) -> "SweepProgress":
        if self._display is not None:
            self._display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.stop()

    def added(self, cohort: "Cohort") -> None:
        """A cohort came to be known."""
        self._cohorts[cohort.cohort_id] = cohort
        self._flops[cohort.cohort_id] = sum(run.training_flops for run in cohort.runs)
        self._share_done.setdefault(cohort.cohort_id, 0.0)

    def started(self, cohort_id: str) -> None:
        """A worker took the cohort."""
        if self._display is not None and cohort_id not in self._lines:
            self._lines[cohort_id] = self._display.add_task(
                self._cohorts[cohort_id].description, total=1.0, text="starting"
            )

    def reached(
        self,
        cohort_id: str,
        step: int,
        best_val_loss: float | None,
        tokens_per_second: float | None,
    ) -> None:
        """A cohort's sign of life."""
        cohort = self._cohorts[cohort_id]
        num_steps = cohort.runs[0].config.num_steps
        self._share_done[cohort_id] = step / num_steps
        self._share_at_start.setdefault(cohort_id, step / num_steps)
        loss = "" if best_val_loss is None else f"  best loss {best_val_loss:.4f}"
        rate = f"  {tokens_per_second / 1e3:,.1f} k tokens/s" if tokens_per_second else ""
        text = f"step {step:,} of {num_steps:,}{loss}{rate}"
        if self._display is not None and cohort_id in self._lines:
            self._display.update(self._lines[cohort_id], completed=step / num_steps, text=text)
        elif time.monotonic() - self._told >= _PLAIN_LINE_SECONDS:
            self._told = time.monotonic()
            self._console.print(f"{self._overall_text()}; {cohort.description}: {text}")
        self._refresh()

    def run_ids(self, cohort_id: str) -> list[str]:
        """Of a cohort that is shown."""
        return [run.run_id for run in self._cohorts[cohort_id].runs]

    def finished(self, cohort_id: str, where: str = "") -> None:
        """A cohort is stored."""
        self._end(cohort_id)
        self._runs_done += len(self._cohorts[cohort_id].runs)
        self._console.print(
            f"finished {self._cohorts[cohort_id].description}{where}; {self._overall_text()}"
        )
        self._refresh()

    def pruned(self, cohort_id: str) -> None:
        """A suggestion was stopped early."""
        self._end(cohort_id)
        self._num_runs -= len(self._cohorts[cohort_id].runs)
        self._console.print(
            f"stopped early {self._cohorts[cohort_id].description}; {self._overall_text()}"
        )
        self._refresh()

    def failed(self, cohort_id: str, reason: str) -> None:
        """A cohort was given up."""
        self._end(cohort_id)
        self._console.print(f"failed {self._cohorts[cohort_id].description}: {reason}")

    def retried(self, cohort_id: str, reason: str) -> None:
        """A cohort failed and is tried again."""
        self._console.print(f"again {self._cohorts[cohort_id].description}: {reason}")

    def elsewhere(self, cohort_id: str, by_whom: str) -> None:
        """A cohort is left to another sweep, for the time being."""
        if self._display is not None and cohort_id in self._lines:
            self._display.remove_task(self._lines.pop(cohort_id))
        self._console.print(f"in another sweep: {by_whom}")

    def told(self, note: str) -> None:
        """A worker has something to say."""
        self._console.print(note)

    def _end(self, cohort_id: str) -> None:
        self._share_done[cohort_id] = 1.0
        self._share_at_start.setdefault(cohort_id, 0.0)
        if self._display is not None and cohort_id in self._lines:
            self._display.remove_task(self._lines.pop(cohort_id))

    def _refresh(self) -> None:
        if self._display is not None:
            share, text = self._share(), self._overall_text()
            self._display.update(self._overall, completed=share, text=text)

    def _share(self) -> float:
        done = sum(self._flops[key] * share for key, share in self._share_done.items())
        return done / self._all_flops

    def _overall_text(self) -> str:
        """Runs done and the time left, by the FLOPs done in this sweep so far."""
        text = f"{self._runs_done} of {self._num_runs} runs"
        started = (self._flops[key] * share for key, share in self._share_at_start.items())
        at_start = sum(started) / self._all_flops
        gained, elapsed = self._share() - at_start, time.monotonic() - self._started
        if gained > 0:
            text += f", about {duration((1 - self._share()) * elapsed / gained)} left"
        return text


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
