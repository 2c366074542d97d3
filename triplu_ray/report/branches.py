"""What is seen inside the layers: how PolyGLU routes, how alike the untied branches are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from triplu_ray.compare import GROUP, Comparison
from triplu_ray.report import figures
from triplu_ray.report.model import Column, Figure, Table
from triplu_ray.report.style import COLOURS, gradient, panels, step_ticks
from triplu_ray.report.tables import setting_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

ACTIVATIONS = ("relu", "tanh", "silu", "gelu")
MAX_ENTROPY = math.log(len(ACTIVATIONS))
"""Nats, of routers that prefer nothing."""
MAX_COLUMN_LAYERS = 12
"""Similarities of more layers than that are in report.json only."""
COLUMNS = 3
"""Panels side by side."""


def routing_by_layer(comparison: Comparison, probes: pd.DataFrame) -> pd.DataFrame:
    """How each layer routes, means over the seeds of finished runs, a row a setting, label, layer.

    Columns: layer (from 0), entropy in nats and relative_entropy over the ln 4 it can be at most,
    mean weights relu, tanh, silu and gelu, static, the static preferences' share in the variance of
    the logits, and seeds.
    """
    rows = _by_layer(comparison, probes, "routing")
    index = [*GROUP, "layer"]
    table = rows.pivot_table(index=index, columns="quantity", values="value", sort=False)
    table = table.reindex(columns=["entropy", *ACTIVATIONS, "static"])
    table.insert(1, "relative_entropy", table["entropy"] / MAX_ENTROPY)
    table["seeds"] = rows.groupby(index)["run_id"].nunique()
    return table.reset_index()


def routing_summary(comparison: Comparison, probes: pd.DataFrame) -> pd.DataFrame:
    """What PolyGLU's source says of its routing, of ours: one row a setting and label.

    Columns: routing_entropy, the mean over layers over the ln 4 it can be at most; gelu_first and
    tanh_last, the shares of GELU in the first layer and of tanh in the last one.
    """
    layers = routing_by_layer(comparison, probes).groupby(GROUP, sort=False)
    summary = layers.agg(
        routing_entropy=("relative_entropy", "mean"),
        gelu_first=("gelu", "first"),
        tanh_last=("tanh", "last"),
    )
    return summary.reset_index()


def frozen_losses(comparison: Comparison, probes: pd.DataFrame) -> pd.DataFrame:
    """What held choices cost, one row a setting and label: means over the seeds of finished runs.

    Columns: seeds, loss as routed and frozen_loss with every unit held to its favourite activation,
    nats a token, and difference, frozen minus routed, with its largest of one run.
    """
    finished = comparison.runs[comparison.runs["status"] == "finished"]
    routing = probes[(probes["probe"] == "routing") & probes["group"].isin(["loss", "frozen_loss"])]
    wide = routing.pivot(index="run_id", columns="group", values="value")
    wide = wide.reindex(columns=["loss", "frozen_loss"])
    rows = finished[["run_id", *GROUP]].merge(wide.reset_index(), on="run_id")
    return (
        rows.assign(difference=rows["frozen_loss"] - rows["loss"])
        .groupby(GROUP, sort=False)
        .agg(
            seeds=("run_id", "size"),
            loss=("loss", "mean"),
            frozen_loss=("frozen_loss", "mean"),
            difference=("difference", "mean"),
            largest_difference=("difference", "max"),
        )
        .reset_index()
    )


def similarity_by_step(comparison: Comparison, probes: pd.DataFrame) -> pd.DataFrame:
    """Similarity of the untied branches, a row a setting, label, layer and step.

    Columns: similarity, the mean over the seeds of finished runs, least and most of them, seeds.
    """
    rows = _by_layer(comparison, probes, "similarity")
    return (
        rows.groupby([*GROUP, "layer", "step"], sort=False)
        .agg(
            similarity=("value", "mean"),
            least=("value", "min"),
            most=("value", "max"),
            seeds=("run_id", "nunique"),
        )
        .reset_index()
    )


def last_similarity(comparison: Comparison, probes: pd.DataFrame) -> pd.DataFrame:
    """Similarity at each run's last evaluation, a row a setting, label and layer: means of seeds.

    Columns: similarity and seeds.
    """
    rows = _by_layer(comparison, probes, "similarity")
    last = rows[rows["step"] == rows.groupby("run_id")["step"].transform("max")]
    return (
        last.groupby([*GROUP, "layer"], sort=False)
        .agg(similarity=("value", "mean"), seeds=("run_id", "nunique"))
        .reset_index()
    )


def mean_similarity(comparison: Comparison, probes: pd.DataFrame) -> pd.DataFrame:
    """The mean of `last_similarity` over layers, as `similarity` by setting and label."""
    last = last_similarity(comparison, probes)
    return last.groupby(GROUP, sort=False)["similarity"].mean().reset_index()


def branch_tables(comparison: Comparison, probes: pd.DataFrame) -> list[Table]:
    """Routing by layer, routed against frozen, last similarities; each where it was probed."""
    routing = routing_by_layer(comparison, probes)
    frozen = frozen_losses(comparison, probes)
    last = last_similarity(comparison, probes)
    found = [_routing_table(routing)] if len(routing) else []
    found += [_frozen_table(frozen)] if len(frozen) else []
    return [*found, _similarity_table(last)] if len(last) else found


def branch_figures(comparison: Comparison, probes: pd.DataFrame) -> list[Figure]:
    """Activations by layer, similarity along training; each where it was probed."""
    routing = routing_by_layer(comparison, probes)
    steps = similarity_by_step(comparison, probes)
    drawn = []
    if len(routing):
        caption = (
            "Mean routing weight of each activation by layer, from the first; above a bar the "
            f"entropy in nats, at most ln 4 = {MAX_ENTROPY:.3f}." + _left_out(routing)
        )
        drawn.append(Figure("routing", caption, lambda: _draw_routing(routing)))
    if len(steps):
        caption = (
            "Cosine between the weights of the two branches along training, mean over units and "
            "seeds, range of the seeds shaded; a line a layer, the darkest the first."
            + _left_out(steps)
        )
        drawn.append(Figure("similarity", caption, lambda: _draw_similarity(steps)))
    return drawn


def _by_layer(comparison: Comparison, probes: pd.DataFrame, probe: str) -> pd.DataFrame:
    """The rows of groups such as `layer 3 entropy`, of finished runs, in order of run and layer.

    With setting, label, layer and quantity, what stands after the layer, beside them.
    """
    finished = comparison.runs.loc[comparison.runs["status"] == "finished", ["run_id", *GROUP]]
    mine = probes[probes["probe"] == probe]
    parts = mine["group"].str.extract(r"^layer (?P<layer>\d+) ?(?P<quantity>.*)$")
    mine = mine.join(parts)[parts["layer"].notna()]
    rows = finished.merge(mine.assign(layer=mine["layer"].astype(int)), on="run_id")
    order = rows.groupby(GROUP, sort=False).ngroup()
    return rows.assign(order=order).sort_values(["order", "layer", "step"], ignore_index=True)


def _routing_table(routing: pd.DataFrame) -> Table:
    columns = [
        *setting_column(routing),
        Column("variant", ("label",)),
        Column("layer", ("layer",), "d"),
        Column("entropy", ("entropy",), ".3f"),
        Column("of ln 4", ("relative_entropy",), ".1%"),
        *(Column(name, (name,), ".1%") for name in ACTIVATIONS),
        Column("static", ("static",), ".1%"),
        Column("runs", ("seeds",), "d"),
    ]
    note = (
        "Means over finished seeds, routed without noise: entropy of the routing weights in nats, "
        "mean weight of each activation, and the share of the units' own preferences in the "
        "variance of the logits, the rest being the router's."
    )
    return Table("routing", "Routing by layer", routing, columns, note)


def _frozen_table(frozen: pd.DataFrame) -> Table:
    columns = [
        *setting_column(frozen),
        Column("variant", ("label",)),
        Column("routed", ("loss",), ".4f"),
        Column("frozen", ("frozen_loss",), ".4f"),
        Column("difference", ("difference",), "+.4f"),
        Column("largest of a seed", ("largest_difference",), "+.4f"),
        Column("runs", ("seeds",), "d"),
    ]
    note = (
        "Mean validation loss in nats a token, as routed and with every unit held to the "
        "activation of its greatest mean weight; difference is frozen minus routed."
    )
    return Table("frozen_routing", "Routed against frozen", frozen, columns, note)


def _similarity_table(last: pd.DataFrame) -> Table:
    wide = last.pivot(index=GROUP, columns="layer", values="similarity")
    groups = last.groupby(GROUP, sort=False)
    frame = groups.agg(mean=("similarity", "mean"), seeds=("seeds", "max"))
    layers = list(range(wide.shape[1])) if wide.shape[1] <= MAX_COLUMN_LAYERS else []
    for layer in layers:
        frame[f"layer {layer}"] = wide[layer]
    frame = frame.reset_index()
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        Column("mean", ("mean",), "+.3f"),
        *(Column(f"layer {layer}", (f"layer {layer}",), "+.3f") for layer in layers),
        Column("runs", ("seeds",), "d"),
    ]
    note = (
        "Cosine between the weights of the two branches after the last step, mean over units and "
        "finished seeds; 1 would be squared ReLU."
    )
    return Table("similarity", "Similarity of the branches", frame, columns, note, raw=last)


def _draw_routing(routing: pd.DataFrame) -> MatplotlibFigure:
    from matplotlib.ticker import MaxNLocator

    figure, axes, parts = _panels(routing)
    for ax, (_, here) in zip(axes, parts, strict=True):
        below = np.zeros(len(here))
        for name, colour in zip(ACTIVATIONS, COLOURS, strict=False):
            ax.bar(here["layer"], here[name], 0.8, below, color=colour)
            below += here[name].to_numpy()
        for layer, entropy in zip(here["layer"], here["entropy"], strict=True):
            ax.text(layer, 1.02, f"{entropy:.2f}", ha="center", fontsize=7)
        ax.set_ylim(0, 1.1)
        ax.set_xlabel("layer")
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    figures.share_ylabel(axes, COLUMNS, "mean weight")
    palette = dict(zip(ACTIVATIONS, COLOURS, strict=False))
    figures.legend(figure, ACTIVATIONS, palette)
    return figure


def _draw_similarity(steps: pd.DataFrame) -> MatplotlibFigure:
    figure, axes, parts = _panels(steps)
    palette = gradient(int(steps["layer"].max()) + 2)
    for ax, (_, here) in zip(axes, parts, strict=True):
        for layer, line in here.groupby("layer"):
            colour = palette[int(str(layer))]
            ax.fill_between(
                line["step"], line["least"], line["most"], color=colour, alpha=0.14, linewidth=0
            )
            ax.plot(line["step"], line["similarity"], color=colour, linewidth=1.4)
        ax.set_xlabel("step")
        step_ticks(ax)
    figures.share_ylabel(axes, COLUMNS, "similarity")
    return figure


def _panels(
    frame: pd.DataFrame,
) -> tuple[MatplotlibFigure, list[Axes], list[tuple[Any, pd.DataFrame]]]:
    """A panel, titled, for each setting and label, as far as there is room."""
    parts = list(frame.groupby(GROUP, sort=False))[: figures.MAX_PAIR_PANELS]
    wide = len(parts) == 1
    figure, axes = panels(len(parts), COLUMNS, 6.4 if wide else 3.4, 3.4 if wide else 2.7)
    for ax, ((setting, label), _) in zip(axes, parts, strict=True):
        ax.set_title(figures.short_setting(f"{label}, {setting}" if setting else str(label)))
    return figure, axes, parts


def _left_out(frame: pd.DataFrame) -> str:
    count, limit = frame.groupby(GROUP).ngroups, figures.MAX_PAIR_PANELS
    return f" Shown are {limit} of {count}." if count > limit else ""
