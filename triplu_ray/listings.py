"""What the command line prints of plans and variants."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from triplu_ray.config import FFN_KEYS, VARIANTS, is_complete, resolve_ffn
from triplu_ray.plan import Plan, PlannedStudy
from triplu_ray.progress import duration
from triplu_ray.resolve import matched_width


def plan_json(plan: Plan, workers: int, measured: Mapping[str, float]) -> dict[str, Any]:
    """The plan as one object; `measured` are FLOPs a second by precision."""
    content = {
        "space": plan.space.header.name,
        "baseline": plan.baseline,
        "targets": list(plan.space.header.targets),
        "runs": plan.rows(),
        "cohorts": [
            {"cohort_id": c.cohort_id, "run_ids": [run.run_id for run in c.runs]}
            for c in plan.cohorts
        ],
        "done": len(plan.done),
        "missing": len(plan.missing),
        "pending": plan.pending,
        "tokens": sum(run.tokens for run in plan.missing),
        "training_flops": sum(run.training_flops for run in plan.missing),
        "estimated_seconds": plan.estimated_seconds(workers, measured),
        "estimate_from": _estimate_from(plan, measured),
        "workers": workers,
    }
    return content | ({"studies": [_study(one) for one in plan.studies]} if plan.studies else {})


def _study(study: PlannedStudy) -> dict[str, Any]:
    """How far a study is."""
    suggestions = [
        {
            "number": one.number,
            "values": dict(one.values),
            "status": "stopped early" if one.pruned else "done" if one in study.done else "begun",
            "objective": study.objective(one),
        }
        for one in study.suggestions
    ]
    done = {"suggestions": suggestions, "done": len(study.done), "is_done": study.is_done}
    return study.record() | {"num_suggestions": study.search.num_suggestions} | done


def print_plan(plan: Plan, workers: int, measured: Mapping[str, float], console: Console) -> None:
    """A table, its sums, and what is not known yet."""
    console.print(plan_table(plan))
    seconds = duration(plan.estimated_seconds(workers, measured))
    cohorts = f"{len(plan.cohorts)} cohorts"
    console.print(
        f"{len(plan.runs)} runs, {len(plan.done)} done, {len(plan.missing)} missing in {cohorts}; "
        f"{sum(run.tokens for run in plan.missing):,} token positions "
        f"to train, about {seconds} with {workers} workers (from {_estimate_from(plan, measured)})"
    )
    for study in plan.studies:
        console.print(study.line())
    if plan.pending:
        what = "as they are suggested and confirmed" if plan.studies else "at what these choose"
        console.print(f"{plan.pending} more runs are to come, {what}")


def _estimate_from(plan: Plan, measured: Mapping[str, float]) -> str:
    runs = (*plan.missing, *plan.stand_ins)
    known = all(run.config.precision in measured for run in runs)
    return "finished runs" if known else "an assumed rate"


def plan_table(plan: Plan) -> Table:
    """One row for runs that differ in nothing but the seed; suggestions are told in lines."""
    axes = [axis for axis in plan.axes() if axis not in ("seed", "variant", "hidden")]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in plan.rows():
        if row["run_id"] in plan.suggested:
            continue
        key = (row["variant"], row["hidden"], *(row[axis] for axis in axes))
        groups.setdefault(key, []).append(row)
    shared = [axis for axis in axes if axis not in FFN_KEYS]
    baselines = {
        tuple(row[axis] for axis in shared): row["params"]
        for row in plan.rows()
        if row["variant"] == plan.baseline
    }
    table = Table(*("variant", "hidden", *axes), title=plan.space.header.name, title_justify="left")
    for heading in ("seeds", "done", "params", "vs baseline", "FFN FLOPs/token", "tokens/run"):
        table.add_column(heading, justify="right")
    for key, rows in groups.items():
        first = rows[0]
        baseline = baselines.get(tuple(first[axis] for axis in shared))
        mismatch = f"{first['params'] / baseline - 1:+.2%}" if baseline else "-"
        table.add_row(
            *(str(value) if value is not None else "-" for value in key),
            str(len(rows)),
            str(sum(row["done"] for row in rows)),
            f"{first['params']:,}",
            mismatch,
            f"{first['ffn_flops_per_token']:,}",
            f"{first['tokens']:,}",
        )
    return table


def variant_rows(widths: Sequence[int]) -> list[dict[str, Any]]:
    """Every variant for each `d_model`, at the width that matches SwiGLU of the papers' size."""
    rows = []
    for d_model in widths:
        baseline = resolve_ffn("swiglu", {}, "")
        hidden = {96: 322, 256: 768}.get(d_model, round(8 * d_model / 3))
        for name in filter(is_complete, VARIANTS):
            ffn = resolve_ffn(name, {}, "")
            width = matched_width(ffn, baseline, hidden, d_model)
            rows.append(
                {
                    "variant": name,
                    "label": ffn.label,
                    "formula": ffn.formula,
                    "d_model": d_model,
                    "hidden": width,
                    "params": ffn.num_params(d_model, width),
                    "flops": ffn.flops(d_model, width),
                }
            )
    return rows


def variant_table(rows: Sequence[dict[str, Any]]) -> Table:
    """`variant_rows` to read."""
    table = Table(title="Feed-forward variants: one layer, FLOPs a token", title_justify="left")
    for key in rows[0]:
        table.add_column(key, justify="right" if isinstance(rows[0][key], int) else "left")
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else v for v in row.values()))
    return table
