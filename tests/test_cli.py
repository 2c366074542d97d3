import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cohorts import TINY, corpus, plan, write_space
from commands import Command
from fabricate import stored_run

import triplu_ray
from triplu_ray import cli, commands
from triplu_ray.config import VARIANTS, is_complete
from triplu_ray.corpus import CorpusSource, load_corpus
from triplu_ray.store import Store


@pytest.fixture
def space(tmp_path: Path) -> Path:
    return write_space(tmp_path)


def store_first_run(folder: Path, location: str, **row: Any) -> str:
    """Store the first run of the tiny space and return its id."""
    first = plan(folder).runs[0]
    store = Store(location)
    store.write_run(stored_run(first.row(), 2.0, **row), [])
    return first.run_id


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_lists_may_stand_behind_options(
    command: Command, space: Path, tmp_path: Path, behind: int
) -> None:
    overrides = ["seed=[1,2,3]", "num_steps=10"]
    words = [*overrides[behind:], "--store", tmp_path / "store", "--json", *overrides[:behind]]
    code, out, _ = command("plan", space, *words)
    assert code == 0
    content = json.loads(out)
    assert (len(content["runs"]), content["tokens"]) == (6, 6 * 10 * 4 * 16)


def test_spaces_may_stand_behind_options(command: Command, tmp_path: Path) -> None:
    code, _, err = command("report", "--store", tmp_path, "no_such_space")
    assert (code, "no space 'no_such_space'" in err) == (2, True)


@pytest.mark.parametrize("words", [["plan", "a.yaml", "--not-an-option"], ["variants", "x"]])
def test_what_nothing_takes_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert f"unrecognized arguments: {words[-1]}\n" in capsys.readouterr().err


def test_plan_prints_one_object(command: Command, space: Path, tmp_path: Path) -> None:
    code, out, err = command("plan", space, "--json")
    assert code == 0
    assert err.splitlines() == [f"corpus {corpus().description}"]
    content = json.loads(out)
    assert {key: content[key] for key in ("space", "baseline", "targets", "done", "missing")} == {
        "space": "tiny",
        "baseline": "swiglu",
        "targets": [3.0],
        "done": 0,
        "missing": 4,
    }
    assert [run["run_id"] for run in content["runs"]] == [r.run_id for r in plan(tmp_path).runs]
    for run in content["runs"]:
        assert run.keys() >= {
            "run_id",
            "variant",
            "seed",
            "hidden",
            "params",
            "ffn_flops_per_token",
        }
    in_cohorts = [run_id for cohort in content["cohorts"] for run_id in cohort["run_ids"]]
    assert sorted(in_cohorts) == sorted(run["run_id"] for run in content["runs"])
    assert content["tokens"] == 4 * 20 * 4 * 16
    assert content["estimate_from"] == "an assumed rate"


def test_plan_prints_the_axes(command: Command, space: Path) -> None:
    _, out, _ = command("plan", space, "weight_decay=[0, 0.1]", "num_layers=2", "--json")
    runs = json.loads(out)["runs"]
    assert {(run["seed"], run["weight_decay"], run["num_layers"]) for run in runs} == {
        (seed, decay, 2) for seed in (1, 2) for decay in (0.0, 0.1)
    }


def test_plan_shows_a_table(command: Command, space: Path) -> None:
    code, out, _ = command("plan", space, "learning_rate=[1e-3, 3e-3]")
    assert code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    swiglu, triplu = (
        [row for row in rows if row and row[0] == variant] for variant in ("swiglu", "triplu")
    )
    # per layer: SwiGLU 3 x 16 x 12 = 576 parameters, TriPLU 4 x 16 x 9 = 576
    assert [row[:5] for row in swiglu] == [
        ["swiglu", "12", "0.001", "2", "0"],
        ["swiglu", "12", "0.003", "2", "0"],
    ]
    assert [row[1] for row in triplu] == ["9", "9"]
    assert {row[6] for row in [*swiglu, *triplu]} == {"+0.00%"}
    assert {row[7] for row in [*swiglu, *triplu]} == {"1,152"}
    assert "8 runs, 0 done, 8 missing in 8 cohorts; 10,240 token positions to train" in out


def test_a_mismatch_to_the_baseline_is_shown(command: Command, space: Path) -> None:
    _, out, _ = command("plan", space, "hidden=12")
    # 4 x 16 x 12 - 3 x 16 x 12 = 192 parameters more of some thousand
    (triplu,) = [line.split("│") for line in out.splitlines() if "triplu" in line]
    (swiglu,) = [line.split("│") for line in out.splitlines() if "swiglu" in line]
    more, base = (int(row[5].replace(",", "")) for row in (triplu, swiglu))
    assert more - base == 192
    assert triplu[6].strip() == f"{192 / base:+.2%}"


def test_a_baseline_without_an_axis_is_compared_with(command: Command, space: Path) -> None:
    _, out, _ = command("plan", space, "gain=[1, 5]")
    mismatches = [line.split("│")[7].strip() for line in out.splitlines() if "triplu" in line]
    assert mismatches == ["+0.00%", "+0.00%"]


def test_plan_tells_done_from_missing(command: Command, space: Path, tmp_path: Path) -> None:
    done = store_first_run(tmp_path, "results", tokens_per_second=1000.0)
    _, out, _ = command("plan", space, "--json")
    content = json.loads(out)
    assert (content["done"], content["missing"]) == (1, 3)
    assert [run["run_id"] for run in content["runs"] if run["done"]] == [done]
    assert done not in {run_id for cohort in content["cohorts"] for run_id in cohort["run_ids"]}
    # All runs cost the same: three of them at the rate of the one that is stored.
    assert content["estimate_from"] == "finished runs"
    seconds = 3 * 20 * 4 * 16 / 1000
    assert content["estimated_seconds"] * content["workers"] == pytest.approx(seconds, rel=0.01)
    _, out, _ = command("plan", space)
    assert "4 runs, 1 done, 3 missing in 3 cohorts" in out
    assert "(from finished runs)" in out


def test_a_run_without_a_rate_does_not_spoil_the_estimate(
    command: Command, space: Path, tmp_path: Path
) -> None:
    store_first_run(tmp_path, "results", tokens_per_second=float("nan"))
    _, out, _ = command("plan", space, "--json")
    assert json.loads(out)["estimate_from"] == "an assumed rate"


def test_the_store_is_a_flag_then_the_environment_then_results(
    command: Command, space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done(*arguments: str) -> int:
        content = json.loads(command("plan", space, "--json", *arguments)[1])
        return int(content["done"])

    store_first_run(tmp_path, "elsewhere")
    assert done() == 0
    assert done("--store", "elsewhere") == 1
    assert done("--store", (tmp_path / "elsewhere").as_uri()) == 1
    monkeypatch.setenv("TRIPLU_RAY_STORE", "elsewhere")
    assert done() == 1
    assert done("--store", "results") == 0
    monkeypatch.setenv("TRIPLU_RAY_STORE", "")
    assert done() == 0


def test_a_corpus_that_is_not_there_is_not_fetched_for_a_plan(
    command: Command, space: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, err = command("plan", space, "corpus=tinystories", "vocab_size=79", "--json")
    assert code == 0
    assert err == "note: the corpus tinystories is not here yet: run ids are drafts\n"
    assert all(run["run_id"].startswith("draft-") for run in json.loads(out)["runs"])


@pytest.mark.parametrize(
    ("overrides", "vocab_size"),
    [
        (["corpus=tinystories", "tokenizer=bbpe"], 512),
        (["corpus=wikitext2", "tokenizer=bbpe", "tokenizer_vocab_size=1024"], 1024),
        (["corpus=gpt2_shards", "tokenizer=gpt2", "train_file=a_*.bin"], 50_257),
    ],
)
def test_a_plan_of_subwords_needs_no_corpus(
    command: Command,
    space: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    overrides: list[str],
    vocab_size: int,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, err = command("plan", space, *overrides, "--json")
    assert code == 0
    name = overrides[0].removeprefix("corpus=")
    assert err == f"note: the corpus {name} is not here yet: run ids are drafts\n"
    runs = json.loads(out)["runs"]
    assert all(run["run_id"].startswith("draft-") for run in runs)
    # An entry takes a row of the embedding and a column of the head.
    of_chars = {run.params - 2 * corpus().vocab_size * 16 for run in plan(tmp_path).runs}
    assert {run["params"] - 2 * vocab_size * 16 for run in runs} == of_chars
    code, _, err = command("plan", space, *overrides, "vocab_size=79")
    assert code == 2
    assert f"vocab_size: expected a corpus of 79 entries, got {vocab_size} from tokenizer " in err


def budget_space(folder: Path, **changes: Any) -> Path:
    """The tiny space with byte pairs and a budget in place of steps."""
    space = write_space(folder, tokenizer="bbpe", train_budget_bytes=10_000, **changes)
    content = {k: v for k, v in yaml.safe_load(space.read_text()).items() if k != "num_steps"}
    space.write_text(yaml.safe_dump(content))
    return space


def test_a_budget_is_drafted_with_an_assumed_size_of_tokens(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _, out, _ = command("plan", budget_space(tmp_path, corpus="tinystories"), "--json")
    steps = int(10_000 / 2.33 / (4 * 16))
    assert {run["config"]["num_steps"] for run in json.loads(out)["runs"]} == {steps}


def test_a_budget_is_planned_with_the_corpus_that_is_here(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = CorpusSource("tinystories_lite", 20_000, 5_000, tokenizer="bbpe")
    pairs = load_corpus(source)
    steps = 10_000 * len(pairs.train) // pairs.train_bytes // (4 * 16)
    _, out, err = command("plan", budget_space(tmp_path), "--json")
    assert err == f"corpus {pairs.description}\n"
    assert {run["config"]["num_steps"] for run in json.loads(out)["runs"]} == {steps}


def test_variants_lists_every_one_at_a_matched_width(command: Command) -> None:
    code, out, err = command("variants", "--json")
    assert (code, err) == (0, "")
    rows = {(row["variant"], row["d_model"]): row for row in json.loads(out)["variants"]}
    assert rows.keys() == {(v, d) for v in VARIANTS if is_complete(v) for d in (96, 256)}
    assert set(VARIANTS) - {v for v, _ in rows} == {"product", "product_output"}
    assert {v: rows[v, 96]["hidden"] for v in ("swiglu", "triplu", "quad_prod", "double_prod")} == {
        "swiglu": 322,
        "triplu": 242,
        "quad_prod": 193,
        "double_prod": 322,
    }
    assert (rows["swiglu", 256]["hidden"], rows["triplu", 256]["hidden"]) == (768, 576)
    assert rows["triplu", 96]["flops"] == 185_856
    assert rows["triplu", 96]["params"] == 4 * 96 * 242
    assert rows["swiglu", 96]["formula"] == "SiLU(Wg x) * Wv x"


def test_variants_shows_a_table(command: Command) -> None:
    code, out, _ = command("variants", "--d-model", 12)
    assert code == 0
    assert "SiLU(Wg x) * Wv x" in out
    (swiglu,) = [line.split("│") for line in out.splitlines() if line.startswith("│ swiglu")]
    assert [cell.strip() for cell in swiglu[4:7]] == ["12", "32", "1,152"]  # 8 x 12 / 3 = 32


@pytest.mark.parametrize("width", [0, -3])
def test_a_width_is_positive(command: Command, width: int) -> None:
    code, out, err = command("variants", "--d-model", 96, width)
    assert (code, out) == (2, "")
    assert err == f"triplu-ray: error: --d-model: expected a width of at least 1, got {width}\n"


def test_version(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        command("--version")
    assert exited.value.code == 0
    assert capsys.readouterr().out == f"triplu-ray {triplu_ray.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["plan"], ["variants", "--d-model", "wide"], ["plan", "--x"]]
)
def test_a_wrong_command_line_is_a_mistake(
    command: Command, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        command(*arguments)
    assert exited.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: triplu-ray")


def test_ctrl_c_while_planning(
    command: Command, space: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "load_corpus", interrupt)
    assert command("plan", space) == (130, "", "interrupted\n")


def test_a_reader_that_goes_away_is_no_mistake(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "gone").open("w") as gone:

        class Closed(io.StringIO):
            def write(self, _: str) -> int:
                raise BrokenPipeError

            def fileno(self) -> int:
                return gone.fileno()

        monkeypatch.setattr(sys, "stdout", Closed())
        assert command("variants", "--json")[0] == 0


def test_names_are_printed_as_they_are(command: Command, tmp_path: Path) -> None:
    folder = "[red]:heart: [/x]"
    (tmp_path / folder).mkdir(parents=True)
    files = {f"{split}_file": f"{folder}/{split}" for split in ("train", "validation")}
    for file in files.values():
        (tmp_path / file).write_text("abc\n" * 100)
    sizes = {"train_bytes": None, "validation_bytes": None}
    grid = {**TINY["grid"], "train_file": [files["train_file"]]}
    space = write_space(tmp_path, corpus="text", **sizes, **files, grid=grid)
    code, out, err = command("plan", space)
    assert code == 0
    assert err.startswith("corpus [red]:heart: [/x]/train and [red]:heart: [/x]/validation: 400")
    assert out.count("│ [red]:heart: [/x]/train │") == 2
