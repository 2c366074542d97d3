import json
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spacefiles import RUNS, SMALL, plan_of, run_ids
from variants import CONFIGS

from triplu_ray.config import RunConfig, resolve_ffn
from triplu_ray.errors import UserError
from triplu_ray.ffn import FeedForwardConfig
from triplu_ray.plan import CorpusFacts, Plan, PlannedRun, make_plan
from triplu_ray.resolve import matched_width
from triplu_ray.sizing import EAGER_FLOPS_PER_SECOND

ffns = st.sampled_from(CONFIGS)


def planned(variant: str, *, vocab_size: int = 79, gain: Any = None, **config: Any) -> PlannedRun:
    settings = {"gain": gain, **config} if gain else config
    ffn = resolve_ffn(variant, settings, "")
    fields = {key: value for key, value in config.items() if key in RunConfig.model_fields}
    return PlannedRun(
        RunConfig.model_validate({"ffn": ffn, **fields}), CorpusFacts(vocab_size, "0" * 64)
    )


# Parameters and FLOPs, against the TriPLU paper's


@pytest.mark.parametrize(
    ("variant", "hidden", "params", "ffn_flops"),
    [
        ("swiglu", 322, 282_240, 185_472),
        ("double_prod", 322, 282_240, 185_472),
        ("triplu", 242, 282_624, 185_856),
        ("quad_prod", 193, 282_048, 185_280),
    ],
)
def test_character_models(variant: str, hidden: int, params: int, ffn_flops: int) -> None:
    run = planned(variant, hidden=hidden)
    assert run.params == params
    assert run.row()["ffn_flops_per_token"] == ffn_flops


@pytest.mark.parametrize(
    ("num_layers", "swiglu", "triplu"),
    [
        (1, 151_872, 152_064),
        (2, 282_240, 282_624),
        (4, 542_976, 543_744),
        (5, 673_344, 674_304),
        (6, 803_712, 804_864),
        (7, 934_080, 935_424),
        (8, 1_064_448, 1_065_984),
    ],
)
def test_deeper_character_models(num_layers: int, swiglu: int, triplu: int) -> None:
    assert planned("swiglu", hidden=322, num_layers=num_layers).params == swiglu
    assert planned("triplu", hidden=242, num_layers=num_layers).params == triplu


def test_byte_bpe_models() -> None:
    shape = {"vocab_size": 512, "context_length": 128, "d_model": 256, "num_layers": 8}
    swiglu = planned("swiglu", hidden=768, num_heads=4, **shape)
    learned = planned("triplu", hidden=576, num_heads=4, learned_gain=True, **shape)
    assert (swiglu.params, learned.params) == (7_127_552, 7_127_560)


def test_cost_of_a_run_by_hand() -> None:
    run = planned(
        "gelu", vocab_size=7, hidden=5, d_model=4, num_layers=3, context_length=6, batch_size=2,
        num_steps=10, eval_interval=10,
    )  # fmt: skip
    ffn = 2 * (4 * 5 + 5 * 4)
    attention = 2 * 4 * 4 * 4 + 2 * 2 * 6 * 4  # four projections; scores and their sums
    assert run.flops_per_token == 3 * (ffn + attention) + 2 * 4 * 7
    assert run.tokens == 10 * 2 * 6
    assert run.training_flops == 3 * run.flops_per_token * 120


# Matched widths


@pytest.mark.parametrize(("variant", "width"), [("triplu", 242), ("quad_prod", 193), ("gelu", 483)])
def test_matched_widths_of_the_paper(variant: str, width: int) -> None:
    ffn, baseline = (resolve_ffn(name, {}, "") for name in (variant, "swiglu"))
    assert matched_width(ffn, baseline, 322, 96) == width


@given(ffns, ffns, st.integers(1, 60), st.integers(1, 40))
def test_matched_width_is_the_nearest(
    ffn: FeedForwardConfig, baseline: FeedForwardConfig, hidden: int, d_model: int
) -> None:
    wanted = baseline.num_params(d_model, hidden)
    widths = range(1, wanted // d_model + 3)  # a unit has at least as many parameters as d_model
    distances = {w: abs(ffn.num_params(d_model, w) - wanted) for w in widths}
    nearest = min(distances, key=lambda width: (distances[width], -width))
    if ffn.num_params(d_model, 1) <= 2 * wanted:
        assert matched_width(ffn, baseline, hidden, d_model) == nearest


def test_of_two_equally_near_widths_the_larger_is_taken() -> None:
    triplu, swiglu = (resolve_ffn(name, {}, "") for name in ("triplu", "swiglu"))
    # 3 x 2 = 6 lies between 4 x 1 and 4 x 2.
    assert matched_width(triplu, swiglu, 2, 96) == 2


def test_no_width_is_near_a_baseline_that_is_too_small() -> None:
    with pytest.raises(
        UserError, match="hidden: no width of product_9 is near the baseline's size"
    ):
        plan_of({**SMALL, "baseline": {"variant": "gelu", "hidden": 2},
                 "grid": {"variant": ["product"]}, "degree": 9})  # fmt: skip


# Which runs


def test_conditional_axes_count_once() -> None:
    plan = plan_of(RUNS)
    variants = [run.config.ffn.label for run in plan.runs]
    per_variant = {name: variants.count(name) for name in variants}
    # 2 seeds x 2 rates x 2 depths, and three gains where the axis applies
    assert per_variant == {"swiglu": 8, "triplu": 24, "quad_prod": 8}
    gains = {run.row()["gain"] for run in plan.runs if run.config.ffn.label == "quad_prod"}
    assert gains == {25.0}


def test_a_variants_keys_count_once_for_the_others() -> None:
    plan = plan_of({**SMALL, "grid": {"variant": ["swiglu", "triplu"], "gain": [1, 3, 5]}})
    assert [(run.config.ffn.label, run.row()["gain"]) for run in plan.runs] == [
        ("swiglu", None),
        ("triplu", 1.0),
        ("triplu", 3.0),
        ("triplu", 5.0),
    ]


def test_an_axis_that_does_not_apply_meets_no_condition() -> None:
    grid = {
        "variant": ["swiglu", "triplu"],
        "gain": [1, 5],
        "num_layers": {"values": [1, 2], "when": {"gain": 5}},
        "seed": {"values": [1, 2], "when": {"num_layers": 2}},
    }
    plan = plan_of({**SMALL, "grid": grid})
    rows = [(row["variant"], row["gain"], row["num_layers"], row["seed"]) for row in plan.rows()]
    assert sorted(rows, key=repr) == [
        ("swiglu", None, 2, 1),  # it has no gain, so the defaults
        ("triplu", 1.0, 2, 1),
        ("triplu", 5.0, 1, 1),
        ("triplu", 5.0, 2, 1),
        ("triplu", 5.0, 2, 2),
    ]


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_run_ids_do_not_depend_on_the_order_in_the_file(random: Any) -> None:
    def shuffled(mapping: dict[str, Any]) -> dict[str, Any]:
        return dict(random.sample(list(mapping.items()), len(mapping)))

    blocks: list[dict[str, Any]] = [{"num_layers": 1}, {"grid": {"weight_decay": [0, 0.1]}}]
    grid = {
        "seed": [1, 2],
        "variant": ["swiglu", "triplu"],
        "gain": {"when": {"variant": "triplu"}, "values": [1, 5]},
    }
    content = {**SMALL, "grid": grid, "blocks": blocks}
    axes = {k: random.sample(v, len(v)) if isinstance(v, list) else v for k, v in grid.items()}
    other = shuffled({**SMALL, "grid": shuffled(axes), "blocks": random.sample(blocks, 2)})
    assert run_ids(plan_of(other)) == run_ids(plan_of(content))


def test_an_alias_and_its_kind_are_the_same_run() -> None:
    alias = plan_of({**SMALL, "grid": {"variant": ["triplu"]}})
    kind = plan_of({**SMALL, "grid": {"variant": ["product"]}, "degree": 3, "gain": 5})
    assert run_ids(alias) == run_ids(kind)
    both = plan_of({**SMALL, "grid": {"variant": ["triplu", "triple_prod", "product"]},
                    "degree": 3, "gain": 5})  # fmt: skip
    assert run_ids(both) == run_ids(alias)


def test_where_the_text_lies_does_not_count_but_what_it_says_does() -> None:
    text = {**SMALL, "corpus": "text"}
    here = plan_of({**text, "train_file": "a", "validation_file": "b"})
    there = plan_of({**text, "train_file": "c", "validation_file": "d"})
    assert run_ids(here) == run_ids(there)
    other = plan_of(text, facts=CorpusFacts(79, "f" * 64))
    assert run_ids(here).isdisjoint(run_ids(other))


def test_a_union_of_blocks_has_no_doubles() -> None:
    def with_seeds(*seeds: int) -> dict[str, Any]:
        return {"grid": {"seed": list(seeds)}}

    apart = plan_of({**SMALL, "blocks": [with_seeds(1, 2), with_seeds(3)]})
    overlapping = plan_of({**SMALL, "blocks": [with_seeds(1, 2), with_seeds(2, 3), {"seed": 1}]})
    assert run_ids(apart) == run_ids(overlapping) == run_ids(plan_of(SMALL))
    assert len(overlapping.runs) == len(run_ids(overlapping)) == 6


def test_the_corpus_is_asked_for_what_the_configuration_says() -> None:
    asked = set()
    space = plan_of(SMALL, "train_bytes=[1000, null]").space

    def facts(source: Any) -> CorpusFacts:
        asked.add(source)
        return CorpusFacts(len(asked), "0" * 64)

    make_plan(space, facts)
    assert {(s.corpus, s.train_bytes) for s in asked} == {
        ("tinystories_lite", 1000),
        ("tinystories_lite", None),
    }


def test_ids_are_drafts_while_the_text_is_not_there() -> None:
    plan = plan_of(SMALL, facts=CorpusFacts(79, None))
    assert all(run.run_id.startswith("draft-") for run in plan.runs)
    assert len(run_ids(plan)) == 6
    assert {run.params for run in plan.runs} == {282_240, 282_624}


# A budget of bytes

BUDGET: dict[str, Any] = {
    **SMALL,
    "tokenizer": "bbpe",
    "train_budget_bytes": 50_000_000,
    "context_length": 128,
    "eval_interval": 1,
}


def budgeted(bytes_per_token: Fraction | float | None, *overrides: str, **changes: Any) -> Plan:
    facts = CorpusFacts(512, "0" * 64, bytes_per_token)
    return plan_of({**BUDGET, **changes}, *overrides, facts=facts)


def test_a_budget_of_bytes_becomes_steps() -> None:
    # A million bytes in 430,031 tokens: 50 million are 21,501,550 tokens, of 4,096 a step
    plan = budgeted(Fraction(1_000_000, 430_031))
    assert {run.config.num_steps for run in plan.runs} == {5_249}
    assert {run.config.train_budget_bytes for run in plan.runs} == {50_000_000}
    assert {run.tokens for run in plan.runs} == {5_249 * 4_096}
    halves = budgeted(Fraction(1_000_000, 430_031), "batch_size=[32, 64]").rows()
    assert {(row["batch_size"], row["config"]["num_steps"]) for row in halves} == {
        (32, 5_249),
        (64, 2_624),
    }


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**10), st.integers(1, 64))
def test_steps_are_whole_and_exact(num_bytes: int, tokens: int, budget: int, batch: int) -> None:
    plan = budgeted(
        Fraction(num_bytes, tokens), f"train_budget_bytes={budget}", "seed=1", batch_size=batch
    )
    expected = max(1, budget * tokens // num_bytes // (batch * 128))
    assert {run.config.num_steps for run in plan.runs} == {expected}


def test_a_budget_and_the_steps_that_it_comes_to_are_two_runs() -> None:
    """As the budget is in the configuration; a store that has one may still lack the other."""
    by_budget = budgeted(2.0, "train_budget_bytes=819200")  # 100 steps of 8,192 bytes
    by_steps = plan_of(
        {key: value for key, value in BUDGET.items() if key != "train_budget_bytes"},
        "num_steps=100",
        facts=CorpusFacts(512, "0" * 64, 2.0),
    )
    assert {run.config.num_steps for run in (*by_budget.runs, *by_steps.runs)} == {100}
    assert run_ids(by_budget).isdisjoint(run_ids(by_steps))


@pytest.mark.parametrize(
    ("bytes_per_token", "changes", "line"),
    [
        (2.0, {"num_steps": 100}, "num_steps: expected none beside train_budget_bytes, from which"),
        (None, {"tokenizer": "char"}, "train_budget_bytes: expected tokenizer: bbpe beside it, "),
        (
            2.0,
            {"eval_interval": 6104},
            "eval_interval: expected at most num_steps (6103), got 6104",
        ),
        (2.0, {"warmup_steps": 6104}, "warmup_steps: expected at most num_steps (6103), got 6104"),
        (2.0, {"num_heads": 5}, "d_model: expected a multiple of num_heads (5), got 96"),
    ],
)
def test_mistakes_with_a_budget(
    bytes_per_token: float | None, changes: dict[str, Any], line: str
) -> None:
    with pytest.raises(UserError) as caught:
        budgeted(bytes_per_token, **changes)
    assert f": {line}" in str(caught.value)


# What a plan tells


def test_rows_hold_what_the_store_and_the_axes_need() -> None:
    plan = plan_of(SMALL, "weight_decay=[0, 0.1]", "seed=1", "variant=[triplu]")
    done = frozenset([plan.runs[0].run_id])
    first, second = plan_of(
        SMALL, "weight_decay=[0, 0.1]", "seed=1", "variant=[triplu]", finished=done
    ).rows()
    assert (first["weight_decay"], first["done"]) == (0.0, True)
    assert (second["weight_decay"], second["done"]) == (0.1, False)
    assert first["config"] == plan.runs[0].config.model_dump()
    assert {key: first[key] for key in ("variant", "degree", "gain", "hidden", "tokens")} == {
        "variant": "triplu",
        "degree": 3,
        "gain": 5.0,
        "hidden": 242,
        "tokens": 10_240_000,
    }
    assert json.loads(json.dumps(first)) == first


def test_the_record_of_a_plan_is_what_a_report_needs() -> None:
    plan = plan_of({**SMALL, "targets": [1.1], "description": "Why."})
    record = plan.record()
    assert record == json.loads(json.dumps(record))
    assert {key: record[key] for key in ("space", "description", "baseline", "targets")} == {
        "space": "small",
        "description": "Why.",
        "baseline": "swiglu",
        "targets": [1.1],
    }
    assert [run["run_id"] for run in record["runs"]] == [run.run_id for run in plan.runs]


def test_plan_id_depends_on_runs_baseline_and_targets() -> None:
    plans = [SMALL, {**SMALL, "targets": [1]}, {**SMALL, "seed": 1, "grid": {"variant": ["gelu"]}}]
    assert len({plan_of(content).plan_id for content in plans}) == 3
    assert plan_of({**SMALL, "cohort": 4, "description": "x"}).plan_id == plan_of(SMALL).plan_id


def test_estimated_time_is_the_work_over_the_rate() -> None:
    plan = plan_of(SMALL)
    work = sum(run.training_flops for run in plan.runs)
    assert plan.estimated_seconds(2, {"fp32": 1e9}) == pytest.approx(work / 2e9)
    assert plan.estimated_seconds(1, {"bf16": 1e9}) == pytest.approx(
        work / EAGER_FLOPS_PER_SECOND["fp32"]
    )
    assert plan_of(SMALL, finished=frozenset(run_ids(plan))).estimated_seconds(1, {}) == 0


def test_ten_thousand_runs_are_planned_in_seconds(record_property: Any) -> None:
    axes = {"seed": list(range(1250)), "learning_rate": [1e-3, 3e-3]}
    content = {
        **SMALL,
        "cohort": 8,
        "grid": {**axes, "variant": ["swiglu", "triplu", "gelu", "reglu"]},
    }
    started = time.process_time()
    plan = plan_of(content)
    assert len(run_ids(plan)) == 10_000
    assert len(plan.cohorts) == 4 * 313  # 2,500 of a variant in eights
    assert len(plan.rows()) == 10_000
    seconds = time.process_time() - started
    record_property("seconds", seconds)
    assert seconds < 10
