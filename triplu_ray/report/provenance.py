"""Where the numbers of a report come from."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from triplu_ray.report.model import Column, Table


def provenance_table(runs: pd.DataFrame, sweeps: Sequence[Mapping[str, Any]]) -> Table:
    """Code, machines, text, memory, and what sweeps took; `runs` as in a Comparison."""
    stored = runs[runs["status"] != "missing"]
    counts = runs["status"].value_counts()
    facts = {
        "runs planned": f"{len(runs)}",
        **{f"runs {status}": f"{counts[status]}" for status in counts.index.sort_values()},
        "code": _distinct(stored["git_sha"]),
        "versions": _versions(stored["versions"]),
        "hardware": _distinct(stored["hardware"]),
        "corpus": _distinct(stored["corpus_sha256"].str[:16]),
        "training time": f"{stored['seconds'].sum() / 3600:.2f} hours of one process",
        "peak memory": f"{stored['peak_memory_mib'].max():,.0f} MiB a worker",
        "cohort start": f"{stored['start_seconds'].median():.1f} s on the median, "
        f"{stored['start_seconds'].max():.1f} s at most",
        "resumes from a checkpoint": f"{stored.groupby('cohort_id')['resumes'].max().sum():.0f}",
        **_sweeps(sweeps),
    }
    frame = pd.DataFrame({"fact": list(facts), "value": list(facts.values())})
    columns = [Column("", ("fact",)), Column("", ("value",))]
    return Table("provenance", "Provenance", frame, columns)


def _sweeps(sweeps: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the sweeps that trained took, and the time that their workers were at no cohort.

    That is 1 - busy / (wall x workers) of those that came to their end: what a worker was at when
    it was interrupted is in no record.
    """
    trained = [sweep for sweep in sweeps if sweep["trained"]]
    if not trained:
        return {}
    whole = [sweep for sweep in trained if not sweep.get("interrupted")]
    available = sum(sweep["wall_seconds"] * sweep["workers"] for sweep in whole)
    busy = sum(sweep["busy_seconds"] for sweep in whole)
    start = max(sweep["ray_start_seconds"] for sweep in trained)
    wall = sum(sweep["wall_seconds"] for sweep in trained)
    cut = f", {len(trained) - len(whole)} interrupted" if len(whole) < len(trained) else ""
    apart = "start of Ray and of workers, between cohorts, idle at the end"
    outside = {} if not available else {
        "workers' time outside cohorts": f"{1 - busy / available:.1%}: {apart}"
    }  # fmt: skip
    return {
        "sweeps": f"{len(trained)}{cut}, {wall / 3600:.2f} hours of wall time",
        **outside,
        "Ray's start": f"{start:.1f} s at most",
    }


def _distinct(values: "pd.Series[str]") -> str:
    counts = values.fillna("unknown").value_counts().sort_index()
    if len(counts) == 1:
        return str(counts.index[0])
    return "; ".join(f"{value} ({count} runs)" for value, count in counts.items())


def _versions(texts: "pd.Series[str]") -> str:
    """Each library once, with all the versions that were used."""
    table = pd.DataFrame([json.loads(text) for text in texts.dropna().unique()])
    return ", ".join(
        f"{library} {' and '.join(sorted(table[library].dropna().astype(str).unique()))}"
        for library in table
    )
