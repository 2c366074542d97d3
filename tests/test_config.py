import hashlib
from typing import Any

import pytest
from pydantic import ValidationError
from variants import KINDS

from triplu_ray import config as config_module
from triplu_ray.added_keys import ADDED_KEYS
from triplu_ray.config import (
    FFN_KEYS,
    SCHEMA_VERSION,
    VARIANTS,
    RunConfig,
    explain,
    ffn_keys_of,
    resolve_ffn,
    short_hash,
)
from triplu_ray.corpus import CorpusSource
from triplu_ray.errors import UserError
from triplu_ray.ffn import ALIASES, Product

SHA = "5eed" * 16
TRIPLU = {"kind": "product", "degree": 3, "gain": 5.0}

# Another valid value for every key that has one, and for those of Muon, beside MUON.
OTHER: dict[str, Any] = {
    "corpus": "tinystories",
    "train_bytes": None,
    "validation_bytes": 100_000,
    "heldout_bytes": 100_000,
    "tokenizer": "bbpe",
    "tokenizer_vocab_size": 1024,
    "ffn": {"kind": "swiglu"},
    "hidden": 243,
    "d_model": 98,
    "num_layers": 3,
    "num_heads": 3,
    "context_length": 65,
    "initialization": "mingpt",
    "learning_rate": 3.1e-4,
    "weight_decay": 0.0,
    "beta1": 0.95,
    "beta2": 0.95,
    "decay": "matrices",
    "gradient_clip": 2.0,
    "schedule": "cosine",
    "warmup_steps": 10,
    "decay_fraction": 0.5,
    "final_learning_rate_ratio": 0.1,
    "batch_size": 33,
    "num_steps": 5_001,
    "train_budget_bytes": 1_000_000,
    "eval_interval": 251,
    "eval_batches": 51,
    "seed": 2,
    "precision": "bf16",
    "patience": 5,
}
MUON: dict[str, Any] = {"optimizer": "muon", "adamw_learning_rate": 1e-3}
OTHER_OF_MUON: dict[str, Any] = {"adamw_learning_rate": 2e-3, "momentum": 0.9}
# What such a value needs beside it.
BESIDE: dict[str, dict[str, Any]] = {"tokenizer_vocab_size": {"tokenizer": "bbpe"}}
PLACES = {"train_file", "validation_file", "heldout_file"}


def config(**changes: Any) -> RunConfig:
    return RunConfig.model_validate({"ffn": TRIPLU, "hidden": 242, **changes})


def test_run_id_is_pinned() -> None:
    """Results are stored under these ids: a change of them orphans every store."""
    assert config().run_id(SHA) == "359bb33345391530"
    assert config(ffn={"kind": "swiglu"}, hidden=322).run_id(SHA) == "edc1e02f8599a0cf"


def test_there_is_another_value_for_every_key() -> None:
    keys = OTHER.keys() | MUON.keys() | OTHER_OF_MUON.keys() | PLACES
    assert keys == RunConfig.model_fields.keys()


@pytest.mark.parametrize("key", OTHER)
def test_every_key_counts_in_the_run_id(key: str) -> None:
    beside = BESIDE.get(key, {})
    assert config(**beside, **{key: OTHER[key]}).run_id(SHA) != config(**beside).run_id(SHA)


def test_muon_and_its_keys_count_in_the_run_id() -> None:
    changes = [{key: value} for key, value in OTHER_OF_MUON.items()]
    runs = [config(), *(config(**{**MUON, **change}) for change in [{}, *changes])]
    assert len({run.run_id(SHA) for run in runs}) == 4


def test_an_added_key_counts_in_the_run_id_only_where_it_says_something_new() -> None:
    before = config().model_dump(exclude={*PLACES, *ADDED_KEYS})
    before |= {"schema": SCHEMA_VERSION, "corpus_sha256": SHA}
    assert config().run_id(SHA) == short_hash(before)
    assert config(**MUON).run_id(SHA) == short_hash({**before, **MUON})
    other = config(**MUON, momentum=0.9)
    assert other.run_id(SHA) == short_hash({**before, **MUON, "momentum": 0.9})


@pytest.mark.parametrize(
    "change",
    [{"degree": 4}, {"gain": 5.1}, {"learned_gain": True}, {"branch_norm": True}],
    ids=lambda change: next(iter(change)),
)
def test_every_key_of_the_variant_counts_in_the_run_id(change: dict[str, Any]) -> None:
    assert config(ffn={**TRIPLU, **change}).run_id(SHA) != config().run_id(SHA)


def test_nothing_is_left_out_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[dict[str, Any]] = []
    monkeypatch.setattr(config_module, "short_hash", hashed.append)
    monkeypatch.setattr(config_module, "ADDED_KEYS", {})
    config().run_id(SHA)
    known = RunConfig.model_fields.keys() - PLACES
    assert hashed[0].keys() == {*known, "schema", "corpus_sha256"}
    assert hashed[0]["ffn"].keys() == Product.model_fields.keys()


def test_keys_added_later_count_once_they_say_something_new() -> None:
    assert {key: getattr(config(), key) for key in ADDED_KEYS} == ADDED_KEYS
    assert ADDED_KEYS.keys() <= OTHER.keys() | OTHER_OF_MUON.keys() | PLACES


def test_text_counts_in_the_run_id_but_not_where_it_lies() -> None:
    assert config().run_id("0" * 64) != config().run_id(SHA)
    here = config(corpus="text", train_file="a", validation_file="b")
    there = config(corpus="text", train_file="c", validation_file="d", heldout_file="e")
    assert here.run_id(SHA) == there.run_id(SHA)


def test_whole_numbers_are_the_same_run_as_decimals() -> None:
    whole = config(ffn={**TRIPLU, "gain": 5}, gradient_clip=1, learning_rate=1)
    assert whole.run_id(SHA) == config(gradient_clip=1.0, learning_rate=1.0).run_id(SHA)


@pytest.mark.parametrize("key", OTHER)
def test_members_may_differ_in_seed_rate_and_decay_only(key: str) -> None:
    beside = BESIDE.get(key, {})
    same = config(**beside, **{key: OTHER[key]}).cohort_key == config(**beside).cohort_key
    assert same == (key in {"seed", "learning_rate", "weight_decay"})


def test_members_may_differ_in_the_rate_of_adamw_but_not_in_the_optimizer() -> None:
    muon = config(**MUON)
    assert config(**{**MUON, "adamw_learning_rate": 2e-3}).cohort_key == muon.cohort_key
    assert config(**MUON, momentum=0.9).cohort_key != muon.cohort_key
    assert config().cohort_key != muon.cohort_key


def test_an_optimizer_has_its_rates_in_order() -> None:
    assert config(learning_rate=0.5).learning_rates == [0.5]
    assert config(learning_rate=0.5, **MUON).learning_rates == [0.5, 1e-3]


def test_members_may_differ_in_gain_but_not_in_degree() -> None:
    assert config(ffn={**TRIPLU, "gain": 1.0}).cohort_key == config().cohort_key
    assert config(ffn={**TRIPLU, "degree": 4}).cohort_key != config().cohort_key


def test_short_hash_ignores_the_order_of_keys() -> None:
    expected = hashlib.sha256(b'{"a": 1, "b": 2}').hexdigest()[:16]
    assert short_hash({"b": 2, "a": 1}) == short_hash({"a": 1, "b": 2}) == expected


def test_derived_values() -> None:
    run = config(corpus="text", train_file="a", validation_file="b", train_bytes=7)
    assert run.corpus_source == CorpusSource("text", 7, 200_000, "a", "b")
    run = config(tokenizer="bbpe", tokenizer_vocab_size=300, heldout_bytes=5)
    assert run.corpus_source == CorpusSource(
        "tinystories_lite", 1_000_000, 200_000, None, None, "bbpe", 300, 5, None
    )
    assert run.tokens_per_step == 32 * 64


def test_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().seed = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"d_model": 97}, "d_model: expected a multiple of num_heads (2), got 97"),
        (
            {"train_file": "a"},
            "train_file: expected corpus: text or gpt2_shards beside it, got tinystories_lite",
        ),
        (
            {"corpus": "gpt2_shards"},
            "tokenizer: expected gpt2 with corpus: gpt2_shards, got char",
        ),
        (
            {"tokenizer": "gpt2"},
            "tokenizer: expected char or bbpe with corpus: tinystories_lite, got gpt2",
        ),
        (
            {"tokenizer_vocab_size": 300},
            "tokenizer_vocab_size: expected tokenizer: bbpe beside it, got char",
        ),
        (
            {"tokenizer": "bbpe", "tokenizer_vocab_size": 255},
            "tokenizer_vocab_size: expected greater than or equal to 256, got 255",
        ),
        (
            {"tokenizer": "bbpe", "tokenizer_vocab_size": 65_537},
            "tokenizer_vocab_size: expected less than or equal to 65536, got 65537",
        ),
        (
            {"corpus": "tinystories", "heldout_file": "a"},
            "heldout_file: expected corpus: text beside it, got tinystories",
        ),
        (
            {"corpus": "text", "heldout_bytes": 5},
            "heldout_bytes: expected heldout_file beside it, got none",
        ),
        (
            {"corpus": "gpt2_shards", "tokenizer": "gpt2", "heldout_bytes": 5_000},
            "heldout_bytes: expected none with corpus: gpt2_shards, got 5,000",
        ),
        (
            {"corpus": "tinystories", "validation_bytes": None, "heldout_bytes": 5},
            "heldout_bytes: expected validation_bytes beside it, as the held-out text begins where "
            "the validation text ends; got none",
        ),
        ({"train_budget_bytes": 0}, "train_budget_bytes: expected greater than 0, got 0"),
        ({"warmup_steps": 5_001}, "warmup_steps: expected at most num_steps (5000), got 5001"),
        ({"num_steps": 249}, "eval_interval: expected at most num_steps (249), got 250"),
        ({"learning_rate": 0.0}, "learning_rate: expected greater than 0, got 0.0"),
        ({"learning_rate": float("inf")}, "learning_rate: expected a finite number, got inf"),
        ({"weight_decay": float("nan")}, "weight_decay: expected a finite number, got nan"),
        ({"weight_decay": -0.1}, "weight_decay: expected greater than or equal to 0, got -0.1"),
        ({"beta2": 1.0}, "beta2: expected less than 1, got 1.0"),
        ({"decay_fraction": 1.5}, "decay_fraction: expected less than or equal to 1, got 1.5"),
        ({"seed": True}, "seed: expected a valid integer, got True"),
        ({"seed": 1.0}, "seed: expected a valid integer, got 1.0"),
        ({"learning_rate": "1e-3"}, "learning_rate: expected a valid number, got '1e-3'"),
        ({"schedule": "step"}, "schedule: expected 'constant', 'cosine' or 'linear', got 'step'"),
        ({"hidden": None}, "hidden: expected a valid integer, got None"),
        ({"nesterov": True}, "nesterov: unknown key"),
        ({"momentum": 0.9}, "momentum: expected optimizer: muon beside it, got adamw"),
        (
            {"adamw_learning_rate": 1e-3},
            "adamw_learning_rate: expected optimizer: muon beside it, got adamw",
        ),
        (
            {"optimizer": "muon"},
            "adamw_learning_rate: expected a value with optimizer: muon, got none",
        ),
        ({**MUON, "momentum": 1.0}, "momentum: expected less than 1, got 1.0"),
        (
            {"optimizer": "muon", "adamw_learning_rate": 0.0},
            "adamw_learning_rate: expected greater than 0, got 0.0",
        ),
        ({"optimizer": "sgd"}, "optimizer: expected 'adamw' or 'muon', got 'sgd'"),
        (
            {"ffn": {**TRIPLU, "degree": 1}},
            "ffn.degree: expected greater than or equal to 2, got 1",
        ),
    ],
    ids=lambda value: value.partition(":")[0] if isinstance(value, str) else "",
)
def test_mistakes_are_explained_in_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config(**changes)
    assert explain(caught.value) == line


def test_a_missing_key_is_explained() -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate({"ffn": TRIPLU})
    assert explain(caught.value) == "hidden: expected a value, got none"


def test_variants_are_all_kinds_and_aliases() -> None:
    assert sorted([*KINDS, *ALIASES]) == VARIANTS
    product = {"degree", "gain", "learned_gain", "branch_norm"}
    assert ffn_keys_of("triplu") == ffn_keys_of("product") == product
    assert ffn_keys_of("polyglu_leaking") == {"pooling", "decay_preferences"}
    assert set().union(*(ffn_keys_of(kind) for kind in KINDS)) == FFN_KEYS
    assert ffn_keys_of("swiglu") == set()


@pytest.mark.parametrize(
    ("name", "degree", "gain", "label"),
    [
        ("double_prod", 2, 1.0, "double_prod"),
        ("triple_prod", 3, 5.0, "triplu"),
        ("triplu", 3, 5.0, "triplu"),
        ("quad_prod", 4, 25.0, "quad_prod"),
    ],
)
def test_papers_names(name: str, degree: int, gain: float, label: str) -> None:
    ffn = resolve_ffn(name, {}, "")
    assert ffn == Product(degree=degree, gain=gain)
    assert ffn.label == label
    assert ffn == resolve_ffn("product", {"degree": degree, "gain": gain}, "")


def test_a_name_takes_the_keys_it_leaves_open() -> None:
    settings = {"gain": 1, "learned_gain": True, "degree": 3, "seed": 7}
    expected = Product(degree=3, gain=1.0, learned_gain=True)
    assert resolve_ffn("triplu", settings, "") == expected
    assert resolve_ffn("swiglu", settings, "") == resolve_ffn("swiglu", {}, "")


@pytest.mark.parametrize(
    ("variant", "settings", "line"),
    [
        ("triplu", {"degree": 4}, "x: degree: triplu means 3, got 4; write variant: product"),
        ("product", {}, "x: product: degree: expected a value, got none"),
        (
            "product",
            {"degree": 1},
            "x: product: degree: expected greater than or equal to 2, got 1",
        ),
        ("triplu", {"gain": 0}, "x: triplu: gain: expected greater than 0, got 0"),
        ("triplu", {"gain": True}, "x: triplu: gain: expected a valid number, got True"),
        ("triplu", {"learned_gain": 1}, "x: triplu: learned_gain: expected a valid boolean, got 1"),
    ],
)
def test_mistakes_in_a_variant_name_it(variant: str, settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_ffn(variant, settings, "x")
    assert str(caught.value) == line
