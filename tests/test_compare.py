import numpy as np
import pandas as pd
import pytest
from fabricate import FEED_FORWARD, frames, planned_run, stored_run
from hypothesis import given, settings
from hypothesis import strategies as st

from triplu_ray import compare
from triplu_ray.added_keys import ADDED_KEYS
from triplu_ray.compare import Comparison

PAPER_GAPS = (0.0322, 0.0259, 0.0558)
LOSSES = st.lists(
    st.tuples(st.floats(0.9, 1.3), st.floats(0.9, 1.3)), min_size=1, max_size=5, unique=True
)


def pair_up(losses: list[tuple[float, float]], baseline: str = "swiglu") -> Comparison:
    """SwiGLU's and TriPLU's losses by seed."""
    planned, runs = [], []
    for seed, values in enumerate(losses, start=1):
        for variant, loss in zip(("swiglu", "triplu"), values, strict=True):
            planned.append(planned_run(variant, seed))
            runs.append(stored_run(planned[-1], loss))
    return compare.tidy(*frames(runs, planned), baseline)


def statistics(comparison: Comparison) -> pd.DataFrame:
    return compare.gap_statistics(compare.paired_gaps(comparison), comparison.metric)


# What varies, and what is a pair


def test_settings_are_what_varies_beside_variant_and_seed() -> None:
    planned = [
        planned_run(variant, seed, num_layers=depth)
        for variant in ("triplu", "swiglu")
        for seed in (2, 1)
        for depth in (4, 2)
    ]
    comparison = compare.tidy(*frames([stored_run(run, 1.1) for run in planned], planned), "swiglu")
    assert comparison.context == ("num_layers",)
    assert comparison.baseline == "swiglu"
    order = comparison.runs[["setting", "label", "seed"]].values.tolist()
    assert order[:3] == [
        ["num_layers=2", "swiglu", 1],
        ["num_layers=2", "swiglu", 2],
        ["num_layers=2", "triplu", 1],
    ]
    assert len(order) == 8


def test_runs_on_different_texts_are_no_pair() -> None:
    """As where a text was changed and the baseline is not trained on the new one yet."""
    planned = [planned_run(variant, seed) for seed in (1, 2) for variant in ("swiglu", "triplu")]
    runs = [stored_run(run, 1.0 + 0.1 * (run["variant"] == "swiglu")) for run in planned]
    runs[3]["corpus_sha256"] = "another"
    pairs = compare.paired_gaps(compare.tidy(*frames(runs, planned), "swiglu"))
    assert pairs["pair"].tolist() == ["paired", "other text"]
    assert pairs["gap"].tolist() == pytest.approx([0.1, np.nan], nan_ok=True)


def test_a_key_added_since_a_run_was_stored_is_no_difference() -> None:
    older, newer = planned_run("triplu", 1), planned_run("triplu", 2, **ADDED_KEYS)
    runs = [stored_run(older, 1.0), stored_run(newer, 1.1)]
    comparison = compare.tidy(*frames(runs, [older, newer]), None)
    assert comparison.context == ()
    muon = planned_run("triplu", 2, momentum=0.9)
    runs = [stored_run(older, 1.0), stored_run(muon, 1.1)]
    comparison = compare.tidy(*frames(runs, [older, muon]), None)
    assert comparison.runs["setting"].tolist() == ["momentum=0.9", "momentum=0.95"]


def test_what_varies_within_a_variant_extends_its_label() -> None:
    planned = [planned_run("triplu", seed, gain=gain) for seed in (1, 2) for gain in (1.0, 10.0)]
    planned += [planned_run("triplu", 1, gain=10.0, hidden=100), planned_run("swiglu", 1)]
    runs = compare.tidy(*frames([], planned), "swiglu").runs
    assert set(runs["label"]) == {
        "swiglu",
        "triplu gain=1 hidden=242",
        "triplu gain=10 hidden=242",
        "triplu gain=10 hidden=100",
    }
    assert set(runs["family"]) == {"swiglu", "triplu hidden=242", "triplu hidden=100"}
    assert (runs["setting"] == "").all()


def test_where_a_width_tells_rows_apart_all_of_the_kind_say_theirs() -> None:
    """A variant whose name has an option beside it is of the kind, though it has one width."""
    kind = {"kind": "untied_squared_relu"}
    alike = {**kind, "initial_similarity": 0.999}
    planned = [planned_run("untied_squared_relu", 1, ffn=kind, hidden=h) for h in (341, 512)]
    planned.append(planned_run("untied_squared_relu similarity=0.999", 1, ffn=alike, hidden=512))
    planned += [planned_run("squared_relu", 1, hidden=512), planned_run("swiglu", 1)]
    runs = compare.tidy(*frames([], planned), "squared_relu").runs
    assert runs["label"].tolist() == [
        "squared_relu",
        "swiglu",
        "untied_squared_relu hidden=341",
        "untied_squared_relu hidden=512",
        "untied_squared_relu similarity=0.999 hidden=512",
    ]
    runs = compare.tidy(*frames([], planned[1:]), "squared_relu").runs
    assert set(runs["label"]) == {row["variant"] for row in planned[1:]}


def test_a_width_matched_in_each_setting_is_no_variant_of_its_own() -> None:
    planned = [planned_run("triplu", 1, hidden=h, d_model=d) for h, d in ((242, 96), (576, 256))]
    runs = compare.tidy(*frames([], planned), "triplu").runs
    assert runs["label"].tolist() == ["triplu", "triplu"]
    assert runs["setting"].tolist() == ["d_model=96", "d_model=256"]


def test_a_selected_key_is_no_part_of_the_setting() -> None:
    rates = {"swiglu": 1e-3, "triplu": 3e-3}
    planned = [planned_run(v, seed, learning_rate=rates[v]) for v in rates for seed in (1, 2)]
    planned.append(planned_run("triplu", 1, learning_rate=1e-3))
    runs = [stored_run(run, 1.1) for run in planned]
    comparison = compare.tidy(*frames(runs, planned), "swiglu", ["learning_rate"])
    assert comparison.context == ()
    assert comparison.superseded == 0
    triplu = comparison.runs[comparison.runs["label"] == "triplu"]
    assert sorted(zip(triplu["seed"], triplu["learning_rate"], strict=True)) == [
        (1, 1e-3),
        (1, 3e-3),
        (2, 3e-3),
    ]


def test_missing_and_diverged_runs_stay_visible() -> None:
    planned = [planned_run(variant, seed) for variant in ("swiglu", "triplu") for seed in (1, 2, 3)]
    planned.append(planned_run("triplu", 4))
    runs = [stored_run(run, 1.1) for run in planned[:4]]
    runs.append(stored_run(planned[4], 1.2, status="diverged", final_val_loss=np.nan))
    comparison = compare.tidy(*frames(runs, planned), "swiglu")
    pairs = compare.paired_gaps(comparison)
    assert list(pairs["pair"]) == [
        "paired",
        "variant diverged",
        "variant missing",
        "baseline not planned",
    ]
    assert pairs["gap"].fillna(-1).tolist() == [0, -1, -1, -1]
    table = compare.mean_gaps(pairs)
    assert table[["n", "unpaired", "wins"]].values.tolist() == [[1, 3, 0]]
    summary = compare.variant_summary(comparison).set_index("label")
    counts = summary.loc[["triplu"], ["finished", "diverged", "missing"]]
    assert counts.values.tolist() == [[1, 1, 2]]
    assert summary.loc["triplu", "best_val_loss"] == 1.1


def test_a_baseline_must_be_one_label() -> None:
    planned = [planned_run("triplu", 1, gain=gain) for gain in (1.0, 5.0)]
    runs = [stored_run(run, 1.1) for run in planned]
    assert compare.tidy(*frames(runs, planned), "triplu").baseline is None
    assert compare.tidy(*frames(runs, planned), "swiglu").baseline is None
    comparison = compare.tidy(*frames(runs, planned), "triplu gain=5")
    assert comparison.baseline == "triplu gain=5"
    assert len(compare.paired_gaps(comparison)) == 1
    none = compare.tidy(*frames(runs, planned), None)
    assert len(compare.paired_gaps(none)) == len(statistics(none)) == 0


def test_of_equal_configurations_the_latest_finished_run_counts() -> None:
    planned = [planned_run("swiglu", 1)]
    old = stored_run(planned[0], 1.3, run_id="old", finished_at=pd.Timestamp(0, tz="UTC"))
    new = stored_run(planned[0], 1.1, run_id="new")
    comparison = compare.tidy(*frames([new, old], planned), None)
    assert comparison.runs[["run_id", "status"]].values.tolist() == [["new", "finished"]]
    assert comparison.superseded == 2  # the old run, and the planned id that nobody trained


# Numbers


def test_the_papers_gaps() -> None:
    comparison = pair_up([(1.10 + gap, 1.10) for gap in PAPER_GAPS])
    table = statistics(comparison).iloc[0]
    assert table["mean_gap"] == pytest.approx(0.0379667, abs=1e-7)
    # By hand: sample SD 0.0157620, over sqrt(3), times 4.302653 = 0.0391551.
    assert table["t_low"] == pytest.approx(-0.0011884, abs=1e-6)
    assert table["t_high"] == pytest.approx(0.0771217, abs=1e-6)
    assert table[["n", "wins"]].tolist() == [3, 3]
    assert table["p_value"] == table["smallest_p"] == table["p_holm"] == 0.25
    assert np.isnan(table["bca_low"])  # of three seeds a bootstrap knows too little
    assert np.isnan(table["correlation"])  # TriPLU's three losses are equal


def test_over_settings_a_seed_is_the_unit() -> None:
    """Gaps by depth and seed: 0.1, 0.2, 0.3 and -0.1, 0.05; the third seed lacks the second."""
    gaps = {(1, 1): 0.1, (1, 2): 0.2, (1, 3): 0.3, (2, 1): -0.1, (2, 2): 0.05}
    planned, runs = [], []
    for (depth, seed), gap in gaps.items():
        for variant, loss in (("swiglu", 1.1), ("triplu", 1.1 - gap)):
            planned.append(planned_run(variant, seed, num_layers=depth))
            runs.append(stored_run(planned[-1], loss, final_val_loss=loss + 0.01))
    comparison = compare.tidy(*frames(runs, planned), "swiglu")
    pooled = compare.over_settings(compare.paired_gaps(comparison), comparison.metric)
    assert pooled[["label", "seed", "setting", "pair"]].values.tolist() == [
        ["triplu", 1, "", "paired"],
        ["triplu", 2, "", "paired"],
    ]
    assert pooled["gap"].tolist() == pytest.approx([0.0, 0.125])
    row = compare.gap_statistics(pooled, comparison.metric).iloc[0]
    # By hand: mean 0.0625, SD 0.0884 over sqrt(2), times 12.7062 = 0.7941.
    assert row[["mean_gap", "t_low", "t_high"]].tolist() == pytest.approx(
        [0.0625, -0.7316, 0.8566], abs=1e-4
    )
    assert row["relative_gap"] == pytest.approx(0.0625 / 1.1)


@pytest.mark.parametrize(("seeds", "least"), [(7, 2 / 2**7), (16, 2 / 2**16), (24, 1 / 16385)])
def test_the_smallest_p_is_one_that_can_come_out(seeds: int, least: float) -> None:
    """Up to 16 seeds signs are enumerated, beyond that drawn 16,384 times."""
    row = statistics(pair_up([(1.2 + seed / 1000, 1.1) for seed in range(seeds)])).iloc[0]
    assert row["smallest_p"] == pytest.approx(least)
    assert row["p_value"] == pytest.approx(least)


def test_a_gap_over_nothing_has_no_relative_size() -> None:
    assert np.isnan(statistics(pair_up([(0.0, 0.1), (0.0, 0.2)]))["relative_gap"].iloc[0])


def test_summary_follows_the_papers_table_2() -> None:
    comparison = pair_up([(1.1017 + d, 1.0637) for d in (-0.01, 0.0, 0.01)])
    summary = compare.variant_summary(comparison).set_index("label")
    assert summary["params"].to_dict() == {"triplu": 282624, "swiglu": 282240}
    assert summary["perplexity"].round(3).to_dict() == {"triplu": 2.897, "swiglu": 3.009}
    assert summary["sd"].to_dict() == pytest.approx({"triplu": 0.0, "swiglu": 0.01})
    assert summary.loc["triplu", "mismatch"] == pytest.approx(384 / 282240)
    assert summary.loc["swiglu", "mismatch"] == 0.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(3e-4, "0.0003"), (1_000_000, "1000000"), (5.0, "5"), (True, "true"), (None, "none"),
     (np.nan, "none"), ("adamw", "adamw"), (0.123456789, "0.123456789"), (1e-5, "1e-05")],
)  # fmt: skip
def test_value_text(value: object, text: str) -> None:
    assert compare.value_text(value) == text


# Properties


@settings(max_examples=12, deadline=None)
@given(LOSSES)
def test_gaps_change_sign_with_the_baseline(losses: list[tuple[float, float]]) -> None:
    there = statistics(pair_up(losses)).iloc[0]
    back = statistics(pair_up(losses, "triplu")).iloc[0]
    assert there["mean_gap"] == pytest.approx(-back["mean_gap"], abs=1e-12)
    assert there["t_low"] == pytest.approx(-back["t_high"], abs=1e-12, nan_ok=True)
    assert there["p_value"] == back["p_value"]
    assert there["wins"] + back["wins"] == sum(a != b for a, b in losses)


@settings(max_examples=12, deadline=None)
@given(LOSSES, st.integers(0, 99))
def test_order_of_rows_does_not_matter(losses: list[tuple[float, float]], shuffle: int) -> None:
    planned = [planned_run(v, seed) for seed in range(len(losses)) for v in ("swiglu", "triplu")]
    flat = [loss for pair in losses for loss in pair]
    runs, plan = frames([stored_run(*pair) for pair in zip(planned, flat, strict=True)], planned)
    order = np.random.default_rng(shuffle).permutation(len(runs))
    here, there = (
        statistics(compare.tidy(*tables, "swiglu"))
        for tables in ((runs, plan), (runs.iloc[order], plan.iloc[order[::-1]]))
    )
    pd.testing.assert_frame_equal(here, there, check_exact=True)


@settings(max_examples=12, deadline=None)
@given(LOSSES, st.floats(-0.5, 0.5))
def test_a_constant_added_to_all_losses_leaves_gaps(
    losses: list[tuple[float, float]], constant: float
) -> None:
    shifted = [(a + constant, b + constant) for a, b in losses]
    gaps, same = (compare.paired_gaps(pair_up(values))["gap"] for values in (losses, shifted))
    np.testing.assert_allclose(gaps, same, atol=1e-12)


def test_ten_thousand_runs_are_compared_at_once() -> None:
    rates = np.geomspace(1e-5, 1e-2, 500)
    planned = [
        planned_run(variant, seed, learning_rate=float(rate))
        for rate in rates
        for variant in FEED_FORWARD
        for seed in range(5)
    ]
    losses = np.random.default_rng(0).normal(1.1, 0.01, len(planned))
    runs = [stored_run(run, loss) for run, loss in zip(planned, losses, strict=True)]
    table = statistics(compare.tidy(*frames(runs, planned), "swiglu"))
    assert len(table) == 1500
    assert table["p_value"].notna().all()
