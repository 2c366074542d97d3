"""The corpus wikitext2: from a folder, or from a hub that is never asked here."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triplu_ray.corpus import CorpusSource, find_texts, hub, is_at_hand, load_corpus
from triplu_ray.errors import UserError

SPLITS = {
    "train": " \n = Head = \n \n The first line . \n",
    "validation": " \n A line . \n",
    "test": " \n A first line . \n The h . \n",
}


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRIPLU_RAY_DATA", raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that takes the hub's place."""
    for split, text in SPLITS.items():
        name = split.replace("validation", "valid")
        (tmp_path / f"wikitext2_{name}.raw.txt").write_text(text)
    monkeypatch.setenv("TRIPLU_RAY_DATA", str(tmp_path))
    return tmp_path


def test_the_test_split_is_held_out(folder: Path) -> None:
    source = CorpusSource("wikitext2", None, None)
    assert is_at_hand(source)
    corpus = load_corpus(source)
    assert corpus.heldout is not None
    texts = [corpus.decode(tokens) for tokens in (corpus.train, corpus.validation, corpus.heldout)]
    assert texts[0] == SPLITS["train"]
    assert texts[1:] == [
        SPLITS[split].replace("A", "<UNK>") for split in ("validation", "test")
    ]  # fmt: skip
    assert corpus.description.startswith(
        f"{folder}/wikitext2_train.raw.txt, {folder}/wikitext2_valid.raw.txt and "
        f"{folder}/wikitext2_test.raw.txt: 34, 13 and 29 characters, "
    )


@pytest.mark.usefixtures("folder")
def test_all_splits_have_prefixes() -> None:
    corpus = load_corpus(CorpusSource("wikitext2", 13, 2, heldout_bytes=20))
    assert corpus.heldout is not None
    lengths = [len(tokens) for tokens in (corpus.train, corpus.validation, corpus.heldout)]
    assert lengths == [len(" \n = Head = \n"), len(" \n"), len(" \n A first line . \n")]


@pytest.mark.parametrize(
    ("split", "word"), [("train", "train"), ("validation", "valid"), ("test", "test")]
)
def test_a_folder_without_a_split_is_told_in_one_line(folder: Path, split: str, word: str) -> None:
    (folder / f"wikitext2_{word}.raw.txt").unlink()
    with pytest.raises(UserError) as caught:
        load_corpus(CorpusSource("wikitext2", None, None))
    assert str(caught.value) == (
        f"TRIPLU_RAY_DATA={folder}: expected a file *wikitext2*{word}*.txt or .raw, found none"
    ), split


def test_names_of_the_files(tmp_path: Path) -> None:
    for name in (
        "WikiText-2-raw-train.txt",
        "my_wikitext_2_validation.raw",
        "wikitext2_test.txt",
        "wikitext2_test_lower.txt",
        "wikitext-103-v2-train.txt",
        "wikitext2_train.md",
    ):
        (tmp_path / name).touch()
    found = {split: file.name for split, file in find_texts("wikitext2", tmp_path).items()}
    assert found == {
        "train": "WikiText-2-raw-train.txt",
        "validation": "my_wikitext_2_validation.raw",
        "heldout": "wikitext2_test.txt",
    }


# From the hub


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """The dataset of the hub as a folder: Parquet, a row a line, blank lines empty."""
    root = tmp_path / "wikitext"
    (root / hub.WIKITEXT2_CONFIG).mkdir(parents=True)
    files = []
    for split, text in SPLITS.items():
        rows = [line if line.strip() else "" for line in text.splitlines(keepends=True)]
        path = f"{hub.WIKITEXT2_CONFIG}/{split}-00000-of-00001.parquet"
        pq.write_table(pa.table({"text": rows}), root / path)
        files.append(f"  - split: {split}\n    path: {path}\n")
    head = f"configs:\n- config_name: {hub.WIKITEXT2_CONFIG}\n  data_files:\n"
    (root / "README.md").write_text(f"---\n{head}{''.join(files)}---\n")
    return str(root)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("num_bytes", [None, 1, 2, 13, 99])
def test_datasets_streams_what_the_official_file_holds(
    dataset: str, split: str, num_bytes: int | None
) -> None:
    assert hub.read_wikitext(dataset, split, num_bytes) == SPLITS[split].encode()[:num_bytes]


def test_only_what_is_asked_for_is_fetched_and_only_once(
    dataset: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def fetch(address: str, split: str, num_bytes: int | None) -> bytes:
        asked.append((address, split, num_bytes))
        return read(dataset, split, num_bytes)

    read = hub.read_wikitext
    monkeypatch.setattr(hub, "read_wikitext", fetch)
    source = CorpusSource("wikitext2", 34, 13, heldout_bytes=20)
    assert not is_at_hand(source)
    corpus = load_corpus(source)
    address = "Salesforce/wikitext"
    assert asked == [(address, "train", 34), (address, "validation", 13), (address, "test", 20)]
    assert corpus.description.startswith("Salesforce/wikitext wikitext-2-raw-v1: 34, 13 and 19 ")
    assert is_at_hand(source)
    assert load_corpus(source).sha256 == corpus.sha256
    assert len(asked) == 3
    assert (tmp_path / "cache/triplu_ray/wikitext2-heldout-20.txt").exists()


def test_a_hub_out_of_reach_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: Any) -> bytes:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(hub, "read_wikitext", fetch)
    with pytest.raises(UserError) as caught:
        load_corpus(CorpusSource("wikitext2", None, None))
    assert str(caught.value) == (
        "corpus wikitext2: cannot fetch Salesforce/wikitext wikitext-2-raw-v1 train "
        "(ConnectionError: no route to host); set TRIPLU_RAY_DATA to a folder that holds its texts"
    )
