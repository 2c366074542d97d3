"""A bucket that is slow, busy or closed: pyarrow's own client against a server on loopback."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cohorts import plan
from fabricate import curve, planned_run, probe, stored_run
from faults import Bucket, serve_bucket

from triplu_ray.errors import UserError
from triplu_ray.leases import LAPSE_SECONDS, Lease, claims
from triplu_ray.store import Store
from triplu_ray.upkeep import merge, set_aside_damaged


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    bucket, server = serve_bucket(monkeypatch)
    yield bucket
    server.shutdown()
    server.server_close()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def store(bucket: Bucket, told: list[str]) -> Store:
    return Store(bucket.uri, told.append)


def a_run(seed: int) -> dict[str, Any]:
    return stored_run(planned_run("triplu", seed), 1.5)


def write(store: Store, *seeds: int) -> list[str]:
    for seed in seeds:
        run = a_run(seed)
        probes = probe(planned_run("triplu", seed), "pmi", {"all": 0.5})
        store.write_run(run, curve(run, num_evals=4), probes)
    return sorted(str(a_run(seed)["run_id"]) for seed in seeds)


def test_a_bucket_is_a_store(store: Store) -> None:
    ids = write(store, 1, 2, 3)
    assert not store.is_local
    assert store.finished_run_ids() == set(ids)
    assert store.finished_among([*ids[:1], "none"]) == {ids[0]}
    assert store.read_runs()["run_id"].to_pylist() == ids
    assert store.read_evals().num_rows == 3 * 5
    before = store.read_runs()
    assert merge(store) == 3
    assert store.read_runs().equals(before)
    assert store.finished_run_ids() == set(ids)
    assert [file.path[:12] for file in store.files.listed("runs", "")] == ["runs/merged-"]


def test_damage_in_a_bucket_is_set_aside(store: Store, told: list[str]) -> None:
    first, second = write(store, 1, 2)
    content = store.files.read(f"runs/{first}.parquet")
    store.files.write(f"runs/{first}.parquet", content[:-1])
    assert store.read_runs()["run_id"].to_pylist() == [second]
    assert "damaged, left out" in told[0]
    assert set_aside_damaged(store, [first, second])
    assert store.finished_run_ids() == {second}
    assert any(f"{first}.damaged-" in file.path for file in store.files.listed("runs", ""))
    store.write_checkpoint("c", b"x")
    store.set_aside_checkpoint("c", "of no use")
    assert store.read_checkpoint("c") is None
    (aside,) = store.files.listed("checkpoints", "")
    assert aside.path.startswith("checkpoints/c.damaged-")


def test_a_bucket_that_is_busy_is_tried_again(
    store: Store, bucket: Bucket, told: list[str]
) -> None:
    # The client itself tries for 6 seconds; so long lasts none of these.
    bucket.fail(3, "PUT POST", 503, "SlowDown")
    ids = write(store, 1)
    bucket.fail(2, "PUT POST", 500, "InternalError")
    bucket.fail(1, "PUT POST", 0, seconds=1.0)
    ids = sorted({*ids, *write(store, 2)})
    bucket.fail(3, "GET HEAD", 503, "SlowDown")
    assert store.read_runs()["run_id"].to_pylist() == ids
    assert bucket.faults_left == 0
    assert told == []


@pytest.mark.slow
def test_a_bucket_that_is_busy_for_long_is_waited_for(
    store: Store, bucket: Bucket, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    bucket.fail(40, "PUT POST", 503, "SlowDown")
    ids = write(store, 1)
    assert bucket.faults_left == 0
    assert len(pauses) == len(told) == 1
    assert told[0].endswith("; again in 1 s")
    assert "SLOW_DOWN" in told[0]
    assert store.finished_run_ids() == set(ids)
    # For ever: in the end it is told, and nothing half is there.
    bucket.fail(1000, "PUT POST", 503, "SlowDown")
    with pytest.raises(UserError, match=r"cannot write probes/\w+\.parquet: .*SLOW_DOWN"):
        write(store, 2)
    bucket.heal()
    assert store.finished_run_ids() == set(ids)
    assert store.read_evals().num_rows == 5


def test_a_closed_bucket_is_told_at_once(store: Store, bucket: Bucket, told: list[str]) -> None:
    bucket.fail(1, "PUT POST", 403, "AccessDenied")
    with pytest.raises(UserError, match=r"cannot write probes/\w+\.parquet: .*ACCESS_DENIED"):
        write(store, 1)
    assert told == []
    assert store.finished_run_ids() == set()


def test_leases_go_by_the_clock_of_the_bucket(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = plan(tmp_path, cohort=2).cohorts
    held = Lease(store, "first", "tiny", first)
    assert held.acquire() is None
    monkeypatch.setattr(time, "time", lambda: 0.0)
    (claim,) = claims(store)
    assert claim.is_live
    assert 0 <= claim.age_seconds < LAPSE_SECONDS / 2
    assert Lease(store, "second", "tiny", first).acquire() is not None
    other = Lease(store, "second", "tiny", second)
    assert other.acquire() is None
    other.release()
    held.release()
    assert claims(store) == []
    assert store.files.listed("running", "") == []
