"""The spaces that come with the project: what they plan, with neither data nor network."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triplu_ray import cli
from triplu_ray.corpus import CorpusSource, load_corpus
from triplu_ray.plan import CorpusFacts, Plan, make_plan
from triplu_ray.space import load_space

FILES = sorted((Path(__file__).parents[1] / "search_spaces").glob("*.yaml"))
FILE = {file.stem: file for file in FILES}
BASELINES = {"untied_relu2": "squared_relu", "untied_relu2_small": "squared_relu"}
UNMATCHED = {"untied_relu2", "untied_relu2_small"}
"""They ask on purpose what half as many parameters again are worth."""


def plan(name: str) -> Plan:
    """The plan of a space over a corpus of the size that it states."""
    space = load_space(FILE[name])

    def facts(source: CorpusSource) -> CorpusFacts:
        vocab_size = source.vocab_size or space.header.vocab_size
        assert vocab_size is not None
        return CorpusFacts(vocab_size, None, source.assumed_bytes_per_token)

    return make_plan(space, facts)


def ids(name: str) -> set[str]:
    return {run.run_id for run in plan(name).runs}


def axes_of(name: str, *keys: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[key] for key in keys) for row in plan(name).rows())


@pytest.fixture
def planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], dict[str, Any]]:
    """What `triplu-ray plan NAME --json` prints where there is nothing: no data, hub or store."""

    def fetch(*_: Any) -> bytes:
        raise AssertionError("a plan asked for the network")

    monkeypatch.setattr("triplu_ray.corpus.hub.read_lines", fetch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRIPLU_RAY_DATA", raising=False)

    def plan_json(name: str) -> dict[str, Any]:
        store = str(tmp_path / "results")
        assert cli.main(["plan", str(FILE[name]), "--json", "--store", store]) == 0
        content: dict[str, Any] = json.loads(capsys.readouterr().out)
        return content

    return plan_json


def test_the_spaces_are_there() -> None:
    assert FILE.keys() >= {"quickstart", "lr_scan", "main_1m", "depth", "gain"}


@pytest.mark.parametrize("name", FILE)
def test_plans_without_data_or_network(name: str, planned: Callable[[str], dict[str, Any]]) -> None:
    content = planned(name)
    assert content["space"] == name
    assert content["baseline"] == BASELINES.get(name, "swiglu")
    assert content["missing"] == len(content["runs"]) == len(plan(name).runs)
    assert content["done"] == 0


@pytest.mark.parametrize("name", FILE)
def test_opens_with_its_cost_and_sources(name: str) -> None:
    text = FILE[name].read_text()
    comment = " ".join(re.findall(r"^#(.*)$", text, re.M))
    assert "Numbers:" in comment
    cost = re.search(r"Cost: +(\d+) +runs +of +([\d.]+) +M +token +positions", comment)
    assert cost, "a line such as `Cost: 12 runs of 10.24 M token positions`"
    runs = plan(name).runs
    assert int(cost[1]) == len(runs) + plan(name).pending
    for run in runs:
        assert run.tokens / 1e6 == pytest.approx(float(cost[2]), abs=0.05)
    assert plan(name).space.header.description


@pytest.mark.parametrize("name", sorted(FILE.keys() - UNMATCHED))
def test_widths_match_within_a_percent(name: str) -> None:
    params: dict[int, dict[str, int]] = {}
    for run in plan(name).runs:
        params.setdefault(run.config.num_layers, {})[run.config.ffn.label] = run.params
    for of_depth in params.values():
        for count in of_depth.values():
            assert count == pytest.approx(next(iter(of_depth.values())), rel=0.01)


def test_main_1m_is_the_papers(planned: Callable[[str], dict[str, Any]]) -> None:
    content = planned("main_1m")
    told = {(run["variant"], run["hidden"], run["params"]) for run in content["runs"]}
    assert told == {
        ("swiglu", 322, 282_240),
        ("triplu", 242, 282_624),
        ("quad_prod", 193, 282_048),
        ("double_prod", 322, 282_240),
    }
    flops = {run["variant"]: run["ffn_flops_per_token"] for run in content["runs"]}
    assert flops == {
        "swiglu": 185_472,
        "triplu": 185_856,
        "quad_prod": 185_280,
        "double_prod": 185_472,
    }
    assert {run["tokens"] for run in content["runs"]} == {10_240_000}
    assert content["targets"] == [1.1, 1.08]
    assert axes_of("main_1m", "variant") == {
        ("swiglu",): 3, ("triplu",): 3, ("quad_prod",): 3, ("double_prod",): 3
    }  # fmt: skip
    gains = {run["variant"]: run["gain"] for run in content["runs"]}
    assert gains == {"swiglu": None, "triplu": 5.0, "quad_prod": 25.0, "double_prod": 1.0}


def test_main_1m_trains_as_the_paper() -> None:
    configs = [run.config for run in plan("main_1m").runs]
    expected = {
        "corpus": "tinystories", "train_bytes": 1_000_000, "validation_bytes": 200_000,
        "tokenizer": "char", "d_model": 96, "num_layers": 2, "num_heads": 2, "context_length": 64,
        "optimizer": "adamw", "learning_rate": 3e-4, "schedule": "constant", "weight_decay": 0.1,
        "gradient_clip": 1.0, "batch_size": 32, "num_steps": 5_000, "eval_interval": 250,
        "eval_batches": 50,
    }  # fmt: skip
    for config in configs:
        assert config.model_dump(include=set(expected)) == expected
    assert {config.seed for config in configs} == {1, 2, 3}


def test_depth_lists_the_papers_parameters(planned: Callable[[str], dict[str, Any]]) -> None:
    told = {(run["num_layers"], run["variant"]): run["params"] for run in planned("depth")["runs"]}
    assert told == {
        (1, "swiglu"): 151_872,
        (2, "swiglu"): 282_240,
        (4, "swiglu"): 542_976,
        (5, "swiglu"): 673_344,
        (6, "swiglu"): 803_712,
        (7, "swiglu"): 934_080,
        (8, "swiglu"): 1_064_448,
        (1, "triplu"): 152_064,
        (2, "triplu"): 282_624,
        (4, "triplu"): 543_744,
        (5, "triplu"): 674_304,
        (6, "triplu"): 804_864,
        (7, "triplu"): 935_424,
        (8, "triplu"): 1_065_984,
    }
    assert set(axes_of("depth", "variant", "num_layers").values()) == {3}


def test_lr_scan_has_five_rates() -> None:
    counts = axes_of("lr_scan", "variant", "learning_rate")
    assert {rate for _, rate in counts} == {1e-4, 3e-4, 1e-3, 3e-3, 1e-2}
    assert (len(counts), set(counts.values())) == (10, {3})


def test_gain_trains_the_baseline_once_a_seed() -> None:
    assert axes_of("gain", "variant", "gain") == {
        ("swiglu", None): 3, ("triplu", 1.0): 3, ("triplu", 3.0): 3, ("triplu", 5.0): 3,
        ("triplu", 7.0): 3, ("triplu", 10.0): 3,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["lr_scan", "depth", "gain"])
def test_spaces_share_the_runs_of_main_1m(name: str) -> None:
    """Its six of SwiGLU and TriPLU need not be trained again."""
    assert len(ids(name) & ids("main_1m")) == 6


def test_subword_models_have_the_papers_parameters(
    planned: Callable[[str], dict[str, Any]],
) -> None:
    told = {
        (run["variant"], run["hidden"], run["params"]) for run in planned("bbpe_stress")["runs"]
    }
    assert told == {("swiglu", 768, 7_127_552), ("triplu_learned_gain", 576, 7_127_560)}
    assert {run.config.num_steps for run in plan("bbpe_stress").runs} == {10_478}


def test_subword_scan_has_the_papers_columns() -> None:
    counts = axes_of("bbpe_lr_scan", "variant", "learning_rate")
    assert {variant for variant, _ in counts} == {
        "swiglu", "triplu_learned_gain", "triplu", "normed_triplu"
    }  # fmt: skip
    assert {rate for _, rate in counts} == {1e-5, 3e-5, 1e-4, 3e-4, 1e-3}
    assert (len(counts), set(counts.values())) == (20, {3})


@pytest.mark.parametrize(
    "name", [name for name in FILE if name.endswith("_small") and name != "polyglu_small"]
)
def test_a_small_sibling_differs_in_size_alone(name: str) -> None:
    sizes = {
        "train_budget_bytes", "num_steps", "eval_interval", "learning_rate", "seed", "hidden",
        "adamw_learning_rate", "d_model", "num_layers", "num_heads", "context_length", "corpus",
        "batch_size", "tokenizer", "train_bytes", "validation_bytes", "train_file",
        "validation_file", "precision",
    }  # fmt: skip
    small, full = (
        {json.dumps(run.config.model_dump(exclude=sizes)) for run in plan(of).runs}
        for of in (name, name.removesuffix("_small"))
    )
    assert small == full


def test_the_untied_form_is_tried_at_its_sources_size_and_matched() -> None:
    told = {
        (run.config.ffn.label, run.config.hidden, run.config.ffn.num_params(768, run.config.hidden))
        for run in plan("untied_relu2").runs
    }
    assert told == {
        ("squared_relu", 3072, 4_718_592),
        ("untied_squared_relu", 3072, 7_077_888),
        ("untied_squared_relu similarity=0.999", 3072, 7_077_888),
        ("untied_squared_relu", 2048, 4_718_592),
    }


def test_quickstart_is_small_and_needs_no_download() -> None:
    runs = plan("quickstart").runs
    assert {run.config.corpus for run in runs} == {"tinystories_lite"}
    assert sum(run.tokens for run in runs) < 12e6
    source = runs[0].config.corpus_source
    assert load_corpus(CorpusSource(*source)).vocab_size == runs[0].corpus.vocab_size
