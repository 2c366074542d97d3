"""A report's folder, which is also a store: the same report can be made from it again."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from triplu_ray.files import write_atomically
from triplu_ray.report.markdown import to_markdown
from triplu_ray.report.model import Report
from triplu_ray.report.webpage import to_html
from triplu_ray.store import Store, parquet_bytes

FORMATS = ("md", "html", "json")


def report_json(report: Report) -> dict[str, Any]:
    """The report's words and the raw numbers of its tables, None for what is not a number."""
    return {
        "space": report.space,
        "description": report.description,
        "headline": list(report.headline),
        "warnings": list(report.warnings),
        "text": {section.title: list(section.text) for section in report.sections if section.text},
        "tables": {
            table.name: _records(table.frame if table.raw is None else table.raw)
            for table in report.tables()
        },
    }


def write_report(
    report: Report, store: Store, folder: Path, formats: Iterable[str] = FORMATS
) -> Path:
    """Write `<folder>/<space>/`: the report in each format, its figures, runs, evaluations, probes.

    Those of the twins too, so that the folder tells what the report tells. Returns the folder.
    Equal reports give equal files.
    """
    wanted = set(formats)
    files: dict[str, bytes] = {}
    if "md" in wanted:
        files["report.md"] = to_markdown(report).encode()
    if "html" in wanted:
        files["report.html"] = to_html(report).encode()
    if "json" in wanted:
        text = json.dumps(report_json(report), indent=1, ensure_ascii=False, allow_nan=False)
        files["report.json"] = f"{text}\n".encode()
    for figure in report.figures() if wanted & {"md", "html"} else []:
        png, svg = figure.images
        files[f"figures/{figure.name}.png"] = png
        files[f"figures/{figure.name}.svg"] = svg.encode()
    run_ids = [*report.run_ids, *report.twin_ids]
    files["runs.parquet"] = parquet_bytes(store.read_runs(run_ids))
    files["evals.parquet"] = parquet_bytes(store.read_evals(run_ids))
    probes = store.read_probes(run_ids)
    if len(probes):
        files["probes.parquet"] = parquet_bytes(probes)
    record = json.dumps(report.record, indent=1) + "\n"
    files[f"spaces/{report.space}/space.json"] = record.encode()
    for name, content in files.items():
        write_atomically(folder / report.space / name, content)
    return folder / report.space


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    finite = frame.replace([float("inf"), float("-inf")], float("nan")).astype(object)
    records = finite.where(finite.notna(), None).to_dict("records")
    return [{str(key): value for key, value in row.items()} for row in records]
