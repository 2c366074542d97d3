"""Whatever a file says: it is a space with a plan, or a mistake told in one line."""

from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from spacefiles import SMALL, Content, plan_of

from triplu_ray.config import VARIANTS
from triplu_ray.errors import UserError
from triplu_ray.space import KEYS

NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 8, 96, 2**63, 0.5, 1e-3, float("nan"), float("inf")])
WORDS = st.sampled_from(
    [*VARIANTS, "match", "text", "tinystories", "cosine", "a/b", "", "[b]", "é"]
)
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS | st.dates() | st.binary(max_size=2)
NAMES = st.sampled_from([*sorted(KEYS - {"base"}), "values", "when", "cpu", "gpu", "sed"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | st.lists(NUMBERS, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | SCALARS, inner, max_size=3),
    max_leaves=8,
)
# Values that a key can have; together they need not make a run.
SOUND: dict[str, list[Any]] = {
    "variant": VARIANTS,
    "hidden": ["match", 1, 64],
    "degree": [2, 3],
    "gain": [1, 5.0],
    "learned_gain": [False, True],
    "seed": [1, 2],
    "num_layers": [1, 2],
    "d_model": [8, 96],
    "num_heads": [1, 3],
    "learning_rate": [1e-3, 1],
    "num_steps": [250, 5000],
    "warmup_steps": [0, 300],
    "schedule": ["constant", "cosine"],
    "train_bytes": [None, 1000],
    "select": [
        {"key": "learning_rate", "values": [1e-3, 1], "seeds": [7]},
        {"key": "num_steps", "values": [250, 500], "seeds": [1, 8]},
        {"key": "num_steps", "values": [250], "seeds": [8], "values_for": {"triplu": [500, 250]}},
        {"values": [1]},
    ],
    "search": [
        {"keys": {"gain": {"low": 1, "high": 9.5, "log": True}}, "num_suggestions": 2},
        {
            "keys": {
                "learning_rate": {"low": 1e-3, "high": 1},
                "num_layers": {"low": 1, "high": 2},
            },
            "num_suggestions": 1,
            "confirm_seeds": [2, 8],
            "objective": "paired_gap",
        },
        {"keys": {"num_heads": {"low": 1, "high": 3}}, "num_suggestions": 3, "pruning": "asha"},
        {"keys": {"gain": {"low": -1}}},
    ],
}


def sound(values: Callable[[list[Any]], st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Mappings of a few keys to what `values` makes of the values that they can have."""
    entry = st.sampled_from(sorted(SOUND)).flatmap(
        lambda key: st.tuples(st.just(key), values(SOUND[key]))
    )
    return st.lists(entry, max_size=3).map(dict)


def axis(values: list[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(st.sampled_from(values), min_size=1, max_size=2, unique_by=repr)
    condition = sound(st.sampled_from)
    return some | st.fixed_dictionaries({"values": some, "when": condition})


UNSOUND_AXES = st.dictionaries(
    NAMES,
    st.lists(SCALARS, max_size=2) | st.fixed_dictionaries({"values": VALUES, "when": VALUES}),
    max_size=2,
)
AXES = sound(axis) | sound(axis) | UNSOUND_AXES
SOUND_CHANGES = sound(st.sampled_from)
CHANGES = SOUND_CHANGES | SOUND_CHANGES | st.dictionaries(NAMES, VALUES, max_size=2)
LIKE_SMALL = st.builds(
    lambda changes, axes, blocks: {
        **SMALL,
        "grid": {k: v for k, v in {**SMALL["grid"], **axes}.items() if k not in changes},
        **({"blocks": blocks} if blocks else {}),
        **changes,
    },
    CHANGES,
    AXES,
    st.lists(CHANGES | st.fixed_dictionaries({"grid": AXES}), max_size=2),
)
OVERRIDE_TEXTS = st.one_of(
    SOUND_CHANGES.filter(bool).map(lambda changes: "{}={}".format(*next(iter(changes.items())))),
    st.builds("{}={}".format, NAMES, SCALARS),
    st.text(max_size=8),
)


def succeeds(content: Content, *overrides: str, base: Content = "") -> bool:
    line = "none"
    try:
        plan_of(content, *overrides, beside={"base.yaml": base})
    except UserError as error:
        line = str(error)
    assert 0 < len(line) < 3_000
    return line == "none"


@given(VALUES | st.dictionaries(NAMES | SCALARS, VALUES))
def test_any_content_is_a_space_or_a_mistake(content: object) -> None:
    succeeds(yaml.safe_dump(content, allow_unicode=True))


@given(LIKE_SMALL, st.lists(OVERRIDE_TEXTS, max_size=2))
def test_any_change_gives_a_space_or_a_mistake(content: dict[str, Any], texts: list[str]) -> None:
    succeeds(content, *texts)


@given(CHANGES | st.fixed_dictionaries({"grid": AXES}), LIKE_SMALL | VALUES)
def test_any_base_gives_a_space_or_a_mistake(child: dict[str, Any], base: object) -> None:
    succeeds({**child, "base": "base.yaml"}, base=yaml.safe_dump(base, allow_unicode=True))


@given(st.text("{}[]:,-?&*!#|>%@`'\" \nab1.e_~<=\t", max_size=40) | st.text() | st.binary())
def test_any_text_is_a_space_or_a_mistake(text: str | bytes) -> None:
    if isinstance(text, str):
        text = text.encode(errors="surrogatepass")
    succeeds(text)
    succeeds(b"name: x\nvariant: swiglu\nhidden: 3\n" + text)


def test_the_fuzzed_base_line_is_a_space() -> None:
    assert succeeds(SMALL)
    assert succeeds({"base": "base.yaml"}, base=SMALL)
