"""Reports of spaces that select: what is compared, what was chosen, and many variants at once."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fabricate import planned_run, write_space

from triplu_ray.errors import UserError
from triplu_ray.report import (
    Report,
    build_report,
    figures,
    report_json,
    to_html,
    to_markdown,
    write_report,
)
from triplu_ray.report.selection import merged_selection
from triplu_ray.store import Store

RATES, SEEDS = [1e-4, 1e-3, 1e-2], [101, 102]
SELECT = {"key": "learning_rate", "values": RATES, "seeds": SEEDS}
CHOSEN = {"swiglu": 1e-3, "triplu": 1e-2, "quad_prod": 1e-3}
LOSSES = {
    "swiglu": [1.3, 1.1, 1.2],
    "triplu": [1.3, 1.2, 1.0],
    "quad_prod": [1.4, 1.2, math.inf],
}
"""By rate, on the selection seeds; on the others half a nat more, so that mixing would show."""


def loss(run: Mapping[str, Any]) -> float | None:
    by_rate = LOSSES.get(run["variant"], [1.3, 1.2, 1.25])
    value, seed = by_rate[RATES.index(run["learning_rate"])], int(run["seed"])
    return value + (0.002 * (seed - 100) if seed in SEEDS else 0.5 + 0.01 * seed)


def candidates(*variants: str, rates: Sequence[float] = RATES, **config: Any) -> list[Any]:
    return [
        planned_run(variant, seed, learning_rate=rate, **config)
        for variant, rate, seed in itertools.product(variants, rates, SEEDS)
    ]


def compared(chosen: Mapping[str, float], seeds: Sequence[int] = (1, 2, 3)) -> list[Any]:
    return [
        planned_run(variant, seed, learning_rate=rate)
        for seed in seeds
        for variant, rate in chosen.items()
    ]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(str(tmp_path_factory.mktemp("zoo")))
    planned = candidates(*CHOSEN) + compared(CHOSEN)
    write_space(store, "zoo", planned, loss, targets=(1.7,), select=SELECT)
    return store


@pytest.fixture(scope="module")
def report(zoo: Store) -> Report:
    return build_report(zoo, "zoo")


def table(report: Report, name: str) -> Any:
    return {table.name: table for table in report.tables()}[name]


# What is compared


def test_each_variant_is_compared_at_its_own_rate_on_fresh_seeds(report: Report) -> None:
    pairs = table(report, "paired_gaps").raw
    assert set(pairs["seed"]) == {1, 2, 3}
    assert set(pairs["pair"]) == {"paired"}
    # triplu at 1e-2 against swiglu at 1e-3: 1.1 - 1.0; quad_prod at 1e-3: 1.1 - 1.2
    gaps = pairs.groupby("label")["gap"].mean().to_dict()
    assert gaps == pytest.approx({"triplu": 0.1, "quad_prod": -0.1})
    summary = table(report, "variants").frame
    assert summary["label"].tolist() == ["triplu", "swiglu", "quad_prod"]
    assert summary["best_val_loss"].tolist() == pytest.approx([1.52, 1.62, 1.72])
    assert summary["finished"].tolist() == [3, 3, 3]
    assert (summary["setting"] == "").all()
    headings = [column.heading for column in table(report, "variants").columns]
    cells = [dict(zip(headings, row, strict=True)) for row in table(report, "variants").rows()]
    assert [row["learning rate"] for row in cells] == ["0.01", "0.001", "0.001"]
    assert [row["width"] for row in cells] == ["242", "322", "193"]
    assert [row["gain"] for row in cells] == ["5", "\N{EN DASH}", "25"]
    assert report.headline[0].startswith("triplu beats swiglu in 3 of 3 seeds: ")
    assert report.headline[-1] == (
        "Each variant is taken at its own best learning rate, chosen on other seeds than those "
        "compared: 101, 102."
    )


def test_the_rate_is_no_axis_and_not_picked_on_the_reported_seeds(report: Report) -> None:
    titles = [section.title for section in report.sections]
    assert titles == [
        "Setting", "Variants", "Paired gaps", "Selection", "Degree", "Cost", "Provenance"
    ]  # fmt: skip
    assert not any("the best learning rate is picked" in line for line in report.warnings)
    assert report.warnings == [
        "with 3 seeds no exact test can give p below 0.25",
        "what the headline begins with is the best of 2 variants, picked on the seeds that are "
        "reported, which flatters it; fresh seeds would settle it",
        "chosen learning rate at the edge of the grid: triplu 0.01 (highest)",
    ]


def test_provenance_and_files_hold_the_candidates_too(
    report: Report, zoo: Store, tmp_path: Path
) -> None:
    facts = table(report, "provenance").frame.set_index("fact")["value"]
    assert (facts["runs planned"], facts["runs diverged"]) == ("27", "2")
    folder = write_report(report, zoo, tmp_path, ["json"])
    again = build_report(Store(str(folder)), "zoo")
    assert to_markdown(again) == to_markdown(report)
    assert again.record["select"] == SELECT


# What was chosen


def test_the_selection_is_shown_value_by_value(report: Report) -> None:
    rows = table(report, "selection").rows()
    assert rows == [
        ["triplu", "1.3030", "1.2030", "1.0030", "0.01", "highest"],
        ["swiglu", "1.3030", "1.1030", "1.2030", "0.001", "no"],
        ["quad_prod", "1.4030", "1.2030", "2 diverged", "0.001", "no"],
    ]
    raw = json.loads(json.dumps(report_json(report), allow_nan=False))["tables"]["selection"]
    assert [row["learning_rate"] for row in raw if row["is_chosen"]] == [1e-3, 1e-3, 1e-2]
    assert [row["best_val_loss"] for row in raw if row["diverged"]] == [None]
    assert "<h2>Selection</h2>" in to_html(report)
    (figure,) = [one for one in report.figures() if one.name == "selection_by_learning_rate"]
    (ax,) = figure.draw().axes
    assert ax.get_xscale() == "log"
    means = {tuple(np.asarray(line.get_ydata(), float).round(6).tolist()) for line in ax.lines}
    assert means == {(1.303, 1.203, 1.003), (1.303, 1.103, 1.203), (1.403, 1.203)}


def test_settings_choose_apart(store: Store) -> None:
    planned = [
        run for depth in (1, 2) for run in candidates("swiglu", "triplu", num_layers=depth)
    ] + [
        planned_run(variant, seed, learning_rate=rate, num_layers=depth)
        for seed in (1, 2, 3)
        for variant, depth, rate in (
            ("swiglu", 1, 1e-3), ("swiglu", 2, 1e-3), ("triplu", 1, 1e-2), ("triplu", 2, 1e-4)
        )
    ]  # fmt: skip

    def by_depth(run: Mapping[str, Any]) -> float | None:
        turned = run["variant"] == "triplu" and run["num_layers"] == 2
        rate = RATES[::-1][RATES.index(run["learning_rate"])] if turned else run["learning_rate"]
        return loss({**run, "learning_rate": rate})

    write_space(store, "zoo", planned, by_depth, select=SELECT)
    report = build_report(store, "zoo")
    frame = table(report, "selection").frame.set_index(["setting", "label"])
    assert frame["chosen"].to_dict() == {
        ("num_layers=1", "swiglu"): "0.001",
        ("num_layers=1", "triplu"): "0.01",
        ("num_layers=2", "swiglu"): "0.001",
        ("num_layers=2", "triplu"): "0.0001",
    }
    assert table(report, "paired_gaps").raw["gap"].tolist() == pytest.approx([0.1] * 6)
    assert "by_num_layers" in {one.name for one in report.tables()}
    assert report.warnings[-1] == (
        "chosen learning rate at the edge of the grid: triplu 0.01 (highest) at num_layers=1, "
        "triplu 0.0001 (lowest) at num_layers=2"
    )


def test_a_variant_with_values_of_its_own_has_its_own_edges(store: Store) -> None:
    own = {**SELECT, "values": RATES[1:], "values_for": {"swiglu": RATES}}
    planned = candidates("swiglu") + candidates("triplu", "quad_prod", rates=RATES[1:])
    write_space(store, "zoo", planned + compared(CHOSEN), loss, select=own)
    report = build_report(store, "zoo")
    assert table(report, "selection").rows() == [
        ["triplu", "\N{EN DASH}", "1.2030", "1.0030", "0.01", "highest"],
        ["swiglu", "1.3030", "1.1030", "1.2030", "0.001", "no"],
        ["quad_prod", "\N{EN DASH}", "1.2030", "2 diverged", "0.001", "lowest"],
    ]


# Half done


def test_a_variant_without_a_choice_is_named(store: Store) -> None:
    planned = candidates("swiglu", "triplu") + compared({"swiglu": 1e-3})
    missing = planned[-4]  # triplu's last candidate
    write_space(
        store, "zoo", planned, lambda run: None if run is missing else loss(run), select=SELECT
    )
    report = build_report(store, "zoo")
    assert [row[-2:] for row in table(report, "selection").rows()] == [
        ["0.001", "no"],
        ["\N{EN DASH}", "\N{EN DASH}"],
    ]
    assert table(report, "selection").rows()[1][3] == "1.0020 (1 missing)"
    words = "no learning rate is chosen yet, for want of runs on the selection seeds: triplu"
    assert words in report.warnings
    assert report.headline[0].startswith("swiglu has a mean best loss of 1.6200")


def test_a_baseline_that_is_still_selecting_is_named(store: Store) -> None:
    planned = candidates("swiglu", "triplu") + compared({"triplu": 1e-2})
    write_space(store, "zoo", planned, loss, select=SELECT)
    warnings = build_report(store, "zoo").warnings
    assert "no run of the baseline swiglu: there are no paired gaps" in warnings
    assert "not run yet at the chosen learning rate: swiglu 0.001" in warnings


def test_before_anything_is_evaluated_there_is_no_report(store: Store) -> None:
    write_space(store, "zoo", candidates("swiglu"), loss, select=SELECT)
    with pytest.raises(UserError, match="'zoo': no run at a chosen learning_rate is finished"):
        build_report(store, "zoo")


def test_runs_at_an_earlier_choice_stay_until_the_new_one_is_run(store: Store) -> None:
    few = {**SELECT, "values": RATES[:2]}
    first = candidates(*CHOSEN, rates=RATES[:2]) + compared(dict.fromkeys(CHOSEN, 1e-3))
    write_space(store, "zoo", first, loss, select=few)
    plan = {"space": "zoo", "description": "", "baseline": "swiglu", "targets": []}
    more = candidates(*CHOSEN, rates=RATES[2:])
    store.write_record("spaces/zoo/later", {**plan, "select": SELECT, "runs": more})
    write_space(store, "zoo_more", more, loss)
    report = build_report(store, "zoo")
    assert report.record["select"] == SELECT
    # triplu's best is the added rate; until it is run, triplu is compared at the old one.
    assert "not run yet at the chosen learning rate: triplu 0.01 (highest)" in report.warnings
    gaps = table(report, "paired_gaps").raw.groupby("label")["gap"].mean()
    assert gaps.to_dict() == pytest.approx({"triplu": -0.1, "quad_prod": -0.1})
    again = compared({"triplu": 1e-2})
    store.write_record("spaces/zoo/last", {**plan, "select": SELECT, "runs": again})
    write_space(store, "zoo_again", again, loss)
    report = build_report(store, "zoo")
    assert not any("not run yet" in line for line in report.warnings)
    gaps = table(report, "paired_gaps").raw.groupby("label")["gap"].mean()
    assert gaps.to_dict() == pytest.approx({"triplu": 0.1, "quad_prod": -0.1})


def test_selections_of_several_plans_are_one() -> None:
    assert merged_selection([{}, {"select": None}]) is None
    other = {"key": "weight_decay", "values": [0.0], "seeds": [7]}
    wider = {**SELECT, "values": [1e-3], "values_for": {"gelu": [3e-2]}, "seeds": [101, 103]}
    assert merged_selection([{"select": one} for one in (other, SELECT, wider)]) == {
        "key": "learning_rate",
        "values": [1e-4, 1e-3, 1e-2, 3e-2],
        "seeds": [101, 102, 103],
    }


# Many variants


def test_many_variants_stay_readable(store: Store) -> None:
    chosen = {"swiglu": 1e-3, **{f"variant_{place:02}": 1e-3 for place in range(14)}}
    planned = candidates(*chosen) + compared(chosen)

    def spread(run: Mapping[str, Any]) -> float | None:
        value = loss(run)
        place = 0 if run["variant"] == "swiglu" else int(run["variant"][-2:]) - 6.5
        return value and value + 0.01 * place

    write_space(store, "zoo", planned, spread, select=SELECT)
    report = build_report(store, "zoo")
    assert len(table(report, "gap_statistics").rows()) == 14
    assert len(table(report, "variants").rows()) == len(table(report, "selection").rows()) == 15
    assert report.headline[4] == "10 more are below."
    drawn = {figure.name: figure for figure in report.figures()}
    (ax,) = drawn["gap_ranking"].draw().axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == table(report, "gap_statistics").frame["label"].tolist()
    for name in ("loss_curves", "selection_by_learning_rate"):
        figure = drawn[name].draw()
        (legend,) = figure.legends
        colours = {str(handle.get_color()) for handle in legend.get_lines()}
        assert len(colours) == len(legend.get_texts()) == figures.MAX_LABELS
        assert "Shown are the best 8 of 15 variants." in drawn[name].caption
