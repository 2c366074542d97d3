"""The section of a report that shows a search: tables, figures, and what to beware of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from triplu_ray.compare import value_text
from triplu_ray.report.figures import share_ylabel, short_setting
from triplu_ray.report.model import Column, Figure, Section, Table, axis_words, by_itself
from triplu_ray.report.search import Found, FoundStudy, confirmations
from triplu_ray.report.style import BASELINE, INK, colours, line_key, panels

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

MAX_PANELS = 9


def search_section(found: Found) -> Section:
    """What each study found, and whether it is confirmed."""
    fresh = confirmations(found)
    tables = [_studies_table(found, fresh)]
    tables += [_confirmation_table(found, fresh)] if len(fresh) else []
    return Section("Search", tables=tables, figures=[*_figures(found)])


def search_sentences(found: Found) -> list[str]:
    """How the variants came to their values, and whether these beat the fixed ones."""
    fresh = confirmations(found)
    fixed = fresh[fresh["against"] != found.everything.baseline] if len(fresh) else fresh
    lines = [
        f"{row['study']} at {row['values']} is {row['verdict']} "
        f"{'against' if row['verdict'] == 'undecided' else 'of'} {row['against']} on fresh seeds: "
        f"mean paired gap {row['mean_gap']:+.4f} (95 % interval {row['t_low']:+.4f} to "
        f"{row['t_high']:+.4f})."
        for row in fixed.to_dict("records")
        if row["verdict"]
    ]
    return [found.sentence, *lines]


def search_warnings(found: Found) -> list[str]:
    """What a reader must know before believing a search, one line each."""
    studies, words = found.studies, found.words
    unfinished = [
        f"{study.name} has {len(study.tried) + study.stopped} of {study.wanted}"
        for study in studies
        if len(study.tried) + study.stopped < study.wanted
    ]
    edges = [
        f"{study.name} {axis_words(key)} {value_text(study.best.values[key])} ({study.edge(key)})"
        for study in studies
        for key in study.keys
        if study.best and study.edge(key)
    ]
    waiting = [study.name for study in studies if not study.confirmed]
    lines = {
        "suggestions are still to come or to train": unfinished,
        f"best {words} at the end of what was tried": edges,
    }
    if found.confirm_seeds:
        lines[f"the best {words} is not confirmed on fresh seeds yet"] = waiting
    warnings = [f"{line}: {', '.join(names)}" for line, names in lines.items() if names]
    if not found.is_confirmed:
        warnings.append(
            f"the best {words} is picked on the seeds that are reported, which flatters whatever "
            "has more values to pick from; fresh seeds would settle it"
        )
    return warnings


def _studies_table(found: Found, fresh: pd.DataFrame) -> Table:
    metric = found.everything.metric
    frame = pd.DataFrame([_study_row(study, fresh) for study in found.studies])
    columns = [Column("study", ("study",)), Column("suggestions", ("made", "wanted"), "d", " of ")]
    for key in found.keys:
        words = axis_words(key)
        columns += [
            Column(f"best {words}", (f"best_{key}",)),
            Column("within noise", (f"low_{key}", f"high_{key}")),
            Column(f"fixed {words}", (f"fixed_{key}",)),
        ]
    columns += [
        Column(f"best {metric.words}", ("loss",), ".4f"),
        Column("diverged", ("diverged",), "d"),
        Column("stopped early", ("stopped",), "d"),
        Column("on fresh seeds", ("verdicts",)),
    ]
    idle = {name for name in ("diverged", "stopped") if not frame[name].any()}
    columns = [column for column in columns if not idle.intersection(column.keys)]
    note = (
        f"Best validation {metric.words} is the mean over the seeds that were searched on "
        f"({', '.join(map(str, found.seeds))}); the best suggestion has the lowest, one with a "
        "diverged seed counting as infinitely bad. Within noise: from the lowest to the highest "
        "value whose mean is no worse than the best's by more than a one-sided 95 % bound, the "
        "noise being what is left of the better half's losses when each value and each seed has a "
        "level of its own."
    )
    return Table("search", "Searches", frame, columns, note, raw=_suggestions(found))


def _study_row(study: FoundStudy, fresh: pd.DataFrame) -> dict[str, object]:
    row: dict[str, object] = {
        "study": study.name,
        "made": study.made,
        "wanted": study.wanted,
        "loss": study.best and study.best.mean,
        "diverged": sum(one.mean is None for one in study.tried),
        "stopped": study.stopped,
    }
    for key in study.keys:
        near = sorted(one.values[key] for one in study.near)
        row[f"best_{key}"] = study.best and value_text(study.best.values[key])
        row[f"low_{key}"] = value_text(near[0]) if near else None
        row[f"high_{key}"] = value_text(near[-1]) if near else None
        row[f"fixed_{key}"] = study.fixed and value_text(study.fixed[key])
    mine = fresh[fresh["study"] == study.name] if len(fresh) else fresh
    verdicts = [
        f"{one['verdict']} {'against' if one['verdict'] == 'undecided' else 'of'} {one['against']}"
        for one in mine.to_dict("records")
        if one["verdict"]
    ]
    row["verdicts"] = ", ".join(verdicts) or None
    return row


def _suggestions(found: Found) -> pd.DataFrame:
    """Every suggestion that was trained to its end, one row a seed."""
    return pd.DataFrame(
        [
            {
                "study": study.name,
                **one.values,
                "run_id": run_id,
                "loss": loss,
                "mean_loss": one.mean,
                "is_best": one is study.best,
                "is_within_noise": one in study.near,
            }
            for study in found.studies
            for one in study.tried
            for run_id, loss in zip(one.run_ids, one.losses, strict=True)
        ]
    )


def _confirmation_table(found: Found, fresh: pd.DataFrame) -> Table:
    metric = found.everything.metric
    columns = [
        Column("study", ("study",)),
        Column("best", ("values",)),
        Column("against", ("against",)),
        Column("mean gap", ("mean_gap",), "+.4f"),
        Column("95 % interval (t)", ("t_low", "t_high"), "+.4f"),
        Column("wins", ("wins", "n"), "d", "/"),
        Column("the best is", ("verdict",)),
        Column(f"its {metric.words}", ("loss",), ".4f"),
        Column(f"the other's {metric.words}", ("loss_against",), ".4f"),
    ]
    seeds = ", ".join(map(str, found.confirm_seeds))
    note = (
        f"Runs on seeds that nothing was searched on: {seeds}. The gap is the other's best "
        f"validation {metric.words} minus the best's at the same seed; ahead or behind means that "
        "its 95 % paired t interval lies above or below zero, undecided that it holds zero."
        f"{by_itself(fresh['t_low'].count())}"
    )
    return Table("confirmation", "The best on fresh seeds", fresh, columns, note)


def _figures(found: Found) -> Sequence[Figure]:
    metric = found.everything.metric
    drawn = []
    for key in found.keys:
        shown = [study for study in found.studies if study.tried and key in study.keys]
        left_out = sum(study.stopped for study in shown)
        caption = (
            f"Best validation {metric.words} by {axis_words(key)}: the mean, and each seed faint. "
            "The vertical line is the best value, the band what lies within noise of it, the "
            "dotted line the fixed value. A cross is a suggestion with a diverged seed."
        )
        caption += f" {left_out} suggestions that were stopped early are left out." * bool(left_out)
        caption += f" Shown are {MAX_PANELS} of {len(shown)} studies." * (len(shown) > MAX_PANELS)
        if shown:
            draw = partial(losses_by_value, found, key, shown[:MAX_PANELS])
            drawn.append(Figure(f"search_by_{key}", caption, draw))
    return drawn


def losses_by_value(found: Found, key: str, studies: Sequence[FoundStudy]) -> MatplotlibFigure:
    """Loss of every seed against a searched key, a panel a study."""
    from matplotlib.patches import Patch
    from matplotlib.ticker import LogLocator, NullLocator

    palette = colours([study.name for study in studies], None)
    wide = len(studies) == 1
    figure, axes = panels(len(studies), 3, 6.4 if wide else 3.4, 4.0 if wide else 3.0)
    for ax, study in zip(axes, studies, strict=True):
        _draw_study(ax, study, key, palette[study.name], _baseline_mean(found, study))
        ax.set_title(short_setting(study.name))
        ax.set_xlabel(axis_words(key))
        if key in found.logarithmic:
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter("{x:g}")
    share_ylabel(axes, 3, f"best validation {found.everything.metric.words}")
    handles: list[Artist] = [
        line_key(INK, "best"),
        Patch(color=INK, alpha=0.12, linewidth=0, label="within noise"),
    ]
    if any(study.fixed for study in studies):
        handles.append(line_key(INK, "fixed", style=":"))
    if any(_baseline_mean(found, study) for study in studies):
        name = str(found.everything.baseline)
        handles.append(line_key(BASELINE, name, width=1.8, style="--"))
    figure.legend(handles=handles, loc="outside upper left", ncols=4)
    return figure


def _draw_study(
    ax: Axes, study: FoundStudy, key: str, colour: str, baseline_mean: float | None
) -> None:
    tried = sorted(study.tried, key=lambda one: one.values[key])
    whole = [one for one in tried if one.mean is not None]
    near = sorted(one.values[key] for one in study.near)
    if near:
        ax.axvspan(near[0], near[-1], color=colour, alpha=0.12, linewidth=0)
    if baseline_mean is not None:
        ax.axhline(baseline_mean, color=BASELINE, linestyle="--", linewidth=1.2)
    if study.best is not None:
        ax.axvline(study.best.values[key], color=colour, linewidth=1.2)
    if study.fixed is not None:
        ax.axvline(study.fixed[key], color=INK, linewidth=1.2, linestyle=":")
    losses = np.array([one.losses for one in whole], float)
    values = [one.values[key] for one in whole]
    if whole:
        # With a second key, neighbours by this one are none.
        line, mean = ("-", "") if len(study.keys) == 1 else ("none", "_")
        ax.plot(values, losses, color=colour, ls=line, lw=0.6, alpha=0.45, marker="o", ms=3.5)
        ax.plot(values, losses.mean(axis=1), color=colour, ls=line, marker=mean, ms=9)
    lost = [one.values[key] for one in tried if one.mean is None]
    top = ax.get_xaxis_transform()
    ax.scatter(lost, [0.97] * len(lost), marker="x", color=colour, transform=top)


def _baseline_mean(found: Found, study: FoundStudy) -> float | None:
    """Of the baseline's runs that are like those of a study, on the seeds that were searched on."""
    comparison = found.everything
    runs = comparison.runs
    own = runs["run_id"].isin(study.tried[0].run_ids)
    settings = runs.loc[own, "setting"]
    is_like = (runs["label"] == comparison.baseline) & runs["setting"].isin(settings)
    losses = runs.loc[
        is_like & runs["seed"].isin(found.seeds) & (runs["status"] == "finished"),
        comparison.metric.best,
    ]
    # A baseline that is searched too has no one level.
    is_one = len(losses) and not losses.index.has_duplicates and is_like.any()
    return float(losses.mean()) if is_one and study.name != comparison.baseline else None
