"""Who trains what right now, so that sweeps of the same runs do not train them twice.

    <store>/running/<cohort_id>-<sweep_id>.json

A worker writes the file before it begins, renews it while it lives and deletes it at the end. What
was not renewed for LAPSE_SECONDS by the clock that stamps the store's files, or was written by a
process of this machine that is gone, has lapsed. A claim is written first and only then are the
others read: of two that come at once, at least one sees the other and withdraws.
"""

import contextlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from triplu_ray.errors import UserError
from triplu_ray.store import Store

if TYPE_CHECKING:
    from triplu_ray.plan import Cohort

RENEW_SECONDS = 5.0
LAPSE_SECONDS = 60.0
"""Longer than a store may take to answer: see files.PAUSES."""

_ATTEMPTS = 8


@dataclass(frozen=True)
class Claim:
    """A worker's word that it trains some runs."""

    path: str
    space: str
    sweep_id: str
    run_ids: frozenset[str]
    description: str
    step: int
    num_steps: int
    settled: bool
    """Whether its worker has seen that no other claims the same."""
    host: str
    age_seconds: float
    """Since it was renewed."""
    is_live: bool

    def __str__(self) -> str:
        progress = f"step {self.step:,} of {self.num_steps:,}"
        seen = f"seen {self.age_seconds:.0f} s ago"
        return f"{self.description}: {progress} on {self.host}, {seen}"


def claims(store: Store, without: str | None = None) -> list[Claim]:
    """All claims in the store, live and lapsed, but those of the sweep `without`."""
    ending = f"-{without}.json"
    files = [f for f in store.files.listed("running", ".json") if not f.path.endswith(ending)]
    if not files:
        return []
    try:
        now = store.files.now()
    except UserError:  # whoever may only read trusts the clock at hand
        now = time.time()
    found = []
    for file in files:
        try:
            record = json.loads(store.files.read(file.path))
            age = max(0.0, now - file.modified)
            is_gone = _is_gone(record.pop("process"))
            is_live = age <= LAPSE_SECONDS and not is_gone
            record["run_ids"] = frozenset(record["run_ids"])
            found.append(Claim(path=file.path, age_seconds=age, is_live=is_live, **record))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue  # given back since the listing, or no claim of this version
    return found


def claims_on(cohort: "Cohort", found: Iterable[Claim]) -> list[Claim]:
    """Those that have some run of a cohort."""
    run_ids = {run.run_id for run in cohort.runs}
    return [claim for claim in found if claim.run_ids & run_ids]


class Lease:
    """A claim of this process, renewed by a thread; `step` is what it tells of the progress."""

    def __init__(self, store: Store, sweep_id: str, space: str, cohort: "Cohort") -> None:
        self.step = 0
        self.lost_to: Claim | None = None
        """Who took over while this process was held up for too long."""
        self._store, self._sweep_id, self._cohort = store, sweep_id, cohort
        self._name = f"running/{cohort.cohort_id}-{sweep_id}"
        self._record: dict[str, Any] = {
            "space": space,
            "sweep_id": sweep_id,
            "run_ids": sorted(run.run_id for run in cohort.runs),
            "description": cohort.description,
            "num_steps": cohort.runs[0].config.num_steps,
            "settled": False,
            "host": socket.gethostname(),
            "process": _this_process(),
        }
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_renewing, name=f"lease {self._name}", daemon=True
        )

    def acquire(self) -> Claim | None:
        """Claim the runs; the claim that stands in the way, if there is one."""
        for _ in range(_ATTEMPTS):
            self._write()
            rival = self._rival()
            if rival is None:
                self._record["settled"] = True
                self._write()
                self._thread.start()
                return None
            self._delete()
            if rival.settled:
                return rival
            time.sleep(random.uniform(0.0, 1.0))  # both have withdrawn
        return rival

    def release(self) -> None:
        """Give the claim back."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)
        self._delete()

    def _rival(self) -> Claim | None:
        others = claims(self._store, without=self._sweep_id)
        return next((c for c in claims_on(self._cohort, others) if c.is_live), None)

    def _keep_renewing(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            held_up = _uptime() - self._written > LAPSE_SECONDS
            with contextlib.suppress(UserError):  # the runs' own writes tell of it
                if held_up:
                    self.lost_to = self._rival()
                    if self.lost_to:
                        break
                self._write()
        if self._ended.is_set():
            self._delete()

    def _write(self) -> None:
        self._store.write_record(self._name, self._record | {"step": self.step}, durable=False)
        self._written = _uptime()

    def _delete(self) -> None:
        with contextlib.suppress(UserError):
            self._store.files.delete(f"{self._name}.json")


def clear_lapsed(store: Store, without: str | None = None) -> list[Claim]:
    """Clear away what has lapsed; the live claims, but those of the sweep `without`."""
    found = claims(store, without)
    for claim in found:
        if not claim.is_live:
            with contextlib.suppress(UserError):
                store.files.delete(claim.path)
    return [claim for claim in found if claim.is_live]


def delete_claims_of(store: Store, sweep_id: str) -> None:
    """Clear away what the workers of a sweep that has ended left behind."""
    for file in store.files.listed("running", f"-{sweep_id}.json"):
        store.files.delete(file.path)


def _uptime() -> float:
    """Seconds by a clock that nobody sets, and that goes on in suspension where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _this_process() -> dict[str, Any]:
    return {
        "machine": _machine(),
        "pid": os.getpid(),
        # What versions before `ticks` go by.
        "created": psutil.Process().create_time(),
        "ticks": _start_ticks(os.getpid()),
    }


def _is_gone(process: dict[str, Any]) -> bool:
    """Whether a process of this machine has ended; those of others cannot be told."""
    if process["machine"] != _machine():
        return False
    try:
        found = psutil.Process(process["pid"])
        if process.get("ticks") is not None:
            is_same: bool = process["ticks"] == _start_ticks(process["pid"])
        else:
            is_same = abs(found.create_time() - process["created"]) < 1.0
        return not is_same or found.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _start_ticks(pid: int) -> int | None:
    """When a process began, by the kernel's count since boot; None where /proc does not tell.

    Unlike a time of the day, it stays what it is when the clock is set.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # Field 22; the second, the command in brackets, may hold anything.
    return int(stat.rpartition(")")[2].split()[22 - 3])


def _machine() -> str:
    """Equal for processes that see one another's numbers: containers of a machine do not."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} {psutil.boot_time():.0f}"
