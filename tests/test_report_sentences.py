"""The first sentences of a report: they claim what the intervals carry, and no more."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparisons import curves, swept
from fabricate import curve, frames, planned_run, stored_run, write_space

from triplu_ray.compare import tidy
from triplu_ray.report import build_report, report_json
from triplu_ray.report.costs import evaluation_costs
from triplu_ray.report.sentences import headline
from triplu_ray.store import Store

Losses = dict[tuple[str, float], list[float]]


def told(
    gaps: Mapping[str, Sequence[float]], spent: Mapping[str, float] | None = None, **row: Any
) -> list[str]:
    """The headline of variants with these gaps to SwiGLU by seed, and seconds if not 512."""
    planned, runs, evals = [], [], []
    for variant, values in {"swiglu": [0.0] * 99, **gaps}.items():
        for seed in range(1, 1 + min(len(values), len(next(iter(gaps.values()))))):
            planned.append(planned_run(variant, seed))
            mine = row if variant != "swiglu" else {}
            seconds = (spent or {}).get(variant, 512.0)
            loss = 1.1 - values[seed - 1]
            runs.append(stored_run(planned[-1], loss, **{"seconds": seconds, **mine}))
            evals += curve(runs[-1])
    comparison = tidy(*frames(runs, planned), "swiglu")
    return headline(comparison, evaluation_costs(comparison, pd.DataFrame(evals)), [])


# Who wins

# Means 0.02 with SD 0.001 and 0.01, over sqrt(3) and times 4.302653: 0.0025 and 0.0248.
CLEAR, UNCLEAR = [0.019, 0.020, 0.021], [0.01, 0.02, 0.03]


@pytest.mark.parametrize(
    ("gaps", "line"),
    [
        (CLEAR, "triplu beats swiglu in 3 of 3 seeds: mean paired gap +0.0200 (95 % interval "
         "+0.0175 to +0.0225), exact p 0.25, the smallest that 3 seeds can give."),
        ([-gap for gap in CLEAR], "triplu loses to swiglu in 3 of 3 seeds: mean paired gap "
         "-0.0200 (95 % interval -0.0225 to -0.0175), exact p 0.25, the smallest that 3 seeds can "
         "give."),
        (UNCLEAR, "triplu is undecided against swiglu: ahead in 3 of 3 seeds, mean paired gap "
         "+0.0200 (95 % interval -0.0048 to +0.0448), exact p 0.25, the smallest that 3 seeds can "
         "give."),
        # Of the eight sums of +-1 +-2 +-4 two are as large as 5 beside the two of 7.
        ([-0.01, 0.02, 0.04], "triplu is undecided against swiglu: ahead in 2 of 3 seeds, mean "
         "paired gap +0.0167 (95 % interval -0.0458 to +0.0792), exact p 0.5."),
        ([0.1], "triplu is undecided against swiglu: ahead in 1 of 1 seed, mean paired gap "
         "+0.1000; one seed says nothing about luck."),
    ],
)  # fmt: skip
def test_a_win_is_an_interval_without_zero(gaps: list[float], line: str) -> None:
    assert told({"triplu": gaps})[0] == line


def test_p_is_corrected_wherever_several_are_compared() -> None:
    lines = told({"triplu": CLEAR, "quad_prod": UNCLEAR})
    assert lines[0].endswith("the smallest that 3 seeds can give, 0.5 after Holm over 2 variants.")
    assert lines[1].endswith("the smallest that 3 seeds can give, 0.5 after Holm over 2 variants.")


def test_beyond_sixteen_seeds_draws_bound_p() -> None:
    gaps = np.random.default_rng(0).normal(0.02, 0.001, 24)
    assert told({"triplu": gaps.tolist()})[0].endswith(
        ", p 6.1e-05, the smallest that 16,384 draws can give."
    )


def test_more_variants_than_one_reads_are_counted() -> None:
    lines = told({f"variant_{place}": [0.01 * place, 0.02 * place] for place in range(1, 7)})
    assert lines[4] == "2 more are below."
    assert [line.split()[0] for line in lines[:4]] == [f"variant_{place}" for place in (6, 5, 4, 3)]


# Over settings


def test_headline_over_settings_judges_seeds_by_their_means() -> None:
    comparison = swept(
        {
            ("swiglu", 1): [1.1, 1.2],
            ("swiglu", 2): [1.1, 1.2],
            ("triplu", 1): [1.0, 1.0],
            ("triplu", 2): [1.2, 1.15],
        },
        key="num_layers",
    )
    # Means of the seeds 0.0 and 0.125, half of the interval 12.7062 x 0.0625 = 0.7941.
    assert headline(comparison, pd.DataFrame(), []) == [
        "triplu against swiglu in 2 settings: ahead in 0, behind in 0, undecided in 2, each judged "
        "by itself, and 3 of 4 pairs won; gap over the settings +0.0625 (95 % interval -0.7316 to "
        "+0.8566), exact p 1; from -0.0250 (num_layers=2) to +0.1500 (num_layers=1)."
    ]


def test_settings_are_counted_by_their_intervals() -> None:
    losses: Losses = {("swiglu", depth): [1.1, 1.1, 1.1] for depth in (1, 2, 3, 4)}
    for depth, sign in ((1, 1), (2, 1), (3, -1)):
        losses["triplu", depth] = [1.1 - sign * gap for gap in CLEAR]
    losses["triplu", 4] = [1.1 - gap for gap in UNCLEAR]
    (line,) = headline(swept(losses, key="num_layers"), pd.DataFrame(), [])
    assert line.startswith(
        "triplu against swiglu in 4 settings: ahead in 2, behind in 1, undecided in 1, each judged "
        "by itself, and 9 of 12 pairs won; gap over the settings +0.0100 (95 % interval "
    )


def test_settings_without_common_seeds_have_no_gap_over_all() -> None:
    losses: Losses = {("swiglu", depth): [1.1, 1.1] for depth in (1, 2)}
    losses |= {("triplu", 1): [1.0, np.nan], ("triplu", 2): [np.nan, 1.0]}
    (line,) = headline(swept(losses, key="num_layers"), pd.DataFrame(), [])
    assert "gap over the settings not known, for want of seeds with a pair in every" in line


def test_variants_over_settings_are_counted_too() -> None:
    losses: Losses = {
        (variant, depth): [1.1 - 0.01 * place]
        for place, variant in enumerate(["swiglu", *(f"variant_{place}" for place in range(6))])
        for depth in (1, 2)
    }
    lines = headline(swept(losses, key="num_layers"), pd.DataFrame(), [])
    assert lines[0].startswith("variant_5 against swiglu in 2 settings: ")
    assert lines[4:] == ["2 more are below."]


# At equal cost


def test_headline_of_one_setting() -> None:
    comparison, costs = curves()
    lines = headline(comparison, costs, [1.10, 1.03])
    assert lines[1] == (
        "triplu's advantage is not shown at equal tokens (+0.0500, 2/2, interval -0.2041 to "
        "+0.3041 holds zero, p 0.5), at equal training FLOPs (+0.0498, 2/2, interval -0.2046 to "
        "+0.3042 holds zero, p 0.5) and at equal seconds (+0.0225, 1/2, interval -0.2634 to "
        "+0.3084 holds zero, p 1)."
    )
    assert lines[2] == (
        "The seconds of triplu's runs are 1.20 to 1.20 times those of swiglu's; what scatters "
        "there over seeds is the machine's load."
    )
    assert lines[3] == (
        "triplu reaches a loss of 1.1 in all 2 runs, after 3.07 M tokens on the mean; "
        "swiglu in 1 of 2."
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (512.0, " and at equal seconds (+0.0300, 3/3, interval +0.0267 to +0.0333, p 0.25)."),
        (1024.0, "; it is not shown at equal seconds (-0.1"),
    ],
)
def test_the_headline_says_whether_the_advantage_stands(
    store: Store, seconds: float, words: str
) -> None:
    planned = [planned_run(variant, seed) for variant in ("swiglu", "triplu") for seed in (1, 2, 3)]
    gaps = {1: 0.0295, 2: 0.0290, 3: 0.0315}
    write_space(store, "main", planned, lambda _: None)
    for run in planned:
        mine = run["variant"] == "triplu"
        loss = 1.1 - gaps[run["seed"]] * mine
        stored = stored_run(run, loss, seconds=seconds if mine else 512.0)
        store.write_run(stored, curve(stored))
    report = build_report(store, "main")
    line, load = report.headline[1:3]
    assert line.startswith("triplu's advantage stands at equal tokens (+0.0300, 3/3, interval ")
    assert words in line
    assert ("lies below zero" in line) == (seconds > 512)
    ratio = f"{seconds / 512:.2f}"
    assert load.startswith(f"The seconds of triplu's runs are {ratio} to {ratio} times those of ")
    table = report_json(report)["tables"]["equal_cost"]
    assert [row["cost"] for row in table] == ["tokens", "flops", "seconds"]
    by_seed = report_json(report)["tables"]["equal_cost_gaps"]
    assert [row["gap"] for row in by_seed[:3]] == pytest.approx([0.0295, 0.0290, 0.0315])


def test_of_the_best_that_is_behind_the_disadvantage_stands() -> None:
    lines = told({"triplu": [-gap for gap in CLEAR]})
    assert lines[0].startswith("triplu loses to swiglu in 3 of 3 seeds: ")
    assert lines[1].startswith("triplu's disadvantage stands at equal tokens (-0.")
    assert "zero" not in lines[1]
    faster = told({"triplu": [-0.003, -0.0031, -0.0029]}, {"triplu": 320.0})[1]
    assert faster.startswith("triplu's disadvantage stands at equal tokens (-0.0030, 0/3, interval")
    assert "; it is not shown at equal seconds (+0.1" in faster
    assert faster.endswith(" by seconds alone, which is load, p 0.25).")


def test_what_only_seconds_show_does_not_stand() -> None:
    """TriPLU takes less time for as many FLOPs, so at equal seconds all its gaps rise."""
    line = told({"triplu": [0.003, 0.004, 0.015]}, {"triplu": 320.0})[1]
    assert "stands" not in line
    assert " to +0.1" in line.split("at equal seconds")[1]
    assert line.endswith(" by seconds alone, which is load, p 0.25).")


def test_runs_trained_apart_are_not_compared_in_seconds() -> None:
    lines = told({"triplu": CLEAR}, git_sha="other")
    assert lines[1].endswith(
        "; it is not known at equal seconds, the two runs of a pair not having been trained side "
        "by side."
    )
    assert len(lines) == 2


def test_a_target_is_not_timed_by_runs_trained_apart() -> None:
    for row, seconds in (({}, ", 0.83 times the seconds."), ({"git_sha": "other"}, " FLOPs.")):
        comparison, costs = curves(row)
        assert headline(comparison, costs, [1.20])[-1].endswith(seconds)


def test_without_evaluations_nothing_is_said_of_equal_cost() -> None:
    comparison, costs = curves()
    everything, nothing = headline(comparison, costs, []), headline(comparison, costs[:0], [])
    assert nothing == everything[:1]


def test_under_a_decaying_rate_a_cut_off_run_tells_nothing() -> None:
    comparison, costs = curves(schedule="cosine")
    line = headline(comparison, costs, [])[1]
    assert line.endswith(
        "; it is not known at equal seconds, which needs a run whose schedule ends at that budget."
    )


def test_the_headline_of_one_seed_claims_nothing() -> None:
    assert told({"triplu": [0.1]})[1].startswith(
        "One seed cannot tell whether triplu's advantage stands: it is +0.1000 at equal tokens, "
    )
