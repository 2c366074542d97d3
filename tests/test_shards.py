"""Texts that come as GPT-2 tokens, in files that the tests make."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from triplu_ray.corpus import CorpusSource, is_at_hand, load_corpus
from triplu_ray.errors import UserError


def shard(
    path: Path, tokens: list[int], *, magic: int = 20240520, version: int = 1, cut: int = 0
) -> str:
    """A shard whose last bytes may be cut off."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    content = header.tobytes() + np.array(tokens, "<u2").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content[: len(content) - cut])
    return str(path)


def source_of(
    train: str, validation: str, train_bytes: int | None = None, validation_bytes: int | None = None
) -> CorpusSource:
    return CorpusSource(
        "gpt2_shards", train_bytes, validation_bytes, train, validation, tokenizer="gpt2"
    )


@pytest.fixture
def source(tmp_path: Path) -> CorpusSource:
    """Three shards to train on, one to validate with."""
    for number, tokens in ((2, [7, 8]), (1, [50_256, 1, 2]), (3, [9])):
        shard(tmp_path / f"train_{number:06}.bin", tokens)
    validation = shard(tmp_path / "val_000000.bin", [3, 4])
    return source_of(str(tmp_path / "train_*.bin"), validation)


def test_shards_follow_one_another_in_order_of_their_names(source: CorpusSource) -> None:
    corpus = load_corpus(source)
    assert corpus.train.tolist() == [50_256, 1, 2, 7, 8, 9]
    assert corpus.validation.tolist() == [3, 4]
    assert corpus.train.dtype == corpus.validation.dtype == np.uint16
    assert (corpus.vocab_size, corpus.vocabulary, corpus.train_bytes) == (50_257, (), 0)
    assert (corpus.bytes_per_token, corpus.mean_bytes_per_token, corpus.heldout) == (None,) * 3
    assert corpus.description == (
        f"{source.train_file} and {source.validation_file}: 6 and 2 tokens, vocabulary 50257"
    )


@pytest.mark.parametrize(
    ("train_bytes", "tokens"),
    [(2, [50_256]), (6, [50_256, 1, 2]), (9, [50_256, 1, 2, 7]), (12, [50_256, 1, 2, 7, 8, 9])],
)
def test_a_prefix_counts_two_bytes_a_token(
    source: CorpusSource, train_bytes: int, tokens: list[int]
) -> None:
    corpus = load_corpus(source._replace(train_bytes=train_bytes, validation_bytes=2))
    assert (corpus.train.tolist(), corpus.validation.tolist()) == (tokens, [3])


def test_shards_behind_a_prefix_are_not_read(source: CorpusSource, tmp_path: Path) -> None:
    (tmp_path / "train_000003.bin").write_bytes(b"damaged")
    assert len(load_corpus(source._replace(train_bytes=10)).train) == 5
    with pytest.raises(UserError, match=r"train_000003\.bin: expected a header"):
        load_corpus(source)


def test_a_single_shard_stays_on_disk_and_travels(source: CorpusSource) -> None:
    corpus = load_corpus(source)
    assert isinstance(corpus.validation, np.memmap)
    assert pickle.loads(pickle.dumps(corpus)).validation.tolist() == [3, 4]


def test_the_fingerprint_is_of_the_tokens(source: CorpusSource, tmp_path: Path) -> None:
    tokens = [np.array(tokens, "<u2") for tokens in ([50_256, 1, 2, 7, 8, 9], [3, 4])]
    parts = [b"gpt2", *(part.tobytes() for part in tokens)]
    digests = [hashlib.sha256(part).digest() for part in parts]
    expected = hashlib.sha256(b"".join(digests)).hexdigest()
    assert load_corpus(source).sha256 == expected
    joined = shard(tmp_path / "joined.bin", [50_256, 1, 2, 7, 8, 9, 10])
    assert load_corpus(source._replace(train_file=joined, train_bytes=12)).sha256 == expected
    assert load_corpus(source._replace(train_file=joined)).sha256 != expected


def test_tokens_are_known_by_number_alone(source: CorpusSource) -> None:
    corpus = load_corpus(source)
    with pytest.raises(UserError, match="'One day': cannot be encoded: tokens of gpt2 are known"):
        corpus.encode("One day")
    with pytest.raises(UserError, match="2 tokens: cannot be decoded: tokens of gpt2 are known"):
        corpus.decode(corpus.validation)


def test_shards_are_at_hand_where_both_patterns_find_some(source: CorpusSource) -> None:
    assert is_at_hand(source)
    for missing in ("no_*.bin", "no.bin", "a\0b", "no/such/folder/*.bin"):
        assert not is_at_hand(source._replace(train_file=missing))
        with pytest.raises(UserError) as caught:
            load_corpus(source._replace(train_file=missing))
        assert str(caught.value) == f"train_file {missing}: expected at least one shard, found none"


def test_a_name_that_is_there_is_no_pattern(tmp_path: Path) -> None:
    odd = shard(tmp_path / "a[1].bin", [5, 6])
    assert load_corpus(source_of(odd, odd)).train.tolist() == [5, 6]


def test_a_shard_may_be_empty_but_not_all_of_them(source: CorpusSource, tmp_path: Path) -> None:
    empty = shard(tmp_path / "train_000000.bin", [])
    assert len(load_corpus(source).train) == 6
    with pytest.raises(UserError, match=f"train_bytes: expected at least one token of .*{empty}"):
        load_corpus(source._replace(train_file=empty))
    with pytest.raises(UserError, match="validation_bytes: expected at least one token of"):
        load_corpus(source._replace(validation_bytes=1))


def test_mistakes_name_the_file_and_what_was_expected(source: CorpusSource, tmp_path: Path) -> None:
    def line(train: str, train_bytes: int | None = None) -> str:
        with pytest.raises(UserError) as caught:
            load_corpus(source._replace(train_file=train, train_bytes=train_bytes))
        return str(caught.value).removeprefix(f"train_file {train}: ")

    path = tmp_path / "x.bin"
    assert line(shard(path, [1, 2, 3], magic=20240801)) == (
        "expected a token shard with magic number 20240520, got 20240801"
    )
    assert line(shard(path, [1, 2, 3], version=2)) == (
        "expected a token shard with version 1, got 2"
    )
    assert line(shard(path, [1, 2, 3], cut=1)) == (
        "expected 1,030 bytes for the 3 tokens that its header counts, got 1,029: truncated"
    )
    assert (
        line(shard(path, [1, 2, 3], cut=7)) == "expected a header of 1,024 bytes, got 1,023 bytes"
    )
    path.write_bytes(Path(shard(path, [1, 2, 3])).read_bytes() + b"x")
    assert line(str(path)) == (
        "expected 1,030 bytes for the 3 tokens that its header counts, got 1,031"
    )
    assert line(shard(path, [1, 50_257])) == "expected tokens below 50,257, got 50,257"
    assert line(str(tmp_path)) == "cannot be read: Is a directory"
    assert line(str(source.train_file), 14) == (
        f"train_bytes: expected at most the 12 of train_file {source.train_file} (2 bytes a "
        "token), got 14"
    )


def test_both_files_are_needed(source: CorpusSource) -> None:
    for partial in (source._replace(train_file=None), source._replace(validation_file=None)):
        with pytest.raises(UserError, match="corpus gpt2_shards: expected train_file and validati"):
            load_corpus(partial)
