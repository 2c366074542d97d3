"""What figures show and name, with many variants and in bits per byte."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from comparisons import curves, swept
from fabricate import SUBWORD, frames, planned_run, stored_run, write_space
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from triplu_ray.compare import Comparison, gap_statistics, paired_gaps, tidy
from triplu_ray.report import Report, build_report, figures
from triplu_ray.report.axes import product_forms
from triplu_ray.report.tables import degree_table
from triplu_ray.store import Store

MANY = [f"variant_{place:02}" for place in range(9)]


def compared(losses: Mapping[str, Sequence[float]]) -> Comparison:
    """Losses by variant and seed."""
    planned = [planned_run(v, seed + 1) for v, of in losses.items() for seed in range(len(of))]
    runs = [stored_run(run, losses[run["variant"]][run["seed"] - 1]) for run in planned]
    return tidy(*frames(runs, planned), "swiglu")


def points(ax: Axes) -> list[list[tuple[float, float]]]:
    """The places of the dots, a list for each call that drew some."""
    offsets = [np.asarray(drawn.get_offsets(), float) for drawn in ax.collections]
    return [[(float(x), float(y)) for x, y in dots] for dots in offsets]


# Bits per byte, and more variants than colours


@pytest.fixture
def many(store: Store) -> Report:
    """Ten variants and three products at two rates, in bits per byte."""
    variants = ["swiglu", *MANY, "double_prod", "triplu", "quad_prod"]
    planned = [planned_run(variant, seed, learning_rate=rate)
               for variant in variants for seed in (1, 2, 3) for rate in (1e-4, 1e-3)]  # fmt: skip

    def bits(run: Mapping[str, Any]) -> dict[str, Any]:
        value = 1.4 + 0.01 * variants.index(run["variant"]) + 0.002 * run["seed"] ** 2
        return {"best_bits_per_byte": value, "final_bits_per_byte": value + 0.1}

    write_space(store, "many", planned, lambda _: 2.0, columns=bits, targets=(1.45,))
    return build_report(store, "many")


def test_every_figure_is_drawn_in_bits_per_byte(many: Report) -> None:
    names = {figure.name for figure in many.figures()}
    assert names == {
        "loss_curves", "gap_ranking", "paired_seeds", "gap_curves", "loss_by_learning_rate",
        "loss_by_degree", "loss_by_cost",
    }  # fmt: skip
    for figure in many.figures():
        assert figure.images[0].startswith(b"\x89PNG")
    ranking = next(figure for figure in many.figures() if figure.name == "gap_ranking")
    (ax, _) = ranking.draw().axes
    # The best of twelve is 0.01 bits behind the baseline.
    diamonds = [dots for dots in points(ax) if len(dots) == 1]
    assert diamonds[0][0] == pytest.approx((-0.01, 0.0))


def test_of_many_variants_figures_say_how_many_they_show(many: Report) -> None:
    captions = {figure.name: figure.caption for figure in many.figures()}
    assert "Shown are the best 8 of 13 variants." in captions["loss_curves"]
    assert "Shown are the best 8 of 13 variants." in captions["loss_by_learning_rate"]
    assert "Shown" not in captions["loss_by_degree"]


# Ranking


def test_the_ranking_draws_intervals_means_and_seeds() -> None:
    gaps = {"triplu": [0.02, 0.05, 0.08], "quad_prod": [-0.01, 0.0, 0.04]}
    losses = {variant: [1.1 - gap for gap in of] for variant, of in gaps.items()}
    comparison = compared({"swiglu": [1.1] * 3, **losses})
    (ax,) = figures.gap_ranking(comparison).axes
    statistics = gap_statistics(paired_gaps(comparison), comparison.metric)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["triplu", "quad_prod"]
    bars = [np.asarray(line.get_xdata(), float) for line in ax.lines[1:]]
    for bar, (_, row) in zip(bars, statistics.iterrows(), strict=True):
        assert list(bar) == pytest.approx([row["t_low"], row["t_high"]])
    seeds, mean = points(ax)[:2]
    assert [x for x, _ in seeds] == pytest.approx(gaps["triplu"])
    assert mean[0] == pytest.approx((0.05, 0.0))
    # On the bar, in its colour, nobody would see them.
    assert {y for _, y in seeds} == {0.3}
    bottom, top = ax.get_ylim()
    assert bottom > top, "the best comes first"


# Along an axis


def test_the_best_value_decides_who_is_shown() -> None:
    """One variant has the lowest loss of all at its best rate, and the highest mean."""
    losses = {(variant, rate): [1.10] for variant in ("swiglu", *MANY) for rate in (1e-4, 1e-3)}
    losses |= {("triplu", 1e-4): [1.05], ("triplu", 1e-3): [9.0]}
    comparison = swept(losses)
    names = figures.axis_names(comparison, "learning_rate")
    assert names[:2] == ["swiglu", "triplu"]
    assert len(names) == 11
    (ax,) = figures.loss_against_axis(comparison, "learning_rate").axes
    assert [1.05, 9.0] in [np.asarray(line.get_ydata(), float).tolist() for line in ax.lines]


def test_by_degree_only_products_and_the_baseline_are_shown() -> None:
    worse = {"double_prod": [1.23, 1.25], "triplu": [1.21, 1.21], "quad_prod": [1.22, 1.22]}
    others = {variant: [1.0, 1.0] for variant in MANY}
    comparison = compared({"swiglu": [1.1, 1.1], **others, **worse})
    figure = figures.loss_against_axis(comparison, "degree")
    (legend,) = figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == ["swiglu", "triplu", "quad_prod", "double_prod"]
    (ax,) = figure.axes
    joined, level = ax.lines[0], [line for line in ax.lines if line.get_linestyle() == "--"]
    assert np.asarray(joined.get_xdata(), float).tolist() == [2, 3, 4]
    assert np.asarray(joined.get_ydata(), float).tolist() == pytest.approx([1.24, 1.21, 1.22])
    assert len(level) == 1


def test_products_with_more_than_a_degree_are_named_and_not_joined() -> None:
    plain = {"double_prod": [1.3], "triplu": [1.2], "quad_prod": [1.25]}
    comparison = compared({"swiglu": [1.1], **plain, **{variant: [1.0] for variant in SUBWORD}})
    forms = dict(zip(comparison.runs["label"], product_forms(comparison.runs), strict=True))
    assert {forms[variant] for variant in plain} == {"plain"}
    assert forms["triplu_learned_gain"] == "with learned gain"
    assert forms["normed_triplu"] == "normed"
    table = degree_table(comparison)
    cells = [row[:3] for row in table.rows()]
    assert cells[:3] == [["double_prod", "2", "plain"], ["triplu", "3", "plain"],
                         ["quad_prod", "4", "plain"]]  # fmt: skip
    assert "Only the plain products differ in nothing but their degree" in table.note
    (ax,) = figures.loss_against_axis(comparison, "degree").axes
    assert np.asarray(ax.lines[0].get_ydata(), float).tolist() == pytest.approx([1.3, 1.2, 1.25])
    assert degree_table(compared(plain)).note == ""


# Pairs


def test_the_comparison_without_a_panel_is_named() -> None:
    losses = {variant: [1.0 + place / 100] for place, variant in enumerate([*MANY, *"abcd"])}
    comparison = compared({"swiglu": [1.1], **losses})
    shown = {ax.get_xticklabels()[1].get_text() for ax in figures.paired_dots(comparison).axes}
    (missing,) = set(losses) - {label.replace("\n", "") for label in shown}
    assert figures.left_out_pairs(comparison) == f" Left out of 13 comparisons: {missing}."
    del losses["a"]
    assert figures.left_out_pairs(compared({"swiglu": [1.1], **losses})) == ""


def test_long_labels_are_broken_where_a_part_ends() -> None:
    label = "untied_squared_relu similarity=0.999 hidden=512"
    assert figures.wrapped(label).split("\n") == [
        "untied_", "squared_relu", "similarity=0.999", "hidden=512"
    ]  # fmt: skip
    assert figures.wrapped("squared_relu") == "squared_relu"


@given(st.text("ab_ ", max_size=40), st.integers(1, 20))
def test_breaking_a_label_loses_nothing(label: str, width: int) -> None:
    lines = figures.wrapped(label, width).split("\n")
    assert "".join(lines).replace(" ", "") == label.replace(" ", "")
    assert all(len(line) <= width or not set("_ ") & set(line[:-1].strip()) for line in lines)


# Costs


def test_over_seconds_no_range_is_shaded() -> None:
    """Seeds are at different seconds after as many steps."""
    comparison, costs = curves()
    figure = figures.loss_against_costs(comparison, costs)
    bands = [sum(isinstance(c, PolyCollection) for c in ax.collections) for ax in figure.axes]
    assert bands == [2, 2, 0]
