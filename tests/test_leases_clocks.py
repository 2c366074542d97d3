"""Claims on machines whose clock is set, and that are suspended."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cohorts import plan

from triplu_ray import leases as leases_module
from triplu_ray.leases import LAPSE_SECONDS, Lease, _start_ticks, claims, delete_claims_of
from triplu_ray.plan import Cohort
from triplu_ray.store import Store

on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture
def cohort(tmp_path: Path) -> Cohort:
    return plan(tmp_path, cohort=2).cohorts[0]


@pytest.fixture
def held(store: Store, cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lease]:
    monkeypatch.setattr(leases_module, "RENEW_SECONDS", 0.02)
    lease = Lease(store, "first", "tiny", cohort)
    assert lease.acquire() is None
    yield lease
    lease.release()


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """By so much forward: all starts of processes seem to move along."""
    started = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: started(self) + seconds)


@on_linux
@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("seconds", [-7200.0, -1.5, 0.0, 1.5, 7200.0])
def test_a_clock_that_is_set_ends_no_process(
    store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    set_clock(monkeypatch, seconds)
    assert [claim.is_live for claim in claims(store)] == [True]


@pytest.mark.parametrize(
    ("process", "is_live"),
    [
        ({}, True),
        ({"ticks": 1}, False),  # another one that has its number now
        ({"ticks": None}, True),  # where there is no /proc
        ({"ticks": None, "created": 1.0}, False),
    ],
)
def test_a_process_is_known_by_when_it_began(
    store: Store, cohort: Cohort, process: dict[str, Any], is_live: bool
) -> None:
    if process.get("ticks") and _start_ticks(os.getpid()) is None:
        pytest.skip("needs /proc")
    lease = Lease(store, "first", "tiny", cohort)
    lease._record["process"].update(process)
    lease._write()
    assert [claim.is_live for claim in claims(store)] == [is_live]


def test_claims_of_versions_that_knew_no_ticks_are_read(store: Store, cohort: Cohort) -> None:
    lease = Lease(store, "first", "tiny", cohort)
    lease._record["process"].pop("ticks")
    lease._write()
    (path,) = Path(store.location, "running").iterdir()
    assert json.loads(path.read_text())["process"].keys() == {"machine", "pid", "created"}
    assert [claim.is_live for claim in claims(store)] == [True]


@on_linux
@pytest.mark.parametrize("name", ["sleep", "a b", "x) S 1 (y", "))"])
def test_ticks_are_read_whatever_a_program_is_called(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        ticks = _start_ticks(process.pid)
        assert ticks is not None
        began = psutil.boot_time() + ticks / os.sysconf("SC_CLK_TCK")
        assert began == pytest.approx(psutil.Process(process.pid).create_time(), abs=1.5)
        process.kill()
    assert _start_ticks(process.pid) is None


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="needs Linux's CLOCK_BOOTTIME")
def test_who_was_suspended_gives_way_to_who_took_over(
    store: Store, cohort: Cohort, held: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stood still meanwhile."""
    held._ended.set()  # as a thread that does not run
    held._thread.join()
    delete_claims_of(store, "first")
    rival = Lease(store, "second", "tiny", cohort)
    assert rival.acquire() is None
    asked = time.clock_gettime
    monkeypatch.setattr(
        time,
        "clock_gettime",
        lambda clock: asked(clock) + (LAPSE_SECONDS + 1) * (clock == time.CLOCK_BOOTTIME),
    )
    held._ended.clear()
    held._keep_renewing()
    assert held.lost_to is not None
    assert held.lost_to.sweep_id == "second"
    rival.release()
