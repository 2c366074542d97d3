"""Searches on the command line: what is planned, swept in rounds, and told."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cohorts import write_space
from fabricate import stored_run

from triplu_ray import cli
from triplu_ray.plan import Plan, PlannedRun, PlannedStudy
from triplu_ray.store import Store

SEARCH: dict[str, Any] = {
    "keys": {"gain": {"low": 1, "high": 60, "log": True}},
    "num_suggestions": 2,
    "confirm_seeds": [11],
}


class Workers:
    """Stands in for Ray and Optuna: suggests gains of 10, 20, ... and trains what it is told to."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.suggests = True
        self.best_known: float | None = None
        """The only gain that is not stopped early."""

    def sweep(self, plan: Plan, _corpora: Any, store: Store, _console: Any) -> Any:
        trained = [run for run in plan.missing if run.run_id not in plan.suggested]
        for study in plan.studies if self.suggests else ():
            known = {one.number for one in study.done}
            for number in {*range(1, study.search.num_suggestions + 1)} - known:
                trained += self.suggest(study, store, number)
        for run in trained:
            store.write_run(stored_run(run.row(), self.loss(run)), [])
        self.rounds.append(len(trained))
        return SimpleNamespace(trained=len(trained), failed=[], interrupted=not self.suggests)

    def suggest(self, study: PlannedStudy, store: Store, number: int) -> list[PlannedRun]:
        """Runs to train; none of a suggestion that is stopped early."""
        gain = 10.0 * number
        runs = study.runs({"gain": gain})
        is_pruned = self.best_known not in (None, gain)
        record = {
            "space": "tiny", "study": study.study_id, "number": number,
            "pruned": [9.0] if is_pruned else None,
            "values": {"gain": gain}, "runs": [run.row() for run in runs],
        }  # fmt: skip
        store.write_record(f"searches/tiny/{study.study_id}/{number:04}", record)
        return [] if is_pruned else runs

    def loss(self, run: PlannedRun) -> float:
        gain: float = run.row()["gain"] or 0.0
        return 1.0 + abs(gain - 20.0)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workers:
    monkeypatch.chdir(tmp_path)
    for variable in ("TRIPLU_RAY_STORE", "TRIPLU_RAY_DATA"):
        monkeypatch.delenv(variable, raising=False)
    workers = Workers()
    modules: Any = sys.modules
    monkeypatch.setitem(modules, "triplu_ray.raytune", workers)
    return workers


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_a_sweep_searches_and_then_confirms(
    workers: Workers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = write_space(tmp_path, search=SEARCH)
    code, out, err = command(capsys, "sweep", space, "--json")
    assert code == 0
    # SwiGLU and two suggestions on two seeds; then SwiGLU and gains of 20 and 5 on the fresh one.
    assert workers.rounds == [2 + 4, 3]
    assert json.loads(out) == {
        "space": "tiny", "runs": 9, "done_before": 0, "pending": 0, "trained": 9, "failed": [],
        "interrupted": False,
    }  # fmt: skip
    lines = err.splitlines()
    assert "triplu: 0 of 2 suggestions done" in lines
    assert "triplu: 2 of 2 suggestions done; best gain 20" in lines
    records = Store("results").read_records("spaces/tiny")
    assert sorted(len(record["runs"]) for record in records) == [2, 9]
    code, out, err = command(capsys, "sweep", space, "--json")
    assert (code, len(workers.rounds)) == (0, 2)
    assert "tiny: all 9 runs are done" in err


def test_a_space_of_nothing_but_a_search_is_swept(
    workers: Workers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {"seed": [1], "variant": ["triplu"]}
    space = write_space(tmp_path, grid=grid, search={**SEARCH, "confirm_seeds": []})
    code, out, _ = command(capsys, "sweep", space, "--json")
    assert (code, workers.rounds, json.loads(out)["trained"]) == (0, [2], 2)


def test_an_interrupted_search_is_told_how_to_go_on(
    workers: Workers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = write_space(tmp_path, search=SEARCH)
    workers.suggests = False
    code, out, err = command(capsys, "sweep", space, "--json")
    assert (code, json.loads(out)["pending"]) == (130, 4 + 3)
    assert f"go on with: triplu-ray sweep {space} --store results" in err
    workers.suggests = True
    code, out, _ = command(capsys, "sweep", space, "--json")
    assert (code, json.loads(out)["done_before"], json.loads(out)["trained"]) == (0, 2, 7)


def test_the_best_is_confirmed_however_many_suggestions_were_stopped(
    workers: Workers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of five that an earlier sweep had begun four are stopped: the plan gets shorter."""
    search = {**SEARCH, "num_suggestions": 5, "pruning": "asha"}
    space = write_space(tmp_path, search=search)
    content = json.loads(command(capsys, "plan", space, "--json")[1])
    store = Store("results")
    (study,) = content["studies"]
    for number in range(1, 6):
        record = {
            "space": "tiny", "study": study["study"], "number": number, "pruned": None,
            "values": {"gain": 10.0 * number}, "runs": [],
        }  # fmt: skip
        store.write_record(f"searches/tiny/{study['study']}/{number:04}", record)
    workers.best_known = 20.0
    code, out, _ = command(capsys, "sweep", space, "--json")
    assert workers.rounds == [2 + 2, 3]
    content = json.loads(out)
    assert (code, content["runs"], content["trained"], content["pending"]) == (0, 7, 7, 0)


@pytest.mark.usefixtures("workers")
def test_a_plan_says_what_is_known_and_what_is_to_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = write_space(tmp_path, search=SEARCH)
    _, out, _ = command(capsys, "plan", space)
    assert "2 runs, 0 done, 2 missing in 2 cohorts" in out
    assert "triplu: 0 of 2 suggestions done\n" in out
    assert "7 more runs are to come, as they are suggested and confirmed\n" in out
    _, out, _ = command(capsys, "plan", space, "--json")
    before = json.loads(out)
    (study,) = before["studies"]
    assert (study["done"], study["num_suggestions"], study["is_done"]) == (0, 2, False)
    assert (study["best"], study["confirmation"], study["fixed"]) == (None, None, {"gain": 5.0})
    command(capsys, "sweep", space)
    _, out, _ = command(capsys, "plan", space, "--json")
    after = json.loads(out)
    (study,) = after["studies"]
    assert study["suggestions"] == [
        {"number": 1, "values": {"gain": 10.0}, "status": "done", "objective": 11.0},
        {"number": 2, "values": {"gain": 20.0}, "status": "done", "objective": 1.0},
    ]
    assert study["best"] == {"gain": 20.0}
    ids = {run["run_id"]: run for run in after["runs"]}
    fresh = [ids[run_id] for run_id in study["confirmation"]["best"]]
    assert [(run["gain"], run["seed"], run["done"]) for run in fresh] == [(20.0, 11, True)]
    _, out, _ = command(capsys, "plan", space)
    # Suggestions are told in a line; the table has what is trained apart from them.
    rows = [line.split("│")[1:] for line in out.splitlines() if line.startswith("│")]
    told = {(row[0].strip(), row[2].strip(), row[3].strip()) for row in rows}
    assert told == {("swiglu", "-", "3"), ("triplu", "20.0", "1"), ("triplu", "5.0", "1")}
    assert "triplu: 2 of 2 suggestions done; best gain 20\n" in out


@pytest.mark.usefixtures("workers")
def test_the_estimate_counts_what_is_to_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searched = write_space(tmp_path, search={**SEARCH, "confirm_seeds": []})
    content = json.loads(command(capsys, "plan", searched, "--json")[1])
    run = content["training_flops"] / 2
    # Two runs of SwiGLU and four that are suggested, all of one size but for the width.
    per_second = 8e10 * content["workers"]
    assert content["estimated_seconds"] == pytest.approx(6 * run / per_second, rel=0.02)
