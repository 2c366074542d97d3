"""How far the sweeps of a store are, from the store alone: in any terminal, on any machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from triplu_ray.errors import UserError, did_you_mean
from triplu_ray.leases import Claim, claims
from triplu_ray.progress import duration
from triplu_ray.store import Store

RECENT_RUNS = 50
"""The last finished ones, from which rates and the time left are told."""


@dataclass(frozen=True)
class SpaceStatus:
    """Where the runs of a space are: each planned one is in one of the four places."""

    space: str
    planned: int
    done: int
    running: Sequence[Claim]
    """Of the workers that train some of its runs, under whatever space's name."""
    num_running: int
    failed: Mapping[str, Sequence[str]]
    """Ids of the runs that were given up and not trained since, by the reason."""
    missing: int
    to_come: int
    """Runs beyond those planned, which `select` or `search` has yet to decide on."""
    runs_per_hour: float | None
    tokens_per_second: float | None
    """Trained token positions of runs that are stored, over the time in which they came."""
    seconds_left: float | None
    """None if nothing runs, or too little is stored to tell."""

    def json(self) -> dict[str, Any]:
        """The same for programs."""
        running = [
            {
                "description": claim.description,
                "run_ids": sorted(claim.run_ids),
                "space": claim.space,
                "host": claim.host,
                "step": claim.step,
                "num_steps": claim.num_steps,
                "age_seconds": claim.age_seconds,
            }
            for claim in self.running
        ]
        failed = [{"reason": why, "run_ids": list(ids)} for why, ids in self.failed.items()]
        return {**vars(self), "running": running, "failed": failed}


def read_status(store: Store, names: Sequence[str] = ()) -> list[SpaceStatus]:
    """The status of the spaces of a store, or of some; UserError for one that it does not know."""
    planned: dict[str, _Planned] = {}
    for plan in store.read_records("spaces"):
        planned.setdefault(plan["space"], _Planned()).add(plan)
    for suggestion in store.read_records("searches"):
        if suggestion["space"] in planned:
            planned[suggestion["space"]].suggest(suggestion)
    for name in names:
        if name not in planned:
            hint = did_you_mean(name, planned) if planned else "the store has no spaces"
            raise UserError(f"store {store.location!r}: no space {name!r}; {hint}")
    if not planned:
        raise UserError(f"store {store.location!r}: no space was swept into it yet")
    chosen = {name: planned[name] for name in names or sorted(planned)}
    ids = {run_id for space in chosen.values() for run_id in space.runs}
    finished = {
        row["run_id"]: row["finished_at"].timestamp()
        for row in store.read_runs(ids, ["finished_at"]).to_pylist()
    }
    live = [claim for claim in claims(store) if claim.is_live]
    reasons = {
        run_id: failure["reason"]
        for sweep in sorted(store.read_records("sweeps"), key=lambda s: str(s["started_at"]))
        for failure in sweep["failed"]
        for run_id in failure["run_ids"]
    }
    return [_status(name, space, finished, live, reasons) for name, space in chosen.items()]


class _Planned:
    """The runs of all plans and suggestions of a space, by id, and how many are not known yet."""

    def __init__(self) -> None:
        self.runs: dict[str, Mapping[str, Any]] = {}
        self.to_come = 0
        self._known: set[str] = set()

    def add(self, plan: Mapping[str, Any]) -> None:
        """A plan; the one that knows most says what is to come."""
        known = {run["run_id"]: run for run in plan["runs"]}
        self.runs |= known
        if len(known) >= len(self._known):
            self._known, self.to_come = {*known}, plan.get("pending", 0)

    def suggest(self, suggestion: Mapping[str, Any]) -> None:
        """A suggestion, made before or after the plan; one that was stopped early has no runs."""
        suggested = {run["run_id"]: run for run in suggestion["runs"]}
        self.to_come = max(0, self.to_come - len(suggested.keys() - self._known))
        self._known |= suggested.keys()
        if suggestion["pruned"] is None:
            self.runs |= suggested


def _status(
    name: str,
    space: _Planned,
    finished: Mapping[str, float],
    live: Sequence[Claim],
    reasons: Mapping[str, str],
) -> SpaceStatus:
    planned = space.runs
    open_ids = planned.keys() - finished.keys()
    running = [claim for claim in live if claim.run_ids & open_ids]
    running_ids = {run_id for claim in running for run_id in claim.run_ids & open_ids}
    failed: dict[str, list[str]] = {}
    for run_id in sorted(open_ids - running_ids):
        if run_id in reasons:
            failed.setdefault(reasons[run_id], []).append(run_id)
    num_failed = sum(map(len, failed.values()))

    done = sorted((finished[run_id], run_id) for run_id in planned.keys() & finished.keys())
    # What came first came at the beginning of the time that is measured, not in it.
    recent = [(at, planned[run_id]) for at, run_id in done[-RECENT_RUNS:]]
    counted = [row for at, row in recent if at > recent[0][0]]
    seconds = recent[-1][0] - recent[0][0] if counted else 0.0
    left = None
    if running and counted:
        share = {run_id: c.step / c.num_steps for c in running for run_id in c.run_ids}
        flops_left = sum(_flops(planned[i]) * (1 - share.get(i, 0.0)) for i in open_ids)
        flops_left += space.to_come * sum(map(_flops, planned.values())) / len(planned)
        left = flops_left * seconds / sum(map(_flops, counted))
    return SpaceStatus(
        space=name,
        planned=len(planned),
        done=len(done),
        running=running,
        num_running=len(running_ids),
        failed=failed,
        missing=len(open_ids) - len(running_ids) - num_failed,
        to_come=space.to_come,
        runs_per_hour=len(counted) / seconds * 3600 if counted else None,
        tokens_per_second=sum(row["tokens"] for row in counted) / seconds if counted else None,
        seconds_left=left,
    )


def _flops(row: Mapping[str, Any]) -> float:
    return float(row["flops_per_token"] * row["tokens"])


def status_view(found: Sequence[SpaceStatus]) -> Group:
    """A line a space; below, a line for each worker and each reason of a failure."""
    table = Table("space", title_justify="left")
    for heading in ("done", "running", "failed", "missing", "runs/h", "tokens/s", "left"):
        table.add_column(heading, justify="right")
    lines = []
    for status in found:
        rates = (status.runs_per_hour, status.tokens_per_second)
        table.add_row(
            status.space,
            f"{status.done} of {status.planned}",
            f"{status.num_running}",
            f"{sum(map(len, status.failed.values()))}",
            f"{status.missing}" + f" + {status.to_come}" * (status.to_come > 0),
            *("-" if rate is None else f"{rate:,.0f}" for rate in rates),
            "-" if status.seconds_left is None else duration(status.seconds_left),
        )
        lines += [f"running {claim}" for claim in status.running]
        lines += [
            f"failed {len(ids)} run{'s' * (len(ids) > 1)} of {status.space}: {why}"
            for why, ids in status.failed.items()
        ]
    return Group(table, *map(Text, dict.fromkeys(lines)))
