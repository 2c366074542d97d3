"""What `triplu-ray bench` says: a table and a figure of ratios, in the form of a report."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from triplu_ray.bench.subjects import PLAIN
from triplu_ray.files import write_atomically
from triplu_ray.report.markdown import to_markdown
from triplu_ray.report.model import Column, Figure, Report, Section, Table
from triplu_ray.report.style import colours, panels

COLUMNS = (
    Column("model", ("model",)),
    Column("mode", ("mode",)),
    Column("ratio", ("ratio",), ".2f"),
    Column("middle half", ("ratio_low", "ratio_high"), ".2f"),
    Column("k tokens/s, all", ("k_tokens_per_second",), ",.1f"),
    Column("a member", ("k_tokens_per_second_member",), ",.1f"),
    Column("products", ("products_share",), ".0%"),
    Column("start s", ("start_seconds",), ".1f"),
    Column("compile s", ("compile_seconds",), ".1f"),
    Column("peak MiB", ("peak_memory_mib",), ",.0f"),
)
NOTE = (
    "ratio is tokens a second, all members together, over those of the plain eager fp32 loop, "
    "taken round by round: median and middle half of the rounds; for several workers it is over "
    "one of them. products is the share of a step that its bare matrix products take, measured in "
    "turns with it on tensors of the same shapes and dtype. Compiling takes little where the code "
    "is on disk already. Tokens a second alone mean nothing on a shared machine."
)


def bench_report(name: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Report:
    """Of the rows of `measure`; `facts` say where and how they were measured."""
    frame = pd.DataFrame(rows)
    frame["k_tokens_per_second"] = frame["tokens_per_second"] / 1e3
    frame["k_tokens_per_second_member"] = frame["tokens_per_second_member"] / 1e3
    table = Table("bench", "Speed", frame, COLUMNS, NOTE)
    figure = Figure(
        "speed",
        "Tokens a second over the plain eager fp32 loop: median and middle half of the rounds.",
        lambda: draw_ratios(frame),
    )
    return Report(
        space=name,
        description="Training speed on one machine, as ratios to a plain PyTorch loop",
        headline=[_sentence(model) for _, model in frame.groupby("model", sort=False)],
        warnings=[],
        sections=[Section("Speed", tables=[table, facts_table(facts)], figures=[figure])],
    )


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Where and how something was measured."""
    frame = pd.DataFrame([{"key": key, "value": str(facts[key])} for key in facts])
    return Table("facts", "Measured on", frame, (Column("", ("key",)), Column("", ("value",))))


def _sentence(rows: pd.DataFrame) -> str:
    engine = (rows["over"] == PLAIN.name) & (rows["mode"] != PLAIN.name)
    alone = rows[engine & (rows["members"] == 1)]
    best = alone.sort_values("ratio").iloc[-1]
    how = f"{best['ratio']:.2f} times as fast as the plain loop"
    return f"{best['model']}: {best['mode']} trains {how}."


def draw_ratios(frame: pd.DataFrame) -> MatplotlibFigure:
    """A panel for each model, a bar for each mode that is compared with the plain loop."""
    frame = frame[frame["over"] == PLAIN.name]
    models = frame["model"].unique()
    drawn, axes = panels(len(models), 2, 5.0, 2.6)
    palette = colours(frame["mode"], PLAIN.name)
    for ax, model in zip(axes, models, strict=True):
        rows = frame[frame["model"] == model].iloc[::-1]
        errors = [rows["ratio"] - rows["ratio_low"], rows["ratio_high"] - rows["ratio"]]
        ax.barh(rows["mode"], rows["ratio"], color=[palette[m] for m in rows["mode"]], xerr=errors)
        ax.axvline(1.0, linewidth=0.8)
        ax.grid(visible=False)
        ax.set_title(model)
        ax.set_xlabel("times the plain loop")
    return drawn


def write_bench(report: Report, content: Mapping[str, Any], folder: Path) -> Path:
    """Write `<folder>/bench/<name>/`: report.md, bench.json, the figure; returns the folder."""
    place = folder / "bench" / report.space
    write_atomically(place / "report.md", to_markdown(report).encode())
    write_atomically(place / "bench.json", (json.dumps(content, indent=1) + "\n").encode())
    for figure in report.figures():
        png, svg = figure.images
        write_atomically(place / "figures" / f"{figure.name}.png", png)
        write_atomically(place / "figures" / f"{figure.name}.svg", svg.encode())
    return place
