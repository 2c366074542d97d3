import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cohorts import plan

from triplu_ray import leases as leases_module
from triplu_ray.leases import (
    LAPSE_SECONDS,
    Claim,
    Lease,
    claims,
    claims_on,
    clear_lapsed,
    delete_claims_of,
)
from triplu_ray.plan import Cohort
from triplu_ray.store import Store


@pytest.fixture
def cohorts(tmp_path: Path) -> tuple[Cohort, ...]:
    """Two of two runs each."""
    return plan(tmp_path, cohort=2).cohorts


def lease(store: Store, cohort: Cohort, sweep_id: str = "first") -> Lease:
    return Lease(store, sweep_id, "tiny", cohort)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_claim_says_who_trains_what(store: Store, cohorts: tuple[Cohort, ...]) -> None:
    held = lease(store, cohorts[0])
    assert held.acquire() is None
    (claim,) = claims(store)
    assert claim.run_ids == {run.run_id for run in cohorts[0].runs}
    assert (claim.space, claim.sweep_id, claim.settled, claim.is_live) == (
        "tiny", "first", True, True,
    )  # fmt: skip
    assert 0 <= claim.age_seconds < 5
    assert str(claim).startswith("swiglu L1 lr 0.001 seed 1, 2: step 0 of 20 on ")
    assert claims(store, without="first") == []
    held.release()
    assert claims(store) == []
    assert list(Path(store.location, "running").iterdir()) == []


def test_what_is_claimed_is_not_claimed_again(store: Store, cohorts: tuple[Cohort, ...]) -> None:
    first, second = cohorts
    held = lease(store, first)
    assert held.acquire() is None
    part = Cohort(first.runs[:1])  # cut otherwise: another id, a run in common
    for cohort in (first, part):
        rival = lease(store, cohort, "second").acquire()
        assert rival is not None
        assert rival.sweep_id == "first"
        assert [claim.sweep_id for claim in claims(store)] == ["first"]
    other = lease(store, second, "second")
    assert other.acquire() is None
    assert [claim.sweep_id for claim in claims_on(second, claims(store))] == ["second"]
    other.release()
    # The same sweep's next worker, after a crash, goes on under the same name.
    next_worker = lease(store, first)
    assert next_worker.acquire() is None
    held.release()
    next_worker.release()
    again = lease(store, part, "second")
    assert again.acquire() is None
    again.release()


def test_of_many_at_once_one_trains(store: Store, cohorts: tuple[Cohort, ...]) -> None:
    """Never two at a time, and in the end each has had its turn."""
    holders, most, turns = 0, 0, 0
    lock = threading.Lock()

    def train(name: str) -> None:
        nonlocal holders, most, turns
        while True:
            mine = lease(store, cohorts[0], name)
            if mine.acquire() is None:
                break
            time.sleep(0.02)
        with lock:
            holders += 1
            most = max(most, holders)
        time.sleep(0.05)
        with lock:
            holders -= 1
            turns += 1
        mine.release()

    threads = [threading.Thread(target=train, args=(f"sweep{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert (most, turns) == (1, 4)
    assert claims(store) == []


def test_a_claim_that_is_not_renewed_lapses_by_the_clock_of_the_store(
    store: Store, cohorts: tuple[Cohort, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = lease(store, cohorts[0])
    held.acquire()
    (path,) = Path(store.location, "running").iterdir()
    # A node whose clock is a day ahead sees the same ages.
    monkeypatch.setattr(time, "time", lambda: time.monotonic() + 86_400)
    for age, is_live in ((LAPSE_SECONDS - 10, True), (LAPSE_SECONDS + 10, False)):
        now = store.files.now()
        os.utime(path, (now - age, now - age))
        (claim,) = claims(store)
        assert claim.age_seconds == pytest.approx(age, abs=5)
        assert claim.is_live == is_live
    taken = lease(store, cohorts[0], "second")
    assert taken.acquire() is None
    assert clear_lapsed(store, without="second") == []
    assert [claim.sweep_id for claim in claims(store)] == ["second"]
    delete_claims_of(store, "second")
    assert claims(store) == []
    taken.release()
    held.release()


def test_a_process_of_this_machine_that_is_gone_claims_nothing(
    store: Store, tmp_path: Path
) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from cohorts import plan
from triplu_ray.leases import Lease
from triplu_ray.store import Store
cohort = plan(Path({str(tmp_path)!r}), cohort=2).cohorts[0]
assert Lease(Store({store.location!r}), "gone", "tiny", cohort).acquire() is None
sys.stdout.write("held"); sys.stdout.flush()
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"held"
        (claim,) = claims(store)
        assert claim.is_live
        process.kill()
    (claim,) = claims(store)
    assert not claim.is_live
    assert claim.age_seconds < LAPSE_SECONDS
    # Where processes cannot be seen, only the clock tells.
    (path,) = Path(store.location, "running").iterdir()
    record = json.loads(path.read_text())
    record["process"]["machine"] = "another"
    path.write_text(json.dumps(record))
    (claim,) = claims(store)
    assert claim.is_live


def test_a_lease_tells_of_the_progress(
    store: Store, cohorts: tuple[Cohort, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "RENEW_SECONDS", 0.02)
    held = lease(store, cohorts[0])
    held.acquire()
    held.step = 17
    until(lambda: [claim.step for claim in claims(store)] == [17])
    held.release()
    time.sleep(0.1)
    assert claims(store) == []


def test_who_was_held_up_gives_way_to_who_took_over(
    store: Store, cohorts: tuple[Cohort, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "RENEW_SECONDS", 0.05)
    held = lease(store, cohorts[0])
    held.acquire()
    assert held.lost_to is None
    delete_claims_of(store, "first")
    # As after a suspension: a long time has passed since the last renewal.
    held._written -= 2 * LAPSE_SECONDS
    taken = lease(store, cohorts[0], "second")
    if taken.acquire() is None:
        until(lambda: held.lost_to is not None)
        lost_to = held.lost_to
        assert isinstance(lost_to, Claim)
        assert lost_to.sweep_id == "second"
    taken.release()
    held.release()


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"process": 1}'])
def test_what_is_no_claim_is_passed_over(store: Store, content: str) -> None:
    store.files.write("running/x-y.json", content.encode())
    assert claims(store) == []
