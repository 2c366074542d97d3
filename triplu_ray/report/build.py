"""From a store to a report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from triplu_ray.compare import Comparison, tidy
from triplu_ray.errors import UserError, did_you_mean
from triplu_ray.report import figures, tables
from triplu_ray.report.axes import free_axes, selection_axes
from triplu_ray.report.branches import mean_similarity, routing_summary
from triplu_ray.report.caveats import equal_cost_lines, warning_lines
from triplu_ray.report.costs import (
    cost_to_target,
    equal_cost_gaps,
    equal_cost_statistics,
    evaluation_costs,
    with_train_loss,
)
from triplu_ray.report.heldout import heldout_section, heldout_summary
from triplu_ray.report.model import Figure, Report, Section, Table, axis_words
from triplu_ray.report.paper import PAPER_FILE, paper_tables, read_paper
from triplu_ray.report.precision import TWIN_COLUMNS, find_twins, precision_section
from triplu_ray.report.probes import probe_quantities, probes_section, slice_gaps
from triplu_ray.report.provenance import provenance_table
from triplu_ray.report.search import (
    merged_search,
    merged_suggestions,
    split_search,
    stopped_ids,
    trained_ids,
)
from triplu_ray.report.search_section import search_section, search_sentences, search_warnings
from triplu_ray.report.selection import Selected, merged_selection, selection_table, split
from triplu_ray.report.sentences import headline
from triplu_ray.report.setting import setting_table
from triplu_ray.report.step_time import step_time_tables, step_times, untied_costs
from triplu_ray.store import Store


def space_names(store: Store) -> list[str]:
    """The spaces that the store knows, in order."""
    return sorted({record["space"] for record in store.read_records("spaces")})


def merged_space(store: Store, space: str) -> dict[str, Any]:
    """All plans that were swept under a name, and the sweeps themselves, as one record.

    It has the form of a plan's record, so that a store may hold it in their place. Raises UserError
    if the store does not know the space.
    """
    plans = [plan for plan in store.read_records(f"spaces/{space}") if plan["space"] == space]
    if not plans:
        known = space_names(store)
        hint = did_you_mean(space, known) if known else "the store has no spaces"
        raise UserError(f"store {store.location!r}: no space {space!r}; {hint}")
    runs = {run["run_id"]: run for plan in plans for run in plan["runs"]}
    sweeps = [sweep for plan in plans for sweep in plan.get("sweeps", [])]
    sweeps += [sweep for sweep in store.read_records("sweeps") if sweep["space"] == space]
    suggestions = [one for plan in plans for one in plan.get("suggestions", [])]
    suggestions += store.read_records(f"searches/{space}")
    return {
        **plans[-1],
        "baseline": next((plan["baseline"] for plan in plans if plan["baseline"]), None),
        "targets": sorted({target for plan in plans for target in plan["targets"]}, reverse=True),
        "select": merged_selection(plans),
        "search": merged_search(plans),
        "suggestions": merged_suggestions(suggestions),
        "runs": [runs[run_id] for run_id in sorted(runs)],
        "sweeps": sorted(sweeps, key=lambda sweep: str(sweep["started_at"])),
    }


def build_report(store: Store, space: str, paper: Path = PAPER_FILE) -> Report:
    """Compare the runs of a space; `paper` is the file of published numbers, which may be absent.

    Raises UserError if the store does not know the space, or has none of its runs.
    """
    record = merged_space(store, space)
    suggestions = record["suggestions"]
    planned = pd.DataFrame(record["runs"], columns=None if record["runs"] else ["run_id"])
    planned = planned[~planned["run_id"].isin(stopped_ids(suggestions))]
    runs = store.read_runs({*planned["run_id"], *trained_ids(suggestions)}).to_pandas()
    if runs.empty:
        others = ", ".join(space_names(store))
        raise UserError(f"space {space!r}: none of its runs is finished; known spaces: {others}")
    evals = store.read_evals(runs["run_id"]).to_pandas()
    runs = with_train_loss(runs, evals)
    select, selected, search, found = record["select"], None, record["search"], None
    chosen = [select["key"]] if select else list(search["keys"]) if search else []
    everything = comparison = tidy(runs, planned, record["baseline"], chosen)
    if search:
        comparison, found = split_search(everything, search, suggestions)
        if (comparison.runs["status"] == "missing").all():
            raise UserError(f"space {space!r}: none of the runs to compare is finished")
    if select:
        comparison, selected = split(everything, select)
        if (comparison.runs["status"] == "missing").all():
            raise UserError(f"space {space!r}: no run at a chosen {select['key']} is finished")
    probes = store.read_probes(runs["run_id"]).to_pandas()
    costs = evaluation_costs(comparison, evals)
    equal = equal_cost_gaps(comparison, costs)
    at_equal_cost = equal_cost_statistics(equal)
    targets = record["targets"]
    reached = cost_to_target(comparison, costs, targets) if targets else None
    finished = (comparison.runs["status"] == "finished").any()
    others = store.read_runs(store.finished_run_ids() - {*runs["run_id"]}, TWIN_COLUMNS)
    stored = pd.concat([runs[["run_id", *TWIN_COLUMNS]], others.to_pandas()], ignore_index=True)
    twins = find_twins(comparison, stored)
    published = read_paper(paper).get(space, [])
    similarity = mean_similarity(comparison, probes)
    slices, heldout = slice_gaps(comparison, probes), heldout_summary(comparison)
    quantities = [
        heldout,
        step_times(comparison),
        routing_summary(comparison, probes),
        untied_costs(comparison, similarity),
        *probe_quantities(comparison, probes, slices),
    ]
    beside = paper_tables(published, comparison, reached, quantities)
    metric = comparison.metric
    cost_tables = [
        *([] if reached is None else [tables.target_table(reached, metric)]),
        *(tables.equal_cost_tables(equal, at_equal_cost, metric) if len(equal) else []),
        *step_time_tables(comparison, similarity),
    ]
    return Report(
        space=space,
        description=record["description"],
        headline=[
            *headline(comparison, costs, targets),
            *([selected.sentence] if selected else []),
            *(search_sentences(found) if found else []),
        ],
        warnings=[
            *warning_lines(comparison, record["baseline"], selected),
            *equal_cost_lines(at_equal_cost),
            *(search_warnings(found) if found else []),
            *_failures(everything, record),
            *(
                ["no run has the settings of the paper's tables"]
                if published and not beside
                else []
            ),
        ],
        sections=[
            Section("Setting", tables=[setting_table(comparison)]),
            _variants(comparison, costs),
            *_gaps(comparison, costs),
            *heldout_section(comparison, heldout),
            *([_selection(selected)] if selected else []),
            *([search_section(found)] if found else []),
            *(_axes(comparison) if finished else []),
            *probes_section(comparison, probes, slices),
            _costs(comparison, costs, cost_tables),
            *precision_section(twins, comparison),
            *([Section("Beside the paper", tables=beside)] if beside else []),
            Section("Provenance", tables=[provenance_table(everything.runs, record["sweeps"])]),
        ],
        run_ids=sorted(runs["run_id"]),
        twin_ids=sorted(twins.loc[~twins["is_own"], "run_id"]),
        record=record,
    )


def _variants(comparison: Comparison, costs: pd.DataFrame) -> Section:
    curves = Figure(
        "loss_curves",
        f"Validation {comparison.metric.words} by step: mean over seeds, range of the seeds "
        "shaded, each seed faint; the first quarter of the steps is left out."
        + figures.left_out(comparison, comparison.context, figures.MAX_SETTINGS),
        lambda: figures.loss_curves(comparison, costs),
    )
    return Section("Variants", tables=[tables.summary_table(comparison)], figures=[curves])


def _gaps(comparison: Comparison, costs: pd.DataFrame) -> list[Section]:
    pairs = comparison.pairs
    if pairs.empty:
        return []
    dots = Figure(
        "paired_seeds",
        f"Best validation {comparison.metric.words} of {comparison.baseline} and each variant; a "
        "line is a seed, a bar the mean." + figures.left_out_pairs(comparison),
        lambda: figures.paired_dots(comparison),
    )
    curves = Figure(
        "gap_curves",
        f"Gap to {comparison.baseline} by step: baseline minus variant at the same seed and step; "
        "above the line the variant is ahead."
        + figures.left_out(comparison, comparison.context, figures.MAX_SETTINGS),
        lambda: figures.gap_curves(comparison, costs),
    )
    ranking = Figure(
        "gap_ranking",
        f"Gap to {comparison.baseline}, best first: diamonds are means, bars their 95 % t "
        "intervals, the dots below seeds.",
        lambda: figures.gap_ranking(comparison),
    )
    drawn = [dots, curves] if pairs["gap"].notna().any() else []
    if drawn and comparison.runs["label"].nunique() > figures.MAX_LABELS:
        drawn = [ranking, *drawn]
    return [Section("Paired gaps", tables=tables.gap_tables(comparison), figures=drawn)]


def _selection(selected: Selected) -> Section:
    """Loss by value on the selection seeds, and what was chosen."""
    key, candidates = selected.key, selected.candidates
    figure = Figure(
        f"selection_by_{key}",
        f"Best validation loss by {axis_words(key)} on the selection seeds: lines are means, dots "
        "are seeds."
        + figures.left_out(
            candidates,
            candidates.context[:-1],
            figures.MAX_SETTINGS,
            figures.axis_names(candidates, key),
        ),
        lambda: figures.loss_against_axis(candidates, key),
    )
    drawn = [figure] if (candidates.runs["status"] == "finished").any() else []
    return Section("Selection", tables=[selection_table(selected)], figures=drawn)


def _axes(comparison: Comparison) -> list[Section]:
    """A section for each axis that varies and has an order: context, gain, degree."""
    sections = []
    picked = selection_axes(comparison)
    for axis in free_axes(comparison):
        found = [tables.axis_table(comparison, axis)]
        found += [tables.best_value_table(comparison, axis)] if axis in picked else []
        sections.append(_axis_section(comparison, axis, found))
    if "gain" in picked:
        found = [tables.gain_table(comparison), tables.best_value_table(comparison, "gain")]
        sections.append(_axis_section(comparison, "gain", found))
    if comparison.runs["degree"].nunique() > 1:
        sections.append(_axis_section(comparison, "degree", [tables.degree_table(comparison)]))
    return sections


def _axis_section(comparison: Comparison, axis: str, found: Sequence[Table | None]) -> Section:
    words = axis_words(axis)
    rest = [key for key in comparison.context if key != axis]
    names = figures.axis_names(comparison, axis)
    figure = Figure(
        f"loss_by_{axis}",
        f"Best validation {comparison.metric.words} by {words}: lines are means, dots are seeds."
        + " A grey line joins plain products of one degree each." * (axis == "degree")
        + figures.left_out(comparison, rest, figures.MAX_SETTINGS, names),
        lambda: figures.loss_against_axis(comparison, axis),
    )
    title = {"num_layers": "Depth"}.get(axis, words.capitalize())
    return Section(title, tables=[table for table in found if table], figures=[figure])


def _costs(comparison: Comparison, costs: pd.DataFrame, found: Sequence[Table]) -> Section:
    metric = comparison.metric
    figure = Figure(
        "loss_by_cost",
        f"Validation {metric.words} against training tokens, training FLOPs and seconds, drawn as "
        "the curves above, but for the range over seconds, which no two seeds share."
        + figures.left_out(comparison, comparison.context, figures.MAX_COST_SETTINGS),
        lambda: figures.loss_against_costs(comparison, costs),
    )
    return Section("Cost", tables=found, figures=[figure])


def _failures(comparison: Comparison, record: dict[str, Any]) -> list[str]:
    """Why missing runs are missing, where the last sweep knows."""
    missing = set(comparison.runs.loc[comparison.runs["status"] == "missing", "run_id"])
    last = record["sweeps"][-1:]
    return [
        f"cohort {failure['cohort_id']} failed in the last sweep: {failure['reason']}"
        for sweep in last
        for failure in sweep["failed"]
        if missing & set(failure["run_ids"])
    ]
