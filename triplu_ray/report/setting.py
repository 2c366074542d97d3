"""What all runs of a report have in common: text, model, training, and the unit of its losses."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from triplu_ray.compare import NATS, Comparison, value_text
from triplu_ray.report.model import MAX_NAMES, Column, Table

Row = dict[Any, Any]
DECAY = ("decay_fraction", "final_learning_rate_ratio")


def setting_table(comparison: Comparison) -> Table:
    """The configuration of all runs in a few lines; of a key that varies, every value."""
    runs = comparison.runs

    def said(key: str) -> str:
        return _values(runs[key])

    def each(keys: Sequence[str], say: Callable[[Row], str]) -> str:
        rows = runs[list(keys)].drop_duplicates().to_dict("records")
        return "; ".join(dict.fromkeys(map(say, rows)))

    is_own = runs["learning_rate"].nunique() > 1 and "learning_rate" not in comparison.context
    facts = {
        "text": each(["corpus", "train_bytes", "validation_bytes", "heldout_bytes"], _text),
        "tokens": each(["tokenizer", "tokenizer_vocab_size"], _tokens),
        "model": f"{said('num_layers')} layers, d_model {said('d_model')}, {said('num_heads')} "
        f"heads, context length {said('context_length')}",
        "training": f"{said('num_steps')} steps of {said('batch_size')} windows",
        "optimizer": each(["optimizer", "momentum", "adamw_learning_rate"], _optimizer)
        + f", weight decay {said('weight_decay')}, gradient clip {said('gradient_clip')}",
        "learning rate": said("learning_rate") + ", each variant its own" * is_own,
        "schedule": each(["schedule", "warmup_steps", *DECAY], _schedule),
        "precision": said("precision"),
        "validation": f"every {said('eval_interval')} steps, on {said('eval_batches')} x "
        f"{said('batch_size')} windows spread over the text, the same for all",
        "losses": _unit(comparison),
    }
    frame = pd.DataFrame({"fact": list(facts), "value": list(facts.values())})
    return Table("setting", "Setting", frame, [Column("", ("fact",)), Column("", ("value",))])


def _values(column: "pd.Series[Any]") -> str:
    values = column.drop_duplicates().sort_values()
    texts = list(dict.fromkeys(map(_text_of, values)))
    if len(texts) > MAX_NAMES:
        return f"{texts[0]} to {texts[-1]} ({len(texts)} values)"
    return ", ".join(texts)


def _text_of(value: Any) -> str:
    """Whole numbers with their thousands."""
    text = value_text(value)
    return f"{int(text):,}" if text.isdecimal() else text


def _text(row: Row) -> str:
    size = {
        split: "all" if pd.isna(row[f"{split}_bytes"]) else _text_of(row[f"{split}_bytes"])
        for split in ("train", "validation", "heldout")
    }
    held = "" if size["heldout"] == "all" else f", {size['heldout']} held out"
    return (
        f"{row['corpus']}: {size['train']} bytes to train on, {size['validation']} to validate "
        f"on{held}"
    )


def _tokens(row: Row) -> str:
    size = _text_of(row["tokenizer_vocab_size"])
    names = {"char": "characters", "bbpe": f"byte-level BPE of {size} tokens", "gpt2": "GPT-2's"}
    return names[row["tokenizer"]]


def _optimizer(row: Row) -> str:
    if row["optimizer"] != "muon":
        return "AdamW"
    rate, momentum = value_text(row["adamw_learning_rate"]), value_text(row["momentum"])
    return f"Muon with momentum {momentum}, AdamW at {rate} for all but the blocks' linear maps"


def _schedule(row: Row) -> str:
    warmup = f" after {_text_of(row['warmup_steps'])} steps of warm-up" * bool(row["warmup_steps"])
    if row["schedule"] == "constant":
        return f"constant{warmup}"
    fraction, ratio = (value_text(row[key]) for key in DECAY)
    over = "" if fraction == "1" else f" over the last {float(fraction):.0%}"
    return f"{row['schedule']} decay{over} to {ratio} of the peak{warmup}"


def _unit(comparison: Comparison) -> str:
    if comparison.metric != NATS:
        return "bits per UTF-8 byte of the text"
    is_char = (comparison.runs["tokenizer"] == "char").all()
    return f"nats a {'character' if is_char else 'token'}"
