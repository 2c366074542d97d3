"""The corpus tinystories: from a folder, or from a hub that is never asked here."""

from pathlib import Path
from typing import Any

import pytest
from texts import source_of

from triplu_ray.corpus import CorpusSource, find_texts, is_at_hand, load_corpus
from triplu_ray.corpus import hub as hub_module
from triplu_ray.corpus.hub import read_lines
from triplu_ray.errors import UserError


@pytest.fixture(autouse=True)
def _no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the hub nor the user's own texts and cache are touched."""

    def fetch(*_: Any) -> bytes:
        raise AssertionError("a test asked for the network")

    monkeypatch.setattr(hub_module, "read_lines", fetch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRIPLU_RAY_DATA", raising=False)


# From a folder


def test_a_folder_takes_the_place_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "TinyStories-train.txt").write_text("one\ntwo\n")
    (tmp_path / "TinyStories-valid.txt").write_text("two\none\n")
    monkeypatch.setenv("TRIPLU_RAY_DATA", str(tmp_path))
    corpus = load_corpus(CorpusSource("tinystories", 8, 5))
    assert (corpus.decode(corpus.train), corpus.decode(corpus.validation)) == (
        "one\ntwo\n",
        "two\n",
    )
    source = source_of(tmp_path, "one\ntwo\n", "two\n")
    assert corpus.sha256 == load_corpus(source).sha256
    assert is_at_hand(CorpusSource("tinystories", 8, 5))


def test_of_several_files_the_shortest_name_is_taken(tmp_path: Path) -> None:
    for name in (
        "TinyStoriesV2-GPT4-train.txt",
        "tinystories_train_1m.txt",
        "tinystories_train_lower_4m.txt",
        "TINYSTORIES_VALID.TXT",
        "tinystories_valid_200k.txt",
        "tinystories_train.parquet",
        "notes_on_tinystories_train.txt",
    ):
        (tmp_path / name).touch()
    found = {split: file.name for split, file in find_texts("tinystories", tmp_path).items()}
    assert found == {"train": "tinystories_train_1m.txt", "validation": "TINYSTORIES_VALID.TXT"}


@pytest.mark.parametrize("word", ["train", "valid"])
def test_a_folder_without_a_text_is_a_mistake(tmp_path: Path, word: str) -> None:
    other = {"train": "valid", "valid": "train"}[word]
    (tmp_path / f"TinyStories-{other}.txt").touch()
    with pytest.raises(
        UserError, match=rf"TRIPLU_RAY_DATA={tmp_path}: expected a file tinystories\*{word}\*\.txt"
    ):
        find_texts("tinystories", tmp_path)
    with pytest.raises(UserError, match="expected a folder with the texts of tinystories"):
        find_texts("tinystories", tmp_path / f"TinyStories-{other}.txt")


LINES = b"one\ntwo\nthree\nfour\nfive\n"


@pytest.mark.parametrize(
    ("validation_bytes", "heldout_bytes", "validation", "heldout"),
    [
        (8, 16, "one\ntwo\n", "four\nfive\n"),  # `three` begins at the boundary
        (7, 17, "one\n", "three\nfour\nfive\n"),  # the boundary is the newline of `two`
        (9, 14, "one\ntwo\n", "four\n"),
        (4, 9, "one\n", None),
    ],
)
def test_the_held_out_text_follows_the_validation_text(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    validation_bytes: int,
    heldout_bytes: int,
    validation: str,
    heldout: str | None,
) -> None:
    (tmp_path / "TinyStories-train.txt").write_bytes(LINES)
    (tmp_path / "TinyStories-valid.txt").write_bytes(LINES)
    monkeypatch.setenv("TRIPLU_RAY_DATA", str(tmp_path))
    source = CorpusSource("tinystories", None, validation_bytes, heldout_bytes=heldout_bytes)
    if heldout is None:
        with pytest.raises(
            UserError, match=r"heldout_bytes: expected at least one line of .*valid"
        ):
            load_corpus(source)
        return
    corpus = load_corpus(source)
    assert corpus.heldout is not None
    assert corpus.decode(corpus.validation) == validation
    assert corpus.decode(corpus.heldout) == heldout
    with pytest.raises(UserError) as caught:
        load_corpus(source._replace(heldout_bytes=25 - validation_bytes))
    assert str(caught.value) == (
        f"heldout_bytes: expected at most the {24 - validation_bytes} of "
        f"{tmp_path}/TinyStories-valid.txt after validation_bytes, got {25 - validation_bytes}"
    )


# From the hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """A hub with two short texts; what was asked of it."""
    asked: list[tuple[str, int | None]] = []

    def fetch(address: str, num_bytes: int | None) -> bytes:
        asked.append((address, num_bytes))
        return (b"story one\n" if "train" in address else b"one\n")[:num_bytes]

    monkeypatch.setattr(hub_module, "read_lines", fetch)
    return asked


def test_only_the_prefix_is_fetched_and_only_once(
    hub: list[tuple[str, int | None]], tmp_path: Path
) -> None:
    source = CorpusSource("tinystories", 10, None)
    assert not is_at_hand(source)
    corpus = load_corpus(source)
    folder = "hf://datasets/roneneldan/TinyStories"
    assert hub == [
        (f"{folder}/TinyStories-train.txt", 10),
        (f"{folder}/TinyStories-valid.txt", None),
    ]
    assert corpus.decode(corpus.train) == "story one\n"
    assert corpus.description.startswith("roneneldan/TinyStories: 10 and 4 characters")
    assert sorted(file.name for file in (tmp_path / "cache" / "triplu_ray").iterdir()) == [
        "tinystories-train-10.txt",
        "tinystories-validation-all.txt",
    ]
    assert is_at_hand(source)
    assert load_corpus(source).sha256 == corpus.sha256
    assert len(hub) == 2
    assert not is_at_hand(source._replace(train_bytes=9))


def test_the_held_out_text_is_fetched_with_the_validation_text(
    hub: list[tuple[str, int | None]],
) -> None:
    source = CorpusSource("tinystories", 10, 2, heldout_bytes=2)
    assert not is_at_hand(source)
    with pytest.raises(UserError, match="validation_bytes: expected at least one line"):
        load_corpus(source)
    assert [size for _, size in hub] == [10, 4]
    assert is_at_hand(source)
    assert not is_at_hand(source._replace(heldout_bytes=1))


def test_a_text_shorter_than_asked_is_a_mistake(hub: list[tuple[str, int | None]]) -> None:
    with pytest.raises(
        UserError, match=r"train_bytes: expected at most the 10 of TinyStories-train\.txt, got 11"
    ):
        load_corpus(CorpusSource("tinystories", 11, None))
    assert len(hub) == 2


def test_a_hub_out_of_reach_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fetch(*_: Any) -> bytes:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(hub_module, "read_lines", fetch)
    with pytest.raises(UserError) as caught:
        load_corpus(CorpusSource("tinystories", 10, 10))
    assert str(caught.value) == (
        "corpus tinystories: cannot fetch hf://datasets/roneneldan/TinyStories/"
        "TinyStories-train.txt (ConnectionError: no route to host); set TRIPLU_RAY_DATA to a "
        "folder that holds its texts"
    )
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("hub")
def test_a_cache_that_cannot_be_written_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"file/triplu_ray/.*: cannot be written: "):
        load_corpus(CorpusSource("tinystories", 10, None))


@pytest.mark.usefixtures("hub")
def test_the_cache_lies_in_the_home_folder_without_xdg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    load_corpus(CorpusSource("tinystories", 10, None))
    assert (tmp_path / ".cache" / "triplu_ray" / "tinystories-train-10.txt").exists()


CONTENT = "aé\n\n\u2028b\x0bc\x85d\n\U0001f600 e\nlast".encode()


@pytest.mark.parametrize("num_bytes", [None, 1, 2, 4, 5, 12, len(CONTENT), len(CONTENT) + 1])
def test_datasets_streams_the_bytes_of_a_file(tmp_path: Path, num_bytes: int | None) -> None:
    (tmp_path / "file.txt").write_bytes(CONTENT)
    assert read_lines(str(tmp_path / "file.txt"), num_bytes) == CONTENT[:num_bytes]


def test_datasets_tells_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_lines(str(tmp_path / "missing.txt"), None)
