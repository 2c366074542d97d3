"""Every way we could think of to ask for the wrong thing: exit code 2 and one clear line."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cohorts import TINY
from spacefiles import write

from triplu_ray import cli
from triplu_ray.store import Store

NOTES = ("corpus ", "note: ")
PREFIX = "triplu-ray: error: "

Mistake = Callable[..., str]


@pytest.fixture
def mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Mistake:
    """Run `triplu-ray ...` in an empty folder, where it must fail; the line it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("TRIPLU_RAY_STORE", "TRIPLU_RAY_DATA"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: str) -> str:
        assert cli.main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        *notes, line = err.removesuffix("\n").split("\n")
        assert all(note.startswith(NOTES) for note in notes)
        assert line.startswith(PREFIX)
        assert "Traceback" not in err
        return line.removeprefix(PREFIX)

    return run


# Changes of a sound file, and what must follow its name; see the comment in the file.
LINES = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8").splitlines()
CHANGES = [
    (change, expected.strip())
    for change, expected in itertools.pairwise(LINES)
    if expected.startswith("    ")
]


SHARDS = [
    ("magic.bin", [1, 1, 3], [1, 2, 3]),
    ("version.bin", [20240520, 2, 3], [1, 2, 3]),
    ("truncated.bin", [20240520, 1, 3], [1, 2]),
    ("beyond.bin", [20240520, 1, 3], [1, 2, 50_257]),
]


def changed(change: str) -> dict[str, Any]:
    content = TINY | yaml.safe_load(f"{{{change}}}")
    if axes := content.pop("axes", None):
        content["grid"] = TINY["grid"] | axes
    return {key: value for key, value in content.items() if value != "(gone)"}


@pytest.mark.parametrize(("change", "expected"), CHANGES, ids=[change for change, _ in CHANGES])
def test_a_change_that_is_a_mistake(
    change: str, expected: str, mistake: Mistake, tmp_path: Path
) -> None:
    write(tmp_path / "short.txt", b"abc\n")
    write(tmp_path / "empty.txt", b"")
    write(tmp_path / "latin1.txt", b"caf\xe9\n")
    for name, header, tokens in SHARDS:
        content = np.array(header, "<i4").tobytes().ljust(1024, b"\0")
        write(tmp_path / name, content + np.array(tokens, "<u2").tobytes())
    write(tmp_path / "space.yaml", changed(change))
    line = mistake("plan", "space.yaml")
    assert line.startswith(f"space.yaml: {expected}")
    assert len(line) < 1_500
    assert mistake("sweep", "space.yaml") == line


def test_without_a_change_there_is_no_mistake(tmp_path: Path) -> None:
    write(tmp_path / "space.yaml", changed(""))
    assert cli.main(["plan", str(tmp_path / "space.yaml"), "--store", str(tmp_path)]) == 0


LAUGHS = "".join(f"  - &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 30))
COMBINATIONS = ", ".join(
    f"{key}: {list(range(1, 102))}" for key in ("seed", "num_layers", "batch_size")
)

# Whole files, and how the line begins.
TEXTS: dict[str, tuple[str, str]] = {
    # Not a space
    "nothing": ("", ": expected a mapping of keys to values, got None"),
    "a list": ("- name: x", ": expected a mapping of keys to values, got [{'name': 'x'}]"),
    "prose": ("Dear reader", ": expected a mapping of keys to values, got 'Dear reader'"),
    # Not YAML
    "no end": ("name: x\ngrid: {seed: [1", ", line 2: not YAML: expected ',' or ']'"),
    "tabs": ("name: x\n\tseed: 1", ", line 2: not YAML: "),
    "two documents": ("name: x\n---\nname: y", ", line 2: not YAML: but found another document"),
    "unknown alias": ("name: *x", ", line 1: not YAML: found undefined alias 'x'"),
    "an object": (
        "name: !!python/object/apply:os.system [true]",
        ", line 1: not YAML: could not determine a constructor for the tag",
    ),
    "a key twice": (
        "name: x\ngrid:\n  seed: [1]\n  seed: [2]\n",
        ", line 3: not YAML: the key 'seed' appears twice",
    ),
    "a list as a key": ("? [1]\n: 2", ", line 1: not YAML: found unhashable key"),
    "empty number": ("{name: x, seed: !!int ''}", ": not YAML: IndexError: "),
    "wrong boolean": ("{name: x, seed: !!bool maybe}", ": not YAML: KeyError: 'maybe'"),
    "13th month": ("seed: 2020-13-01", ": not YAML: ValueError: month must be in 1..12"),
    "deep nest": ("[" * 2000, ": not YAML: RecursionError: "),
    "control character": ("name: \x07", ": not YAML: unacceptable character #x0007"),
    # Numbers
    "huge": ("name: x\nseed: 99999999999999999999", ", line 2: not YAML: an integer of more than"),
    "huge in hex": ("seed: 0x" + "f" * 10**6, ", line 1: not YAML: an integer of more than 64"),
    "huge in digits": ("seed: " + "9" * 5000, ": not YAML: ValueError: Exceeds the limit"),
    "overflow": (
        "{name: x, weight_decay: 1e999}",
        ": weight_decay: expected a finite number, got inf",
    ),
    "NaN": ("{name: x, beta1: .nan}", ": beta1: expected "),
    "infinity": (
        "{name: x, gradient_clip: .inf}",
        ": gradient_clip: expected a finite number, got inf",
    ),
    "NaN of a variant": (
        "{name: x, variant: triplu, hidden: 4, gain: .nan}",
        ": triplu: gain: expected ",
    ),
    "a date": ("{name: x, seed: 2020-01-01}", ": seed: expected a valid integer, got datetime"),
    # Keys
    "a number": ("{name: x, 3: 4}", ": 3: unknown key; known: adamw_learning_rate, base, "),
    "a boolean": ("{name: x, on: 4}", ": True: unknown key; known: adamw_learning_rate, base, "),
    "null": ("{name: x, ~: 4}", ": None: unknown key; known: adamw_learning_rate, base, "),
    "two lines": (
        '{name: x, "a\\nb": 4}',
        ": a b: unknown key; known: adamw_learning_rate, base, ",
    ),
    "an axis that is a number": ("{name: x, grid: {1: [2]}}", ": grid.1: unknown key; known: "),
    "in a condition": (
        "{name: x, grid: {seed: {values: [1], when: {2: 3}}}}",
        ": grid.seed.when.2: unknown key; known: ",
    ),
    "of the baseline": ("{name: x, baseline: {1: 2}}", ": baseline."),
    # Too much
    "a long text": (f"seed: {'x' * 10**5}\nname: x", ": seed: expected a valid integer, got 'xxxx"),
    "in itself": ("{name: x, seed: &a [*a]}", ": seed: expected a valid integer, got [[[[...]]]]"),
    "a file in itself": ("&a {name: x, grid: *a}", ": grid.name: unknown key; "),
    "a billion laughs": (
        f"name: x\nseed:\n  - &a0 [x, x]\n{LAUGHS}",
        ": seed: expected a valid integer, got [['x', 'x'], [['x', 'x'], ",
    ),
    "too many runs": (
        f"{{name: x, variant: gelu, hidden: 4, grid: {{{COMBINATIONS}}}}}",
        ": grid: expected at most 1,000,000 combinations, got 1,030,301",
    ),
    "value and axis": (
        "{name: x, seed: 1, grid: {seed: [1]}}",
        ": seed: expected a value or an axis of grid, got both",
    ),
    # Bases
    "no file": ("base: no.yaml", ": base: no.yaml: cannot be read: No such file or directory"),
    "a folder": ("base: .", ": base: .: cannot be read: Is a directory"),
    "no name": ('base: "a\\0b"', ": base: a\0b: cannot be read: embedded null byte"),
    "null base": ("base:", ": base: expected the path of a space file, got None"),
    "two": ("base: [a, b]", ": base: expected the path of a space file, got ['a', 'b']"),
    "itself": ("base: space.yaml", ": base: space.yaml: expected another file, this one inherits"),
    "a circle": ("base: circle.yaml", ": base: circle.yaml: base: space.yaml: expected another"),
    "a mistake": (
        "base: wrong.yaml",
        ": base: wrong.yaml: sead: unknown key; did you mean 'seed'?",
    ),
    "no YAML": ("base: broken.yaml", ": base: broken.yaml, line 1: not YAML: "),
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.values(), ids=TEXTS)
def test_a_text_that_is_a_mistake(
    text: str, expected: str, mistake: Mistake, tmp_path: Path
) -> None:
    write(tmp_path / "circle.yaml", "base: space.yaml")
    write(tmp_path / "wrong.yaml", "sead: 1")
    write(tmp_path / "broken.yaml", "{")
    write(tmp_path / "space.yaml", text)
    line = mistake("plan", "space.yaml")
    assert line.startswith(f"space.yaml{expected}")
    assert len(line) < 1_500


# Overrides, and how the line begins: with the override, or with the file and all overrides.
OVERRIDES = {
    "seed": "override 'seed': expected key=value",
    "=3": "override '=3': expected key=value",
    "sead=3": "override 'sead=3': sead: unknown key; did you mean 'seed'?",
    "grid={seed: [1]}": "override 'grid={seed: [1]}': grid: unknown key; ",
    "base=x.yaml": "override 'base=x.yaml': base: unknown key; ",
    "resources.x.y=1": "space.yaml resources.x.y=1: resources.x.y: unknown key; known: cpu, gpu",
    "header.name=x": "override 'header.name=x': header.name: unknown key; ",
    "seed=[1": "override 'seed=[1', line 1: not YAML: expected ',' or ']'",
    "seed=!!int ''": "override \"seed=!!int ''\": not YAML: IndexError: ",
    "num_steps=": ": num_steps: expected a valid integer, got None",
    "num_steps=x": ": num_steps: expected a valid integer, got 'x'",
    "learning_rate=-1": ": learning_rate: expected greater than 0, got -1",
    "seed=[]": ": grid.seed: expected a list of at least one value, got []",
    "seed=[1,1]": ": grid.seed: expected distinct values, 1 appears twice",
    "variant=[glu]": ": grid.variant: unknown variant 'glu'; did you mean 'gelu'?",
    "degree=1": ": degree: triplu means 3, got 1; write variant: product",
    "name=a/b": ": name: expected letters, digits, '.', '_' and '-', got 'a/b'",
    "cohort=0": ": cohort: expected a number of runs of at least 1, or auto, got 0",
    "resources.cpu=0": ": resources.cpu: expected greater than 0, got 0",
    "resources.ram=1": ": resources.ram: unknown key; known: cpu, gpu",
    "baseline.x=1": ": baseline.x: unknown key; ",
    "baseline.hidden=0": ": baseline: hidden: expected a width of at least 1, or match, got 0",
    "baseline=null": ": hidden: match needs a baseline with variant and hidden",
    "num_heads=5": ": d_model: expected a multiple of num_heads (5), got 16",
    "vocab_size=79": ": vocab_size: expected a corpus of 79 entries, got ",
    "context_length=5000": ": context_length: expected fewer than the ",
    "train_file=x": ": train_file: expected corpus: text or gpt2_shards beside it, got tiny",
}


@pytest.mark.parametrize(("text", "expected"), OVERRIDES.items(), ids=OVERRIDES)
def test_an_override_that_is_a_mistake(
    text: str, expected: str, mistake: Mistake, tmp_path: Path
) -> None:
    write(tmp_path / "space.yaml", TINY)
    begin = f"space.yaml {text}" if expected.startswith(": ") else ""
    assert mistake("plan", "space.yaml", text).startswith(begin + expected)


def test_an_override_of_two_lines_is_told_in_one(mistake: Mistake, tmp_path: Path) -> None:
    write(tmp_path / "space.yaml", TINY)
    line = mistake("plan", "space.yaml", "seed=[1\n,-1]")
    expected = "grid.seed: expected greater than or equal to 0, got -1"
    assert line == f"space.yaml seed=[1 ,-1]: {expected}"


def test_the_first_of_several_overrides_with_a_mistake_is_named(
    mistake: Mistake, tmp_path: Path
) -> None:
    write(tmp_path / "space.yaml", TINY)
    line = mistake("plan", "space.yaml", "seed=1", "sead=1", "x")
    assert line == "override 'sead=1': sead: unknown key; did you mean 'seed'?"


# What lies around the file


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing.yaml", "missing.yaml: cannot be read: No such file or directory"),
        ("folder", "folder: cannot be read: Is a directory"),
        ("space.yaml/x", "space.yaml/x: cannot be read: Not a directory"),
        ("utf16.yaml", "utf16.yaml: not YAML: not UTF-8 text"),
        ("x" * 300, "x" * 300 + ": cannot be read: File name too long"),
        ("a\0b", "a\0b: cannot be read: embedded null byte"),
    ],
)
def test_a_path_with_a_mistake(path: str, expected: str, mistake: Mistake, tmp_path: Path) -> None:
    write(tmp_path / "space.yaml", TINY)
    write(tmp_path / "utf16.yaml", yaml.safe_dump(TINY).encode("utf-16"))
    (tmp_path / "folder").mkdir()
    assert mistake("plan", path) == expected


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ("space.yaml", "store 'space.yaml': expected a folder, found a file"),
        ("ftp://host/x", "store 'ftp://host/x': expected a folder or a URI: "),
        ("s3://", "store 's3://': expected a folder or a URI: it names no bucket"),
    ],
)
def test_a_store_with_a_mistake(
    store: str, expected: str, mistake: Mistake, tmp_path: Path
) -> None:
    write(tmp_path / "space.yaml", TINY)
    assert mistake("plan", "space.yaml", "--store", store).startswith(expected)
    assert mistake("report", "--store", store).startswith(expected)


def test_a_store_of_broken_files(mistake: Mistake, tmp_path: Path) -> None:
    write(tmp_path / "space.yaml", TINY)
    (tmp_path / "results" / "runs").mkdir(parents=True)
    write(tmp_path / "results" / "runs" / "x.parquet", b"not Parquet")
    line = mistake("plan", "space.yaml")
    assert line.startswith(f"store '{Store('results').location}': cannot read runs: ")
    assert "x.parquet" in line


def test_shards_that_are_not_there(mistake: Mistake, tmp_path: Path) -> None:
    """A plan can do without them, a sweep cannot."""
    shards = {"tokenizer": "gpt2", "train_file": "train_*.bin", "validation_file": "val.bin"}
    write(tmp_path / "space.yaml", {**TINY, "corpus": "gpt2_shards", **shards})
    line = "space.yaml: train_file train_*.bin: expected at least one shard, found none"
    assert mistake("sweep", "space.yaml") == line


def test_data_that_is_not_there(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "space.yaml", {**TINY, "corpus": "tinystories"})
    (tmp_path / "empty").mkdir()
    for location, expected in (
        ("nowhere", "expected a folder with the texts of tinystories: tinystories*train*.txt and "),
        ("empty", "expected a file tinystories*train*.txt, found none"),
    ):
        monkeypatch.setenv("TRIPLU_RAY_DATA", location)
        line = mistake("plan", "space.yaml")
        assert line.startswith(f"space.yaml: TRIPLU_RAY_DATA={location}: {expected}")


def test_a_hub_that_cannot_be_reached(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*_: Any) -> bytes:
        raise ConnectionError("no route to host")

    monkeypatch.setattr("triplu_ray.corpus.hub.read_lines", fetch)
    write(tmp_path / "space.yaml", {**TINY, "corpus": "tinystories"})
    assert mistake("plan", "space.yaml").startswith(
        "space.yaml: corpus tinystories: cannot fetch hf://datasets/roneneldan/TinyStories/"
        "TinyStories-train.txt (ConnectionError: no route to host); set TRIPLU_RAY_DATA to a folder"
    )
