import io
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cohorts import plan
from fabricate import stored_run
from rich.console import Console

from triplu_ray import cli
from triplu_ray.errors import UserError
from triplu_ray.leases import LAPSE_SECONDS, Lease
from triplu_ray.plan import Plan
from triplu_ray.status import read_status, status_view
from triplu_ray.store import Store

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def planned(tmp_path: Path, store: Store) -> Plan:
    """Eight runs of equal cost, each 20 steps of 64 tokens."""
    planned = plan(tmp_path, grid={"seed": [1, 2, 3, 4], "variant": ["swiglu", "triplu"]})
    store.write_record("spaces/tiny/plan", planned.record())
    return planned


def finish(store: Store, planned: Plan, *minutes: float) -> None:
    """Store the first runs, each at its minute."""
    for run, minute in zip(planned.runs, minutes, strict=False):
        at = BEGAN + timedelta(minutes=minute)
        store.write_run(stored_run(run.row(), 2.0, finished_at=at), [])


def fail(store: Store, planned: Plan, reason: str, *indices: int, at: str = "2026-01-01") -> None:
    failed = [{"cohort_id": "c", "run_ids": [planned.runs[i].run_id for i in indices],
               "reason": reason}]  # fmt: skip
    store.write_record(f"sweeps/{at}", {"space": "tiny", "started_at": at, "failed": failed})


def test_every_run_is_in_one_place(store: Store, planned: Plan) -> None:
    finish(store, planned, 0, 10, 20)
    fail(store, planned, "no room", 0, 3, 4)  # the first was trained since
    lease = Lease(store, "s", "tiny", planned.cohorts[4])
    assert lease.acquire() is None  # and the fifth is tried again
    lease.step = 5
    lease._write()
    (status,) = read_status(store)
    assert (status.space, status.planned, status.done) == ("tiny", 8, 3)
    assert (status.num_running, status.missing) == (1, 3)
    assert status.failed == {"no room": [planned.runs[3].run_id]}
    # After the first: two runs in 20 minutes, of 20 x 64 tokens each.
    assert status.runs_per_hour == pytest.approx(6.0)
    assert status.tokens_per_second == pytest.approx(2 * 20 * 64 / 1200)
    # Five are open, a quarter of one is done; runs of the two variants differ a little in FLOPs.
    assert status.seconds_left == pytest.approx(4.75 * 600, rel=0.05)
    assert status.running[0].step == 5
    lease.release()
    (status,) = read_status(store, ["tiny"])
    assert (status.num_running, status.missing, status.seconds_left) == (0, 3, None)


def test_a_lapsed_lease_is_not_running(store: Store, planned: Plan) -> None:
    lease = Lease(store, "s", "tiny", planned.cohorts[0])
    lease.acquire()
    (path,) = Path(store.location, "running").iterdir()
    past = time.time() - LAPSE_SECONDS - 1
    os.utime(path, (past, past))
    (status,) = read_status(store)
    assert (status.num_running, status.missing, list(status.running)) == (0, 8, [])
    lease.release()


def test_what_is_not_known_is_not_told(store: Store, planned: Plan) -> None:
    for minutes in ([], [3], [3, 3, 3]):
        finish(store, planned, *minutes)
        (status,) = read_status(store)
        assert status.done == len(minutes)
        assert status.runs_per_hour is status.tokens_per_second is status.seconds_left is None


def test_the_last_reason_counts(store: Store, planned: Plan) -> None:
    fail(store, planned, "old", 0, 1, at="2026-01-01")
    fail(store, planned, "new", 0, at="2026-01-02")
    (status,) = read_status(store)
    ids = [run.run_id for run in planned.runs]
    assert status.failed == {"new": [ids[0]], "old": [ids[1]]}


def test_plans_of_a_space_are_one(store: Store, planned: Plan, tmp_path: Path) -> None:
    more = plan(tmp_path, grid={"seed": [4, 5], "variant": ["swiglu"]})
    store.write_record("spaces/tiny/another", more.record())
    other = plan(tmp_path, name="other", grid={"seed": [9], "variant": ["swiglu"]})
    store.write_record("spaces/other/plan", other.record())
    assert [(s.space, s.planned) for s in read_status(store)] == [("other", 1), ("tiny", 9)]
    assert [s.space for s in read_status(store, ["tiny"])] == ["tiny"]
    assert len(planned.runs) == 8


def test_what_a_selection_decides_later_is_to_come(store: Store, tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "grid": {"seed": [1, 2, 3], "variant": ["swiglu", "triplu"]},
        "select": {"key": "learning_rate", "values": [1e-3, 1e-2], "seeds": [9]},
    }
    first = plan(tmp_path, **content)
    store.write_record("spaces/tiny/first", first.record())
    (status,) = read_status(store)
    assert (status.planned, status.to_come) == (4, 6)
    chosen = plan(tmp_path, results={run.run_id: 1.0 for run in first.runs}, **content)
    store.write_record("spaces/tiny/a_later_one", chosen.record())
    (status,) = read_status(store)
    assert (status.planned, status.to_come) == (10, 0)


def test_suggestions_are_runs_of_their_space(store: Store, tmp_path: Path) -> None:
    keys = {"gain": {"low": 1.0, "high": 9.0}}
    found = plan(
        tmp_path,
        grid={"seed": [1, 2], "variant": ["triplu"]},
        search={"keys": keys, "num_suggestions": 3, "confirm_seeds": [5]},
    )
    store.write_record("spaces/tiny/plan", found.record())
    # Three suggestions of two seeds; then the best, and the paper's gain, on a seed apart.
    (status,) = read_status(store)
    assert (status.planned, status.to_come) == (0, 8)
    (study,) = found.studies
    for number, pruned in ((1, None), (2, [3.0])):
        runs = [run.row() for run in study.runs({"gain": 1.0 + number})]
        suggestion = {"space": "tiny", "study": study.study_id, "number": number, "runs": runs}
        name = f"searches/tiny/{study.study_id}/{number:04}"
        store.write_record(name, {**suggestion, "values": {}, "pruned": pruned})
    (status,) = read_status(store)
    assert (status.planned, status.missing, status.to_come) == (2, 2, 4)
    text = io.StringIO()
    Console(file=text, width=150).print(status_view([status]))
    assert "2 + 4" in text.getvalue()


def test_a_damaged_run_is_not_done(store: Store, planned: Plan, capsys: Any) -> None:
    finish(store, planned, 0, 1)
    broken = Path(store.location, "runs", f"{planned.runs[0].run_id}.parquet")
    broken.write_bytes(b"PAR1 is what it begins with")
    assert read_status(store)[0].done == 1
    assert f"{broken}: damaged, left out" in capsys.readouterr().err


def test_unknown_spaces_are_mistakes(store: Store) -> None:
    with pytest.raises(UserError, match="no space was swept into it yet"):
        read_status(store)
    with pytest.raises(UserError, match="no space 'tiny'; the store has no spaces"):
        read_status(store, ["tiny"])


@pytest.mark.usefixtures("planned")
def test_an_unknown_space_is_answered_with_the_nearest(store: Store) -> None:
    with pytest.raises(UserError, match=r"no space 'tini'; did you mean 'tiny'\?"):
        read_status(store, ["tini"])


def test_it_reads(store: Store, planned: Plan) -> None:
    finish(store, planned, 0, 10, 20)
    fail(store, planned, "no room", 5, 6)
    lease = Lease(store, "s", "tiny", planned.cohorts[4])
    lease.acquire()
    text = io.StringIO()
    Console(file=text, width=150).print(status_view(read_status(store)))
    table, tail = text.getvalue().split("└")
    row = [cell.strip() for cell in table.splitlines()[-1].split("│")[1:-1]]
    assert row[:7] == ["tiny", "3 of 8", "1", "2", "2", "6", "2"]
    assert "running triplu L1 lr 0.001 seed 2: step 0 of 20 on " in tail or "running swiglu" in tail
    assert "failed 2 runs of tiny: no room" in tail
    lease.release()


def test_the_command_prints_json_and_text(
    store: Store, planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(store, planned, 0, 10)
    assert cli.main(["status", "--store", store.location, "--json"]) == 0
    (content,) = json.loads(capsys.readouterr().out)["spaces"]
    assert {key: content[key] for key in ("space", "planned", "done", "missing", "running")} == {
        "space": "tiny", "planned": 8, "done": 2, "missing": 6, "running": [],
    }  # fmt: skip
    assert cli.main(["status", "tiny", "--store", store.location]) == 0
    assert "2 of 8" in capsys.readouterr().out
    assert cli.main(["status", "none", "--store", store.location]) == 2
    assert cli.main(["status", "--interval", "0", "--store", store.location]) == 2
    assert cli.main(["status", "--watch", "--json", "--store", store.location]) == 2


def test_watching_ends_when_all_is_done(
    store: Store, planned: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        finish(store, planned, *range(4 * len(looks)))

    monkeypatch.setattr(time, "sleep", sleep)
    assert cli.main(["status", "--store", store.location, "--watch", "--interval", "2"]) == 0
    assert looks == [2.0, 2.0]
    assert "8 of 8" in capsys.readouterr().out


@pytest.mark.usefixtures("planned")
def test_watching_ends_with_ctrl_c(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert cli.main(["status", "--store", store.location, "--watch"]) == 130
    out, err = capsys.readouterr()
    assert "0 of 8" in out
    assert err == "interrupted\n"
