"""What a report says of the setting that its runs share."""

from typing import Any

import pytest
from comparisons import swept
from fabricate import frames, planned_run, stored_run

from triplu_ray.compare import tidy
from triplu_ray.report.setting import setting_table


def facts(*configs: dict[str, Any], **row: Any) -> dict[str, str]:
    """The table's lines, of runs with these configurations."""
    planned = [planned_run("triplu", seed, **config) for seed, config in enumerate(configs or [{}])]
    runs = [stored_run(run, 1.1, **row) for run in planned]
    table = setting_table(tidy(*frames(runs, planned), None))
    return {str(fact): str(value) for fact, value in table.rows()}


def test_the_setting_of_the_main_suite() -> None:
    assert facts() == {
        "text": "tinystories: 1,000,000 bytes to train on, 200,000 to validate on",
        "tokens": "characters",
        "model": "2 layers, d_model 96, 2 heads, context length 64",
        "training": "5,000 steps of 32 windows",
        "optimizer": "AdamW, weight decay 0.1, gradient clip 1",
        "learning rate": "0.0003",
        "schedule": "constant",
        "precision": "fp32",
        "validation": "every 250 steps, on 50 x 32 windows spread over the text, the same for all",
        "losses": "nats a character",
    }


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "constant"),
        ({"schedule": "cosine", "warmup_steps": 1000},
         "cosine decay to 0 of the peak after 1,000 steps of warm-up"),
        ({"schedule": "linear", "decay_fraction": 0.45, "final_learning_rate_ratio": 0.1},
         "linear decay over the last 45% to 0.1 of the peak"),
        ({"warmup_steps": 10}, "constant after 10 steps of warm-up"),
    ],
)  # fmt: skip
def test_schedules_in_words(config: dict[str, Any], words: str) -> None:
    assert facts(config)["schedule"] == words


def test_subword_runs_with_muon() -> None:
    told = facts(
        {"tokenizer": "bbpe", "tokenizer_vocab_size": 512, "heldout_bytes": 50_000,
         "optimizer": "muon", "adamw_learning_rate": 0.004, "train_bytes": None},
        best_bits_per_byte=1.2,
    )  # fmt: skip
    assert told["text"] == (
        "tinystories: all bytes to train on, 200,000 to validate on, 50,000 held out"
    )
    assert told["tokens"] == "byte-level BPE of 512 tokens"
    assert told["optimizer"] == (
        "Muon with momentum 0.95, AdamW at 0.004 for all but the blocks' linear maps, weight decay "
        "0.1, gradient clip 1"
    )
    assert told["losses"] == "bits per UTF-8 byte of the text"
    assert facts({"tokenizer": "gpt2"})["losses"] == "nats a token"


def test_what_varies_is_told_value_by_value() -> None:
    told = facts(*({"num_layers": depth, "weight_decay": depth / 10} for depth in (4, 1, 2)))
    assert told["model"].startswith("1, 2, 4 layers, ")
    assert "weight decay 0.1, 0.2, 0.4" in told["optimizer"]
    many = facts(*({"num_layers": depth} for depth in range(1, 9)))
    assert many["model"].startswith("1 to 8 (8 values) layers, ")
    assert facts({"corpus": "wikitext2"}, {})["text"].count("; ") == 1


def test_rates_of_an_axis_are_not_the_variants_own() -> None:
    losses = {(variant, rate): [1.1] for variant in ("swiglu", "triplu") for rate in (1e-4, 1e-3)}
    along = setting_table(swept(losses)).frame.set_index("fact")["value"]
    assert along["learning rate"] == "0.0001, 0.001"
    planned = [planned_run("swiglu", 1, learning_rate=1e-3), planned_run("triplu", 1)]
    runs = [stored_run(run, 1.1) for run in planned]
    chosen = tidy(*frames(runs, planned), "swiglu", ["learning_rate"])
    own = setting_table(chosen).frame.set_index("fact")["value"]
    assert own["learning rate"] == "0.0003, 0.001, each variant its own"
