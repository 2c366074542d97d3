import copy
from typing import Any

import pytest
from spacefiles import SMALL, Content, plan_of, run_ids, space_of

from triplu_ray.errors import UserError
from triplu_ray.space import Axis, Block, Header, Resources, load_space


def test_a_space_file_is_read() -> None:
    text = """
        name: all-keys_1.2
        description: >
          What it
          answers.
        baseline: {variant: swiglu, hidden: 322}
        targets: [1.1, 1]
        vocab_size: 79
        cohort: 4
        resources: {cpu: 2, gpu: 0.25}
        max_failures: 0
        checkpoint_seconds: 5
        hidden: match
        learning_rate: 1e-3
        train_bytes: 1_000_000
        grid:
          variant: [swiglu, triplu]
          gain: {values: [1, 5], when: {variant: triplu, seed: [1, 2]}}
        blocks:
          - seed: 1
          - grid: {seed: [2, 3]}
            hidden: 5
    """
    space = space_of(text)
    assert space.header == Header(
        name="all-keys_1.2",
        description="What it answers.\n",
        baseline={"variant": "swiglu", "hidden": 322},
        targets=[1.1, 1.0],
        vocab_size=79,
        cohort=4,
        resources=Resources(cpu=2.0, gpu=0.25),
        max_failures=0,
        checkpoint_seconds=5.0,
    )
    shared = {"learning_rate": 1e-3, "train_bytes": 1_000_000}
    axes = {
        "variant": Axis(("swiglu", "triplu"), {}),
        "gain": Axis((1, 5), {"variant": ("triplu",), "seed": (1, 2)}),
    }
    assert space.blocks == (
        Block({**shared, "hidden": "match", "seed": 1}, axes),
        Block({**shared, "hidden": 5}, {**axes, "seed": Axis((2, 3), {})}),
    )


def test_the_origin_of_a_space_is_its_file_and_the_overrides() -> None:
    origin = space_of(SMALL, "cohort=2", "seed=[1]").origin
    assert origin.endswith("/space.yaml cohort=2 seed=[1]")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E3", 1e3),
        ("+1.5e-3", 1.5e-3),
        (".5e1", 5.0),
        ("5.e1", 50.0),
        ("1_0e-1", 1.0),
        ("1.0e+3", 1e3),
        ("0.001", 1e-3),
        ("2", 2),
    ],
)
def test_numbers_of_yaml_1_2(text: str, value: float) -> None:
    (block,) = space_of(f"{{name: x, learning_rate: {text}}}").blocks
    assert block.settings == {"learning_rate": value}


@pytest.mark.parametrize("text", ["1e5_texts", "12e3.txt", "1e", "e5", "0x1e3.txt"])
def test_texts_that_begin_like_numbers_stay_texts(text: str) -> None:
    (block,) = space_of(f"{{name: x, train_file: {text}}}").blocks
    assert block.settings == {"train_file": text}


def test_anchors_and_merges_work() -> None:
    text = """
        name: x
        blocks:
          - &first {variant: swiglu, hidden: 3, seed: 1}
          - {<<: *first, seed: 2}
    """
    assert [block.settings["seed"] for block in space_of(text).blocks] == [1, 2]


# A file, an override, and the file as an editor would have changed it.
OVERRIDES: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (SMALL, "learning_rate=1e-3", {**SMALL, "learning_rate": 1e-3}),
    (SMALL, "learning_rate = 1e-3", {**SMALL, "learning_rate": 1e-3}),
    (SMALL, "hidden=64", {**SMALL, "hidden": 64}),
    (SMALL, "name=other", {**SMALL, "name": "other"}),
    (SMALL, "description=a=b", {**SMALL, "description": "a=b"}),
    (SMALL, "targets=[1.5]", {**SMALL, "targets": [1.5]}),
    (SMALL, "train_bytes=null", {**SMALL, "train_bytes": None}),
    (SMALL, "resources={cpu: 2}", {**SMALL, "resources": {"cpu": 2}}),
    ({**SMALL, "resources": {"gpu": 2}}, "resources=auto", {**SMALL, "resources": {}}),
    ({**SMALL, "resources": "auto"}, "resources.gpu=2", {**SMALL, "resources": {"gpu": 2}}),
    (SMALL, "resources.cpu=2", {**SMALL, "resources": {"cpu": 2}}),
    (
        {**SMALL, "resources": {"cpu": 2}},
        "resources.gpu=1",
        {**SMALL, "resources": {"cpu": 2, "gpu": 1}},
    ),
    (
        SMALL,
        "baseline.hidden=300",
        {**SMALL, "baseline": {"variant": "swiglu", "hidden": 300}},
    ),
    (SMALL, "seed=[4, 5]", {**SMALL, "grid": {"seed": [4, 5], "variant": ["swiglu", "triplu"]}}),
    (SMALL, "seed=7", {**SMALL, "seed": 7, "grid": {"variant": ["swiglu", "triplu"]}}),
    ({**SMALL, "num_layers": 3}, "num_layers=[1, 2]", {
        **SMALL, "grid": {**SMALL["grid"], "num_layers": [1, 2]}
    }),
    (
        {"name": "x", "hidden": 5, "grid": {"variant": ["swiglu"]}},
        "variant=triplu",
        {"name": "x", "hidden": 5, "variant": "triplu"},
    ),
    (
        {"name": "x", "hidden": 5, "variant": "swiglu"},
        "variant=[triplu]",
        {"name": "x", "hidden": 5, "grid": {"variant": ["triplu"]}},
    ),
    (
        {**SMALL, "blocks": [{"num_layers": 1}, {"grid": {"num_layers": [2, 3]}}]},
        "num_layers=4",
        {**SMALL, "num_layers": 4},
    ),
    (
        {**SMALL, "blocks": [{"num_layers": 1}, {"grid": {"num_layers": [2], "gain": [2]}}]},
        "num_layers=[4, 5]",
        {
            **SMALL,
            "grid": {**SMALL["grid"], "num_layers": [4, 5]},
            "blocks": [{}, {"grid": {"gain": [2]}}],
        },
    ),
    (
        {**SMALL, "grid": {**SMALL["grid"], "gain": {"values": [1], "when": {"seed": 1}}}},
        "gain=[2, 3]",
        {**SMALL, "grid": {**SMALL["grid"], "gain": [2, 3]}},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("content", "override", "edited"), OVERRIDES, ids=lambda v: str(v)[:25])
def test_an_override_equals_editing_the_file(
    content: dict[str, Any], override: str, edited: dict[str, Any]
) -> None:
    given = plan_of(content, override)
    assert run_ids(given) == run_ids(plan_of(edited))
    assert given.space.header == space_of(edited).header
    assert given.baseline == plan_of(edited).baseline


def test_a_later_override_wins() -> None:
    plan = plan_of(SMALL, "seed=[4, 5]", "seed=6", "seed=[7]")
    assert run_ids(plan) == run_ids(plan_of(SMALL, "seed=[7]"))


# A base, a child, and what they come to.
INHERITED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (SMALL, {}, SMALL),
    (SMALL, {"name": "child", "cohort": 3}, {**SMALL, "name": "child", "cohort": 3}),
    (SMALL, {"hidden": 99}, {**SMALL, "hidden": 99}),
    (SMALL, {"grid": {"seed": [9]}}, {**SMALL, "grid": {**SMALL["grid"], "seed": [9]}}),
    (SMALL, {"grid": {"num_layers": [1, 2]}}, {
        **SMALL, "grid": {**SMALL["grid"], "num_layers": [1, 2]}
    }),
    (SMALL, {"seed": 9}, {**SMALL, "seed": 9, "grid": {"variant": ["swiglu", "triplu"]}}),
    (
        {"name": "x", "hidden": 5, "grid": {"variant": ["swiglu"]}},
        {"variant": "triplu"},
        {"name": "x", "hidden": 5, "variant": "triplu"},
    ),
    (
        {**SMALL, "num_layers": 3},
        {"grid": {"num_layers": [1, 2]}},
        {**SMALL, "grid": {**SMALL["grid"], "num_layers": [1, 2]}},
    ),
    (
        SMALL,
        {"baseline": {"hidden": 300}, "resources": {"cpu": 2}},
        {
            **SMALL,
            "baseline": {"variant": "swiglu", "hidden": 300},
            "resources": {"cpu": 2},
        },
    ),
    (
        {**SMALL, "resources": {"cpu": 2}},
        {"resources": {"gpu": 1}},
        {**SMALL, "resources": {"cpu": 2, "gpu": 1}},
    ),
    (SMALL, {"targets": [1]}, {**SMALL, "targets": [1]}),
    (
        SMALL,
        {"blocks": [{"seed": 1}, {"gain": 2}]},
        {**SMALL, "blocks": [{"seed": 1}, {"gain": 2}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("base", "child", "merged"), INHERITED)
def test_a_base_and_a_child_equal_the_merged_file(
    base: dict[str, Any], child: dict[str, Any], merged: dict[str, Any]
) -> None:
    inherited = plan_of({"base": "base.yaml", **child}, beside={"base.yaml": base})
    assert run_ids(inherited) == run_ids(plan_of(merged))
    assert inherited.space.header == space_of(merged).header
    assert run_ids(plan_of({**child, "base": "base.yaml"}, beside={"base.yaml": base})) == run_ids(
        inherited
    )


def test_bases_may_have_bases() -> None:
    beside: dict[str, Content] = {
        "middle.yaml": {"base": "base.yaml", "cohort": 2, "seed": 4},
        "base.yaml": {**SMALL, "cohort": 1},
    }
    plan = plan_of({"base": "middle.yaml", "name": "child"}, beside=beside)
    assert (plan.space.header.name, plan.space.header.cohort) == ("child", 2)
    assert run_ids(plan) == run_ids(plan_of(SMALL, "seed=4"))


def test_a_value_and_an_axis_in_one_child_are_a_mistake_in_any_order() -> None:
    for child in ({"seed": 1, "grid": {"seed": [2]}}, {"grid": {"seed": [2]}, "seed": 1}):
        with pytest.raises(UserError, match="seed: expected a value or an axis of grid, got both"):
            space_of({"base": "base.yaml", **child}, beside={"base.yaml": SMALL})


def test_what_is_given_is_not_changed() -> None:
    content = copy.deepcopy(SMALL)
    space_of({**content, "blocks": [{"seed": 1}]}, "seed=2")
    assert content == SMALL


def test_load_space_takes_a_path() -> None:
    with pytest.raises(UserError, match=r"^missing\.yaml: cannot be read: No such file"):
        load_space("missing.yaml")
