"""What the store keeps of a `sweep` command, from its start on: its end may never come."""

import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console

from triplu_ray.errors import UserError
from triplu_ray.store import Store


@dataclass(frozen=True)
class FailedCohort:
    """A cohort, or a part of one, that was given up."""

    cohort_id: str
    run_ids: list[str]
    reason: str


class SweepRecord:
    """`sweeps/<sweep_id>.json`. What was killed stays what it is written as first: interrupted."""

    def __init__(self, store: Store, space: str, console: Console) -> None:
        self._store, self._space, self._console = store, space, console
        self._started_at, self._started = datetime.now(UTC), time.monotonic()
        self._ray_start_seconds = 0.0
        self._trained, self._interrupted = 0, True
        self.sweep_id = f"{self._started_at:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
        self.path = f"sweeps/{self.sweep_id}.json"
        self.busy_seconds = 0.0
        """Of all workers, in cohorts."""
        self.most_running = 0
        """Cohorts at a time."""
        self.failed: list[FailedCohort] = []

    def begin(self) -> None:
        """Ray is there. Raises UserError if the store cannot be written."""
        self._ray_start_seconds = time.monotonic() - self._started
        self._write()

    def fail(self, failed: FailedCohort) -> None:
        """Keep a failure at once: `status` may be asked before the end."""
        self.failed.append(failed)
        self._update()

    def end(self, trained: int, interrupted: bool) -> None:
        """The sweep is over."""
        self._trained, self._interrupted = trained, interrupted
        self._update()

    def _update(self) -> None:
        """The runs count, not this: whoever cannot write it goes on."""
        try:
            self._write()
        except UserError as error:
            self._console.print(f"note: {error}")

    def _write(self) -> None:
        content = {
            "space": self._space,
            "started_at": self._started_at.isoformat(),
            "wall_seconds": time.monotonic() - self._started,
            "ray_start_seconds": self._ray_start_seconds,
            "workers": self.most_running,
            "busy_seconds": self.busy_seconds,
            "trained": self._trained,
            "failed": [vars(cohort) for cohort in self.failed],
            "interrupted": self._interrupted,
        }
        self._store.write_record(f"sweeps/{self.sweep_id}", content)
