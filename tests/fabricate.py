"""Runs that nobody trained: stores with known losses for the tests of comparison and report."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from triplu_ray.added_keys import ADDED_KEYS
from triplu_ray.config import RunConfig
from triplu_ray.ffn import Gelu
from triplu_ray.store import SCHEMAS, Store

FEED_FORWARD: dict[str, dict[str, Any]] = {
    "swiglu": {"kind": "swiglu"},
    "double_prod": {"kind": "product", "degree": 2, "gain": 1.0},
    "triplu": {"kind": "product", "degree": 3, "gain": 5.0},
    "quad_prod": {"kind": "product", "degree": 4, "gain": 25.0},
}
SUBWORD: dict[str, dict[str, Any]] = {
    "triplu_learned_gain": {"kind": "product", "degree": 3, "gain": 5.0, "learned_gain": True},
    "normed_triplu": {"kind": "product", "degree": 3, "gain": 0.1, "branch_norm": True},
}
STREAMS = {"gelu": 1, "squared_relu": 1}
HIDDEN = {"swiglu": 322, "double_prod": 322, "triplu": 242, "quad_prod": 193}
BASE = RunConfig(corpus="tinystories", ffn=Gelu(), hidden=1).model_dump(
    exclude={"ffn", "hidden", "seed", *ADDED_KEYS}
)
"""What all runs share, unless they say otherwise: the main setting, as first released."""


def planned_run(
    variant: str, seed: int, gain: float | None = None, **config: Any
) -> dict[str, Any]:
    """A run as a space record holds it; further keys change the configuration."""
    ffn = dict(config.pop("ffn", {**FEED_FORWARD, **SUBWORD}.get(variant, {"kind": variant})))
    if gain is not None:
        ffn["gain"] = gain
    hidden = config.pop("hidden", HIDDEN.get(variant, 322))
    full = {**BASE, "ffn": ffn, "hidden": hidden, "seed": seed, **config}
    streams = ffn.get("degree", STREAMS.get(ffn["kind"], 2))
    width, layers = full["d_model"], full["num_layers"]
    ffn_params = (streams + 1) * width * hidden
    params = 2 * 79 * width + 64 * width + 2 * width
    params += layers * (4 * width * width + 8 * width + ffn_params)
    return {
        "run_id": hashlib.sha256(json.dumps(full, sort_keys=True).encode()).hexdigest()[:16],
        "variant": variant,
        "seed": seed,
        "learning_rate": full["learning_rate"],
        "gain": ffn.get("gain"),
        "degree": ffn.get("degree"),
        "num_layers": layers,
        "hidden": hidden,
        "params": params,
        "ffn_flops_per_token": 2 * ffn_params,
        "flops_per_token": 2 * params,
        "tokens": full["num_steps"] * 2048,
        "config": full,
    }


def stored_run(
    planned: Mapping[str, Any],
    best_val_loss: float,
    final_val_loss: float | None = None,
    **row: Any,
) -> dict[str, Any]:
    """The row of `runs` of a planned run; further keys change the row."""
    return {
        **planned,
        "cohort_id": "c" + str(planned["run_id"]),
        "space": "synthetic",
        "best_val_loss": best_val_loss,
        "best_step": planned["config"]["num_steps"],
        "final_val_loss": best_val_loss + 0.003 if final_val_loss is None else final_val_loss,
        **dict.fromkeys(["best_bits_per_byte", "final_bits_per_byte", "heldout_loss"]),
        "heldout_bits_per_byte": None,
        "perplexity": float(np.exp(best_val_loss)),
        "seconds": 512.0,
        "tokens_per_second": planned["tokens"] / 512.0,
        "start_seconds": 3.0,
        "peak_memory_mib": 900.0,
        "resumes": 0,
        "status": "finished",
        "diverged_step": None,
        "stopped_step": None,
        "config": json.dumps(planned["config"]),
        "corpus_sha256": "5eed" * 16,
        "git_sha": "abc1234",
        "versions": json.dumps({"triplu_ray": "0.1.0", "torch": "2.12.0"}),
        "hardware": "cpu, 1 thread, 4 members",
        "finished_at": pd.Timestamp("2026-01-01", tz="UTC"),
        **row,
    }


def curve(run: Mapping[str, Any], num_evals: int = 20) -> list[dict[str, Any]]:
    """Evaluations that fall to the run's best loss, which is the last; the first is at step 0.

    In bits per byte too, where the run has them, and followed by its heldout loss.
    """
    fraction = np.linspace(0, 1, num_evals + 1)
    losses = (
        run["best_val_loss"] + 3.3 * (np.exp(-9 * fraction) - np.exp(-9)) + 0.25 * (1 - fraction)
    )
    num_steps = json.loads(run["config"])["num_steps"]
    bits = run.get("best_bits_per_byte")
    per_byte = None if bits is None else bits / run["best_val_loss"]
    rows = [
        {
            "run_id": run["run_id"],
            "step": int(num_steps * done),
            "tokens": int(run["tokens"] * done),
            "split": "validation",
            "loss": float(loss),
            "bits_per_byte": None if per_byte is None else per_byte * float(loss),
            "train_loss": None if done == 0 else float(loss) - 0.02,
            "seconds": float(run["seconds"] * done),
        }
        for done, loss in zip(fraction, losses, strict=True)
    ]
    if run.get("heldout_loss") is not None:
        heldout = {"loss": run["heldout_loss"], "bits_per_byte": run.get("heldout_bits_per_byte")}
        rows.append({**rows[-1], **heldout, "split": "heldout", "train_loss": None})
    return rows


def probe(
    run: Mapping[str, Any],
    name: str,
    values: Mapping[str, float],
    step: int | None = None,
    counts: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """Rows of `probes`: values by group, of a hundred items each; at the last step by default."""
    step = run["config"]["num_steps"] if step is None else step
    return [
        {"run_id": run["run_id"], "probe": name, "group": group, "step": step,
         "value": value, "count": (counts or {}).get(group, 100)}
        for group, value in values.items()
    ]  # fmt: skip


def frames(
    runs: list[dict[str, Any]], planned: list[dict[str, Any]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables that `compare.tidy` takes, the first with the types that the store gives."""
    return pa.Table.from_pylist(runs, SCHEMAS["runs"]).to_pandas(), pd.DataFrame(planned)


def write_space(
    store: Store,
    space: str,
    planned: list[dict[str, Any]],
    loss: Callable[[Mapping[str, Any]], float | None],
    baseline: str | None = "swiglu",
    targets: tuple[float, ...] = (),
    select: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
    columns: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _: {},
    probes: Callable[[Mapping[str, Any]], list[dict[str, Any]]] = lambda _: [],
    **row: Any,
) -> None:
    """Store a space's record and the runs that have a loss; those without one stay missing.

    A run of an infinite loss has diverged. Further keys change every row, `columns` those of a run;
    `probes` are its rows of that table.
    """
    record: dict[str, Any] = {
        "space": space,
        "description": f"What {space} answers.",
        "baseline": baseline,
        "targets": list(targets),
        "runs": planned,
    }
    record |= {"select": dict(select)} if select else {}
    record |= {"search": dict(search)} if search else {}
    store.write_record(f"spaces/{space}/plan", record)
    for run in planned:
        value = loss(run)
        if value == math.inf:
            lost = {"final_val_loss": None, "status": "diverged"}
            store.write_run({**stored_run(run, 9.0), **lost, **row}, [])
        elif value is not None:
            stored = stored_run(run, value, **columns(run))
            store.write_run({**stored, **row}, curve(stored), probes(run))
