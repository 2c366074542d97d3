"""Selection on the command line, with a stand-in for Ray."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cohorts import write_space
from commands import Command
from fabricate import stored_run

from triplu_ray.plan import Plan, PlannedRun
from triplu_ray.store import Store

SELECT = {"key": "learning_rate", "values": [1e-3, 3e-3], "seeds": [101, 102]}


class Workers:
    """Stands in for Ray: stores the loss of every missing run, but for those that fail."""

    def __init__(self) -> None:
        self.failing: list[tuple[str, int]] = []
        self.interrupts = False
        self.rounds: list[int] = []

    def sweep(self, plan: Plan, _corpora: Any, store: Store, _console: Any) -> Any:
        self.rounds.append(len(plan.missing))
        failed = [run for run in plan.missing if self.fails(run)]
        for run in plan.missing:
            if run not in failed:
                store.write_run(stored_run(run.row(), self.loss(run)), [])
        return SimpleNamespace(
            trained=len(plan.missing) - len(failed),
            failed=[SimpleNamespace(run_ids=[run.run_id], reason="no memory") for run in failed],
            interrupted=self.interrupts,
        )

    def fails(self, run: PlannedRun) -> bool:
        return (run.config.ffn.label, run.config.seed) in self.failing

    def loss(self, run: PlannedRun) -> float:
        """SwiGLU is better at the low rate, TriPLU at the high one."""
        low = run.config.learning_rate == 1e-3
        return 1.0 if low == (run.config.ffn.label == "swiglu") else 2.0


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    workers = Workers()
    monkeypatch.setitem(sys.modules, "triplu_ray.raytune", workers)
    return workers


def test_a_sweep_trains_what_it_has_chosen(
    command: Command, tmp_path: Path, workers: Workers
) -> None:
    space = write_space(tmp_path, select=SELECT)
    code, out, _ = command("plan", space)
    assert code == 0
    assert "8 runs, 0 done, 8 missing in 8 cohorts" in out
    assert "4 more runs are to come, at what these choose" in out
    assert json.loads(command("plan", space, "--json")[1])["pending"] == 4
    code, out, err = command("sweep", space, "--json")
    assert code == 0
    assert json.loads(out) == {
        "space": "tiny", "runs": 12, "done_before": 0, "pending": 0, "trained": 12, "failed": [],
        "interrupted": False,
    }  # fmt: skip
    assert workers.rounds == [8, 4]
    assert "chosen for swiglu: learning_rate 0.001\n" in err
    assert "chosen for triplu: learning_rate 0.003\n" in err
    runs = Store("results").read_runs().to_pandas()
    compared = runs[runs["seed"] < 100]
    assert {(run.variant, run.learning_rate) for run in compared.itertuples()} == {
        ("swiglu", 1e-3),
        ("triplu", 3e-3),
    }
    records = Store("results").read_records("spaces/tiny")
    assert sorted(len(record["runs"]) for record in records) == [8, 12]
    code, out, err = command("sweep", space, "--json")
    assert (code, workers.rounds) == (0, [8, 4])
    assert "tiny: all 12 runs are done" in err
    assert (json.loads(out)["done_before"], json.loads(out)["trained"]) == (12, 0)


def test_a_failed_candidate_is_in_the_way_of_its_variant_alone(
    command: Command, tmp_path: Path, workers: Workers
) -> None:
    space = write_space(tmp_path, select=SELECT)
    workers.failing = [("triplu", 101)]
    code, out, err = command("sweep", space, "--json")
    assert code == 1
    # SwiGLU's two runs and, once more, the two that failed
    assert workers.rounds == [8, 4]
    summary = json.loads(out)
    assert {key: summary[key] for key in ("runs", "done_before", "pending", "trained")} == {
        "runs": 10, "done_before": 0, "pending": 2, "trained": 8,
    }  # fmt: skip
    assert len(summary["failed"]) == 2
    assert "chosen for triplu" not in err
    workers.failing = []
    code, out, _ = command("sweep", space, "--json")
    assert (code, workers.rounds) == (0, [8, 4, 2, 2])
    assert (json.loads(out)["done_before"], json.loads(out)["trained"]) == (8, 4)


def test_an_interrupted_selection_goes_on_with_the_same_command(
    command: Command, tmp_path: Path, workers: Workers
) -> None:
    space = write_space(tmp_path, select=SELECT)
    workers.interrupts, workers.failing = True, [("swiglu", 101), ("swiglu", 102)]
    code, out, err = command("sweep", space, "--json")
    assert (code, json.loads(out)["pending"]) == (130, 4)
    assert f"go on with: triplu-ray sweep {space} --store results" in err
    workers.interrupts, workers.failing = False, []
    code, out, _ = command("sweep", space, "--json")
    # SwiGLU's four candidates and TriPLU's two runs, then SwiGLU's two
    assert (code, workers.rounds) == (0, [8, 6, 2])
    assert (json.loads(out)["done_before"], json.loads(out)["trained"]) == (4, 8)
