import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import source_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from triplu_ray.corpus import CorpusSource, byte_pair, load_corpus
from triplu_ray.corpus.byte_pair import BytePairTokenizer, learn_byte_pairs, split_lines
from triplu_ray.errors import UserError
from triplu_ray.lite import generate_stories

TEXT = (
    generate_stories(20_000, seed=1)
    + "Füße über Öl, müde Füße über 日本 日本 日本語 \U0001f600\n" * 5
)
# What pre-tokenization looks at, and what Python and the library might take for a blank.
BLANKS = " \n\t\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2003\u200b\u2028\u2029\u3000\ufeff"
texts = st.text(st.characters(codec="utf-8")) | st.text(
    st.sampled_from(BLANKS + "  \n\n" + "ab's'll 12.!é日\U0001f600\U0001f1e9\u0301"), max_size=30
)


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BytePairTokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return learn_byte_pairs(TEXT, 512)


@pytest.fixture(scope="module")
def library() -> Tokenizer:
    """What the library learns and does on its own, the text in one piece."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.train_from_iterator([TEXT], trainer)
    return library


# Learning


def test_pairs_are_merged_by_frequency_then_in_order_of_their_numbers() -> None:
    # Words: `aab` x 3, ` aab` x 2; aa and ab are met five times each, aa has the smaller numbers.
    tokenizer = learn_byte_pairs("aab\n\naab aab\n\naab aab", 259)
    assert json.loads(tokenizer.merges) == [["a", "a"], ["aa", "b"], ["Ġ", "aab"]]
    assert tokenizer.vocabulary[256:] == ("aa", "aab", "Ġaab")
    assert tokenizer.encode("aab aab aa b").tolist() == [
        257, 258, tokenizer.vocabulary.index("Ġ"), 256, *map(tokenizer.vocabulary.index, "Ġb")
    ]  # fmt: skip


def test_the_library_alone_learns_the_same(
    tokenizer: BytePairTokenizer, library: Tokenizer
) -> None:
    numbers = library.get_vocab()
    assert tokenizer.vocabulary == tuple(sorted(numbers, key=lambda token: numbers[token]))
    assert json.loads(tokenizer.merges) == json.loads(library.to_str())["model"]["merges"]
    assert tokenizer.encode(TEXT).tolist() == library.encode(TEXT).ids


def test_the_vocabulary_begins_with_all_bytes_and_has_the_size_that_was_asked_for(
    tokenizer: BytePairTokenizer,
) -> None:
    assert (
        tokenizer.vocab_size == len(tokenizer.vocabulary) == len(set(tokenizer.vocabulary)) == 512
    )
    assert list(tokenizer.vocabulary[:256]) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert learn_byte_pairs(TEXT, 256).vocab_size == 256
    assert learn_byte_pairs(TEXT, 256).merges == "[]"


def test_a_text_that_cannot_fill_the_vocabulary_is_a_mistake() -> None:
    with pytest.raises(UserError) as caught:
        learn_byte_pairs("aab aab\n", 259)  # aa, aab; ` aab` is met once
    assert str(caught.value) == (
        "tokenizer_vocab_size: expected at most 258, which is as far as the pairs of the training "
        "text go, got 259"
    )
    assert learn_byte_pairs("aab aab\n", 258).vocab_size == 258


def test_learning_is_deterministic_across_processes(tokenizer: BytePairTokenizer) -> None:
    code = (
        "import sys; from triplu_ray.corpus.byte_pair import _learn_merges\n"
        "sys.stdout.buffer.write(_learn_merges(sys.stdin.buffer.read().decode(), 512).encode())"
    )
    learned = subprocess.run(
        [sys.executable, "-c", code], input=TEXT.encode(), capture_output=True, check=True
    )
    assert learned.stdout.decode() == tokenizer.merges


# Encoding


@given(text=texts)
def test_every_text_decodes_to_itself(text: str, tokenizer: BytePairTokenizer) -> None:
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.uint16
    assert tokenizer.decode(tokens) == text


@given(text=texts)
def test_bytes_of_tokens_are_the_bytes_of_the_text(text: str, tokenizer: BytePairTokenizer) -> None:
    assert tokenizer.bytes_per_token[tokenizer.encode(text)].sum() == len(text.encode())


@given(text=texts)
def test_cutting_a_text_into_lines_changes_no_token(
    text: str, tokenizer: BytePairTokenizer, library: Tokenizer
) -> None:
    assert "".join(split_lines(text)) == text
    assert tokenizer.encode(text).tolist() == library.encode(text).ids


def test_lines_are_cut_where_pre_tokens_begin() -> None:
    assert split_lines("one\ntwo\n\nthree\n") == ["one", "\ntwo\n", "\nthree\n"]
    wikitext = " \n = Head = \n \n Text . \n"
    assert split_lines(wikitext) == [" \n", " = Head = \n \n", " Text . \n"]


def test_tokens_may_stand_for_a_part_of_a_character(tokenizer: BytePairTokenizer) -> None:
    rest_of_smile = tokenizer.encode("\U0001f680")  # not met in training
    assert len(rest_of_smile) > 1
    assert tokenizer.bytes_per_token[rest_of_smile].sum() == 4
    assert tokenizer.decode(rest_of_smile) == "\U0001f680"
    assert tokenizer.decode(rest_of_smile[:1]) == "\ufffd"
    (umlaut,) = tokenizer.encode("ü")
    assert tokenizer.bytes_per_token[umlaut] == 2
    assert tokenizer.vocabulary[umlaut] == "Ã¼"


def test_a_tokenizer_travels_as_its_merges(tokenizer: BytePairTokenizer) -> None:
    tokens = tokenizer.encode(TEXT)
    arrived = pickle.loads(pickle.dumps(tokenizer))
    assert arrived == tokenizer
    assert arrived.encode(TEXT).tolist() == tokens.tolist()
    assert arrived.decode(tokens) == TEXT


def test_a_megabyte_is_encoded_in_seconds(tokenizer: BytePairTokenizer) -> None:
    text = TEXT * (1_000_000 // len(TEXT) + 1)
    started = time.process_time()
    assert tokenizer.bytes_per_token[tokenizer.encode(text)].sum() == len(text.encode()) > 1_000_000
    assert time.process_time() - started < 5


# The cache


def test_what_was_learned_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    learned: list[int] = []
    learn = byte_pair._learn_merges

    def noted(text: str, vocab_size: int) -> str:
        learned.append(vocab_size)
        return learn(text, vocab_size)

    monkeypatch.setattr(byte_pair, "_learn_merges", noted)
    first = learn_byte_pairs(TEXT, 300)
    assert learn_byte_pairs(TEXT, 300) == first
    assert learned == [300]
    assert learn_byte_pairs(TEXT, 301) != first
    assert learn_byte_pairs(TEXT + "x", 300).vocab_size == 300
    assert learned == [300, 301, 300]
    names = [path.name[:9] for path in (tmp_path / "cache" / "triplu_ray").iterdir()]
    assert sorted(names) == ["bbpe-300-", "bbpe-300-", "bbpe-301-"]
    monkeypatch.setattr(byte_pair, "RECIPE_VERSION", 0)
    learn_byte_pairs(TEXT, 300)
    assert len(learned) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda content: content[: len(content) // 2],
        lambda _: b"[]",
        lambda _: b"{}",
        lambda content: content.replace(b"u0120sa", b"u0120sb"),
        lambda content: b"\xff" + content,
        lambda content: json.dumps({**json.loads(content), "merges": None}).encode(),
        lambda content: json.dumps({**json.loads(content), "key": "another's"}).encode(),
    ],
)  # fmt: skip
def test_a_damaged_cache_is_made_anew(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    first = learn_byte_pairs(TEXT, 300)
    (path,) = (tmp_path / "cache" / "triplu_ray").iterdir()
    sound = path.read_bytes()
    assert damage(sound) != sound
    path.write_bytes(damage(sound))
    assert learn_byte_pairs(TEXT, 300) == first
    assert path.read_bytes() == sound


def test_a_cache_that_cannot_be_written_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cache .*bbpe-300-.*\.json: cannot be written: "):
        learn_byte_pairs(TEXT, 300)


# In a corpus


def bbpe(source: CorpusSource, vocab_size: int = 300) -> CorpusSource:
    return source._replace(tokenizer="bbpe", tokenizer_vocab_size=vocab_size)


def test_a_corpus_of_byte_pairs(tmp_path: Path) -> None:
    other = "Jörg saw 日本.\n"
    corpus = load_corpus(bbpe(source_of(tmp_path, TEXT, other)))
    assert corpus.vocab_size == len(corpus.vocabulary) == 300
    assert corpus.decode(corpus.train) == TEXT
    assert corpus.decode(corpus.validation) == other
    assert corpus.train_bytes == len(TEXT.encode())
    assert corpus.bytes_per_token is not None
    assert corpus.bytes_per_token[corpus.train].sum() == corpus.train_bytes
    assert corpus.mean_bytes_per_token is not None
    assert corpus.mean_bytes_per_token * len(corpus.train) == corpus.train_bytes
    assert corpus.encode(other).tolist() == corpus.validation.tolist()
    assert corpus.description.endswith(
        f": {len(corpus.train):,} and {len(corpus.validation):,} tokens of "
        f"{len(TEXT.encode()):,} and {len(other.encode())} bytes, vocabulary 300"
    )
    arrived = pickle.loads(pickle.dumps(corpus))
    assert arrived.decode(arrived.encode(other)) == other


def test_the_tokenizer_counts_in_the_fingerprint(tmp_path: Path) -> None:
    source = source_of(tmp_path, TEXT, "a\n")
    chars, small, large = (
        load_corpus(each).sha256 for each in (source, bbpe(source), bbpe(source, 301))
    )
    assert len({chars, small, large}) == 3
    assert load_corpus(bbpe(source_of(tmp_path / "elsewhere", TEXT, "a\n"))).sha256 == small


def test_the_vocabulary_is_that_of_the_training_text_alone(tmp_path: Path) -> None:
    source = source_of(tmp_path, TEXT, "zq zq zq zq zq\n" * 1000)
    (tmp_path / "heldout.txt").write_text("qz qz qz qz qz\n" * 1000)
    corpus = load_corpus(bbpe(source._replace(heldout_file=str(tmp_path / "heldout.txt"))))
    assert corpus.vocabulary == load_corpus(bbpe(source_of(tmp_path, TEXT, "a\n"))).vocabulary
    assert corpus.heldout is not None
    assert corpus.decode(corpus.heldout[:12]).startswith("qz qz qz")
