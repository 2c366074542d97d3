import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import TRAIN, VALIDATION, decode, source_of

from triplu_ray import corpus as corpus_module
from triplu_ray.corpus import UNKNOWN, CorpusSource, check_length, encode, load_corpus
from triplu_ray.errors import UserError
from triplu_ray.lite import generate_stories

# Vocabulary and tokens


def test_the_vocabulary_is_the_training_texts_with_the_unknown_first(tmp_path: Path) -> None:
    corpus = load_corpus(source_of(tmp_path))
    assert corpus.vocabulary == (UNKNOWN, "\n", "a", "b", "c")
    assert corpus.train.tolist() == [2, 3, 3, 2, 1, 4, 2, 3, 1]
    assert corpus.validation.tolist() == [2, 3, 0, 0, 0, 4, 1]
    assert corpus.train.dtype == np.uint16


def test_the_description_counts_what_is_unknown(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    assert load_corpus(source).description == (
        f"{source.train_file} and {source.validation_file}: 9 and 7 characters, vocabulary 5, "
        "3 unknown in validation"
    )


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8")))
def test_tokens_decode_to_the_text(train: str, other: str) -> None:
    vocabulary = (UNKNOWN, *sorted(set(train)))
    assert "".join(vocabulary[token] for token in encode(train, vocabulary)) == train
    tokens = encode(other, vocabulary).tolist()
    assert tokens == [vocabulary.index(c) if c in set(train) else 0 for c in other]


def test_more_characters_than_a_token_can_tell_apart_are_a_mistake(tmp_path: Path) -> None:
    letters = "".join(map(chr, range(0x10000, 0x10000 + 65_534)))
    corpus = load_corpus(source_of(tmp_path, letters + "\n", "\n", None))
    assert corpus.train.max() == 65_535
    assert decode(corpus, corpus.train) == letters + "\n"
    with pytest.raises(UserError, match="expected at most 65,535 distinct characters, got 65,537"):
        load_corpus(source_of(tmp_path, letters + "xy\n", "\n", None))


# Prefixes


@pytest.mark.parametrize(
    ("train_bytes", "text"),
    [
        (None, "ab\ncd\n"),  # what follows the last newline is dropped
        (9, "ab\ncd\n"),
        (6, "ab\ncd\n"),
        (5, "ab\n"),
        (3, "ab\n"),
    ],
)
def test_a_prefix_is_cut_after_its_last_line(
    tmp_path: Path, train_bytes: int | None, text: str
) -> None:
    corpus = load_corpus(source_of(tmp_path, "ab\ncd\nefg", "a\n", train_bytes))
    assert decode(corpus, corpus.train) == text


@pytest.mark.parametrize("train_bytes", [5, 6, 7, 8])
def test_a_character_cut_by_the_byte_limit_is_dropped(tmp_path: Path, train_bytes: int) -> None:
    text = "aé\n\U0001f600\n".encode()  # 1 + 2 + 1, then 4 + 1 bytes
    corpus = load_corpus(source_of(tmp_path, text, "a\n", train_bytes))
    assert decode(corpus, corpus.train) == "aé\n"


def test_splits_have_their_own_limits(tmp_path: Path) -> None:
    corpus = load_corpus(source_of(tmp_path, "a\nb\nc\n", "a\nb\nc\n", 4, 2))
    assert (decode(corpus, corpus.train), decode(corpus, corpus.validation)) == ("a\nb\n", "a\n")


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8"), max_size=30), st.data())
def test_any_prefix_of_any_text(text: str, data: st.DataObject) -> None:
    content = f"x\n{text}".encode()
    size = data.draw(st.integers(2, len(content)))
    decoded = corpus_module._decode_prefix(content[:size], "x", "train_bytes", size)
    assert content[:size].decode(errors="ignore").startswith(decoded)
    assert decoded.endswith("\n")
    assert "\n" not in content[:size].decode(errors="ignore")[len(decoded) :]


@pytest.mark.parametrize(
    ("train", "train_bytes", "line"),
    [
        ("ab\n", 4, "train_bytes: expected at most the 3 of train_file {file}, got 4"),
        ("ab\n", 10**15, "train_bytes: expected at most the 3 of train_file {file}, got 1,000,000"),
        ("", None, "train_bytes: expected at least one line of train_file {file}, found none"),
        ("no line", 3, "train_bytes: expected at least one line of train_file {file}, found none"),
        (b"ab\n\xffcd\n", None, "train_file {file}: expected UTF-8 text, byte 3 is not"),
        (b"ab\n\xc3\ncd\n", 7, "train_file {file}: expected UTF-8 text, byte 3 is not"),
        (b"ab\n\xed\xa0\x80\n", None, "train_file {file}: expected UTF-8 text, byte 3 is not"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_used(
    tmp_path: Path, train: str | bytes, train_bytes: int | None, line: str
) -> None:
    source = source_of(tmp_path, train, "a\n", train_bytes)
    with pytest.raises(UserError) as caught:
        load_corpus(source)
    assert str(caught.value).startswith(line.format(file=source.train_file))


# Files


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    for file, why in ((tmp_path, "Is a directory"), (tmp_path / "no", "No such file or directory")):
        with pytest.raises(UserError, match=f"validation_file {file}: cannot be read: {why}"):
            load_corpus(source._replace(validation_file=str(file)))
    with pytest.raises(UserError, match="cannot be read: embedded null byte"):
        load_corpus(source._replace(train_file="a\0b"))


def test_text_needs_both_files() -> None:
    with pytest.raises(UserError, match="corpus text: expected train_file and validation_file"):
        load_corpus(CorpusSource("text", 1, 1, "a", None))


def test_a_split_holds_a_context_and_the_next_token(tmp_path: Path) -> None:
    corpus = load_corpus(source_of(tmp_path, "abcd\n", "ab\n"))
    check_length(corpus, 2, "x")
    with pytest.raises(UserError) as caught:
        check_length(corpus, 3, "x")
    assert str(caught.value) == (
        "x: context_length: expected fewer than the 3 tokens of the validation text, got 3"
    )
    with pytest.raises(UserError, match="5 tokens of the training text"):
        check_length(corpus, 5, "x")


# Fingerprint


def test_the_fingerprint_is_of_the_tokenizer_and_the_texts(tmp_path: Path) -> None:
    parts = [b"char", TRAIN.encode(), VALIDATION.encode()]
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    expected = hashlib.sha256(digests).hexdigest()
    assert load_corpus(source_of(tmp_path)).sha256 == expected
    assert load_corpus(source_of(tmp_path / "elsewhere")).sha256 == expected
    longer = source_of(tmp_path, TRAIN + "and more\n", VALIDATION, len(TRAIN))
    assert load_corpus(longer).sha256 == expected


def test_the_fingerprint_tells_texts_apart(tmp_path: Path) -> None:
    pairs = [("a\n", "b\n"), ("b\n", "a\n"), ("a\nb\n", "b\n"), ("a\n", "b\nb\n")]
    digests = {load_corpus(source_of(tmp_path, *pair)).sha256 for pair in pairs}
    assert len(digests) == len(pairs)


# tinystories_lite


def test_lite_is_generated_with_other_stories_for_validation() -> None:
    corpus = load_corpus(CorpusSource("tinystories_lite", 20_000, 5_000))
    assert decode(corpus, corpus.train) == generate_stories(20_000, seed=1)
    assert decode(corpus, corpus.validation) == generate_stories(5_000, seed=2)
    assert corpus.description.startswith("tinystories_lite (generated): ")


@pytest.mark.parametrize(
    ("train_bytes", "validation_bytes", "line"),
    [
        (None, 10, "expected train_bytes and validation_bytes, as it has no end"),
        (10, None, "expected train_bytes and validation_bytes, as it has no end"),
        (2**40, 10, "expected train_bytes and validation_bytes of at most 1,073,741,824"),
        (10, 5_000, "^train_bytes: expected more, the first line of the stories is longer"),
        (5_000, 10, "^validation_bytes: expected more, the first line"),
    ],
)
def test_lite_needs_sizes(train_bytes: int, validation_bytes: int, line: str) -> None:
    with pytest.raises(UserError, match=line):
        load_corpus(CorpusSource("tinystories_lite", train_bytes, validation_bytes))
