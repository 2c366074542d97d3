"""What the command line prints of plans and variants."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from triplu_ray.config import FFN_KEYS, VARIANTS, is_complete, resolve_ffn
from triplu_ray.plan import Plan, matched_width


def plan_table(plan: Plan) -> Table:
    """One row for runs that differ in nothing but the seed."""
    axes = [axis for axis in plan.axes() if axis not in ("seed", "variant", "hidden")]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in plan.rows():
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
