import hashlib
import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import TRAIN, VALIDATION, source_of

from triplu_ray.corpus import (
    UNKNOWN,
    CorpusSource,
    check_length,
    encode,
    is_at_hand,
    load_corpus,
)
from triplu_ray.corpus.texts import decode_lines, listed
from triplu_ray.errors import UserError
from triplu_ray.lite import generate_stories

# Vocabulary and tokens


def test_the_vocabulary_is_the_training_texts_with_the_unknown_first(tmp_path: Path) -> None:
    corpus = load_corpus(source_of(tmp_path))
    assert corpus.vocabulary == (UNKNOWN, "\n", "a", "b", "c")
    assert corpus.train.tolist() == [2, 3, 3, 2, 1, 4, 2, 3, 1]
    assert corpus.validation.tolist() == [2, 3, 0, 0, 0, 4, 1]
    assert corpus.train.dtype == np.uint16
    assert (corpus.vocab_size, corpus.train_bytes) == (5, 9)
    assert (corpus.bytes_per_token, corpus.mean_bytes_per_token, corpus.heldout) == (None,) * 3


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


def test_a_corpus_encodes_and_decodes_other_texts(tmp_path: Path) -> None:
    corpus = load_corpus(source_of(tmp_path))
    assert corpus.encode("cabé").tolist() == [4, 2, 3, 0]
    assert corpus.decode([4, 2, 3, 0]) == "cab<UNK>"


def test_a_corpus_travels_to_workers(tmp_path: Path) -> None:
    corpus = load_corpus(source_of(tmp_path))
    arrived = pickle.loads(pickle.dumps(corpus))
    assert arrived.train.tolist() == corpus.train.tolist()
    assert arrived.encode("cab").tolist() == [4, 2, 3]


def test_more_characters_than_a_token_can_tell_apart_are_a_mistake(tmp_path: Path) -> None:
    letters = "".join(map(chr, range(0x10000, 0x10000 + 65_534)))
    corpus = load_corpus(source_of(tmp_path, letters + "\n", "\n", None))
    assert corpus.train.max() == 65_535
    assert corpus.decode(corpus.train) == letters + "\n"
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
    assert corpus.decode(corpus.train) == text


@pytest.mark.parametrize("train_bytes", [5, 6, 7, 8])
def test_a_character_cut_by_the_byte_limit_is_dropped(tmp_path: Path, train_bytes: int) -> None:
    text = "aé\n\U0001f600\n".encode()  # 1 + 2 + 1, then 4 + 1 bytes
    corpus = load_corpus(source_of(tmp_path, text, "a\n", train_bytes))
    assert corpus.decode(corpus.train) == "aé\n"


def test_splits_have_their_own_limits(tmp_path: Path) -> None:
    corpus = load_corpus(source_of(tmp_path, "a\nb\nc\n", "a\nb\nc\n", 4, 2))
    assert (corpus.decode(corpus.train), corpus.decode(corpus.validation)) == ("a\nb\n", "a\n")


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8"), max_size=30), st.data())
def test_any_prefix_of_any_text(text: str, data: st.DataObject) -> None:
    content = f"x\n{text}".encode()
    size = data.draw(st.integers(2, len(content)))
    decoded = decode_lines(content[:size], "x", "train_bytes", size)
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


# The held-out text


def with_heldout(folder: Path, text: str, num_bytes: int | None = None) -> CorpusSource:
    source = source_of(folder)
    (folder / "heldout.txt").write_text(text)
    return source._replace(heldout_file=str(folder / "heldout.txt"), heldout_bytes=num_bytes)


def test_a_third_file_is_held_out(tmp_path: Path) -> None:
    source = with_heldout(tmp_path, "cab\nbac\n")
    corpus = load_corpus(source)
    assert corpus.heldout is not None
    assert corpus.heldout.tolist() == [4, 2, 3, 1, 3, 2, 4, 1]
    assert corpus.description == (
        f"{source.train_file}, {source.validation_file} and {source.heldout_file}: 9, 7 and 8 "
        "characters, vocabulary 5, 3 unknown in validation"
    )
    shorter = load_corpus(source._replace(heldout_bytes=7)).heldout
    assert shorter is not None
    assert corpus.decode(shorter) == "cab\n"


def test_the_held_out_text_counts_in_the_fingerprint(tmp_path: Path) -> None:
    parts = [b"char", TRAIN.encode(), VALIDATION.encode(), b"cab\n"]
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    source = with_heldout(tmp_path, "cab\nb\n", 4)
    assert load_corpus(source).sha256 == hashlib.sha256(digests).hexdigest()


def test_mistakes_in_the_held_out_text_name_it(tmp_path: Path) -> None:
    source = with_heldout(tmp_path, "ab\n")
    with pytest.raises(UserError, match="heldout_bytes: expected at most the 3 of heldout_file "):
        load_corpus(source._replace(heldout_bytes=4))
    with pytest.raises(UserError, match="3 tokens of the held-out text, got 3"):
        check_length(load_corpus(source), 3, "x")
    missing = str(tmp_path / "no")
    with pytest.raises(UserError, match=f"heldout_file {missing}: cannot be read: No such file"):
        load_corpus(source._replace(heldout_file=missing))


@settings(max_examples=100)
@given(st.text(st.sampled_from("aé\n\n\U0001f600"), max_size=20), st.data())
def test_what_lies_behind_a_boundary_is_its_whole_lines(text: str, data: st.DataObject) -> None:
    content = f"x\n{text}\nyy\n".encode()
    boundary = data.draw(st.integers(2, len(content) - 3))
    end = data.draw(st.integers(boundary, len(content)))
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    lines = [slice(first, last) for first, last in itertools.pairwise([0, *ends])]
    expected = b"".join(content[x] for x in lines if x.start > boundary and x.stop <= end).decode()
    stretch = content[boundary:end]
    if expected:
        assert decode_lines(stretch, "x", "heldout_bytes", len(stretch), boundary) == expected
    else:
        with pytest.raises(UserError, match="heldout_bytes: expected at least one line of x"):
            decode_lines(stretch, "x", "heldout_bytes", len(stretch), boundary)


def test_a_byte_that_is_no_text_is_told_by_its_place_in_the_file() -> None:
    with pytest.raises(UserError, match="x: expected UTF-8 text, byte 14 is not"):
        decode_lines(b"\x80\nab\xff\n", "x", "heldout_bytes", None, 10)


def test_items_are_listed() -> None:
    assert [listed("abc"[:count]) for count in (1, 2, 3)] == ["a", "a and b", "a, b and c"]


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


def test_fingerprints_are_pinned(tmp_path: Path) -> None:
    """Run ids depend on them: a change orphans every store."""
    assert load_corpus(source_of(tmp_path)).sha256 == (
        "8f27d9ba6fbb4959a80ffdf0949fabb951f7645fa63a87b532631e4aad6a2b7b"
    )
    assert load_corpus(CorpusSource("tinystories_lite", 20_000, 5_000)).sha256 == (
        "aef032232c74b5b0466a788a98e6b09313842f86894baf8cff6808d11835d800"
    )


def test_the_fingerprint_tells_texts_apart(tmp_path: Path) -> None:
    pairs = [("a\n", "b\n"), ("b\n", "a\n"), ("a\nb\n", "b\n"), ("a\n", "b\nb\n")]
    digests = {load_corpus(source_of(tmp_path, *pair)).sha256 for pair in pairs}
    assert len(digests) == len(pairs)


# Generated texts


def test_lite_is_generated_with_other_stories_for_each_split() -> None:
    corpus = load_corpus(CorpusSource("tinystories_lite", 40_000, 5_000, heldout_bytes=4_000))
    assert corpus.decode(corpus.train) == generate_stories(40_000, seed=1)
    assert corpus.decode(corpus.validation) == generate_stories(5_000, seed=2)
    assert corpus.heldout is not None
    assert corpus.decode(corpus.heldout) == generate_stories(4_000, seed=3)
    assert corpus.description.startswith("tinystories_lite (generated): ")
    assert is_at_hand(CorpusSource("tinystories_lite", 20_000, 5_000))


def test_arithmetic_is_generated_with_other_seeds_for_each_split() -> None:
    arithmetic = pytest.importorskip("triplu_ray.arithmetic")
    corpus = load_corpus(CorpusSource("arithmetic_lite", 20_000, 5_000, heldout_bytes=4_000))
    assert corpus.decode(corpus.train) == arithmetic.generate_arithmetic(20_000, 1)
    for split, size, seed in ((corpus.validation, 5_000, 2), (corpus.heldout, 4_000, 3)):
        assert split is not None
        assert split.tolist() == corpus.encode(arithmetic.generate_arithmetic(size, seed)).tolist()
    assert corpus.description.startswith("arithmetic_lite (generated): ")


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ((None, 10), "expected train_bytes and validation_bytes, as it has no end"),
        ((10, None), "expected train_bytes and validation_bytes, as it has no end"),
        ((2**40, 10), "expected train_bytes and validation_bytes of at most 1,073,741,824"),
        ((10, 10, 2**40), "train_bytes, validation_bytes and heldout_bytes of at most 1,073"),
        ((10, 5_000), "^train_bytes: expected more, the first line of the text is longer"),
        ((5_000, 10), "^validation_bytes: expected more, the first line"),
        ((5_000, 5_000, 10), "^heldout_bytes: expected more, the first line"),
    ],
)
def test_lite_needs_sizes(sizes: tuple[int, ...], line: str) -> None:
    train_bytes, validation_bytes, heldout_bytes = (*sizes, None)[:3]
    with pytest.raises(UserError, match=line):
        load_corpus(
            CorpusSource(
                "tinystories_lite", train_bytes, validation_bytes, heldout_bytes=heldout_bytes
            )
        )
