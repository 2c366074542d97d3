"""Time against FLOPs, and squared ReLU against its untied form."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from fabricate import frames, planned_run, stored_run

from triplu_ray.compare import Comparison, tidy
from triplu_ray.report.model import Table
from triplu_ray.report.step_time import step_time_tables, step_times

NOTHING = pd.DataFrame({"setting": [""], "label": ["none"], "similarity": [0.0]})


def timed(seconds: dict[str, list[float]], baseline: str | None, **config: Any) -> Comparison:
    """Seconds of the runs by variant and seed."""
    planned = [planned_run(variant, seed + 1, **config)
               for variant, values in seconds.items() for seed in range(len(values))]  # fmt: skip
    runs = [
        stored_run(run, 1.1, seconds=seconds[run["variant"]][run["seed"] - 1]) for run in planned
    ]
    return tidy(*frames(runs, planned), baseline)


def named(tables: list[Table]) -> dict[str, Table]:
    return {table.name: table for table in tables}


def test_time_of_a_step_is_the_median_over_runs() -> None:
    comparison = timed({"swiglu": [100.0, 200.0, 900.0], "triplu": [250.0, 300.0]}, "swiglu")
    table = step_times(comparison).set_index("label")
    # 5,000 steps: 200 s are 40 ms each, the median of 250 and 300 is 55 ms.
    assert table["milliseconds_per_step"].to_dict() == pytest.approx({"swiglu": 40, "triplu": 55})
    # Seed by seed 2.5 and 1.5, which is not the ratio of the medians.
    assert table["relative_time"].to_dict() == pytest.approx({"swiglu": 1, "triplu": 2.0})
    assert list(table.loc["triplu", ["time_low", "time_high"]]) == pytest.approx([1.5, 2.5])
    flops = planned_run("triplu", 1)["params"] / planned_run("swiglu", 1)["params"]
    assert table.loc["triplu", "relative_flops"] == pytest.approx(flops)
    assert table.loc["triplu", "relative_ffn_flops"] == pytest.approx(185_856 / 185_472)
    assert table.loc["triplu", "time_over_flops"] == pytest.approx(2.0 / flops)


def test_load_that_both_sides_bear_is_no_difference() -> None:
    """Seeds on a busy machine take twice the time, whichever the variant."""
    comparison = timed({"swiglu": [100.0, 200.0, 400.0], "triplu": [110.0, 220.0, 440.0]}, "swiglu")
    triplu = step_times(comparison).set_index("label").loc["triplu"]
    told = triplu[["relative_time", "time_low", "time_high"]]
    assert list(told) == pytest.approx([1.1, 1.1, 1.1])


def test_steps_follow_from_tokens_trained() -> None:
    planned = planned_run("swiglu", 1)
    stopped = stored_run(planned, 1.1, seconds=100.0, tokens=1000 * 32 * 64, stopped_step=1000)
    comparison = tidy(*frames([stopped], [planned]), "swiglu")
    assert step_times(comparison)["milliseconds_per_step"].tolist() == [100.0]


@pytest.mark.parametrize(("seconds", "mark"), [(149, ""), (151, "slower"), (66, "faster")])
def test_what_the_flops_do_not_explain_is_marked(seconds: float, mark: str) -> None:
    comparison = timed({"swiglu": [100.0], "geglu": [seconds]}, "swiglu")
    table = named(step_time_tables(comparison, NOTHING))["time_against_flops"]
    assert [row[-1] for row in table.rows()] == ["", mark]
    assert table.rows()[1][:2] == ["geglu", f"{seconds / 5:.2f}"]


def test_without_a_baseline_or_a_variant_there_is_no_table() -> None:
    assert step_time_tables(timed({"swiglu": [1.0], "triplu": [1.0]}, None), NOTHING) == []
    assert step_time_tables(timed({"swiglu": [1.0, 2.0]}, "swiglu"), NOTHING) == []


def test_diverged_runs_have_no_time() -> None:
    planned = [planned_run(variant, 1) for variant in ("swiglu", "triplu")]
    runs = [stored_run(planned[0], 1.1), stored_run(planned[1], 1.1, status="diverged")]
    comparison = tidy(*frames(runs, planned), "swiglu")
    assert step_times(comparison)["label"].tolist() == ["swiglu"]
    assert step_time_tables(comparison, NOTHING) == []


def test_the_untied_form_costs_half_as_much_again() -> None:
    comparison = timed(
        {"squared_relu": [100.0], "untied_squared_relu": [118.0]}, "squared_relu", hidden=384
    )
    similarity = pd.DataFrame(
        {"setting": [""], "label": ["untied_squared_relu"], "similarity": [0.77]}
    )
    table = named(step_time_tables(comparison, similarity))["untied"]
    squared, untied = table.rows()
    # 2 x 96 x 384 and 3 x 96 x 384 parameters.
    assert squared[:5] == ["squared_relu", "384", "73,728", "147,456", "1.000"]
    assert untied[:5] == ["untied_squared_relu", "384", "110,592", "221,184", "1.500"]
    assert untied[7:10] == ["1.18", "1.18 to 1.18", "+0.77"]
    assert squared[9] == "\N{EN DASH}"
    assert untied[10:] == ["1.1000", "1.1030"]
    assert np.isnan(table.frame["similarity"].iloc[0])


def test_only_a_tied_baseline_brings_the_untied_table() -> None:
    comparison = timed({"swiglu": [1.0], "untied_squared_relu": [1.0]}, "swiglu")
    assert set(named(step_time_tables(comparison, NOTHING))) == {"time_against_flops"}
