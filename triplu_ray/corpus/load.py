"""A corpus: the tokens of its texts, the tokenizer and a fingerprint of both."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triplu_ray.corpus.shards import find_shards, read_shards
from triplu_ray.corpus.source import GPT2_VOCAB_SIZE, CorpusSource
from triplu_ray.corpus.texts import are_at_hand, listed, read_texts
from triplu_ray.corpus.tokenizers import CharTokenizer, OpaqueTokens, Tokenizer, Tokens
from triplu_ray.errors import UserError


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens of all splits; `sha256` covers tokenizer and texts, whatever their source.

    V vocabulary
    """

    train: Tokens
    validation: Tokens
    tokenizer: Tokenizer
    sha256: str
    description: str
    heldout: Tokens | None = None
    train_bytes: int = 0
    """Of the training text in UTF-8; 0 where it came as tokens."""

    @property
    def vocab_size(self) -> int:
        """Number of different tokens, V."""
        return self.tokenizer.vocab_size

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The name of each token; empty where it came as tokens."""
        return self.tokenizer.vocabulary

    @property
    def bytes_per_token(self) -> NDArray[np.int64] | None:
        """How many bytes of UTF-8 text each token stands for `[V]`; None where that is unknown."""
        return self.tokenizer.bytes_per_token

    @property
    def mean_bytes_per_token(self) -> Fraction | None:
        """Over the training text; None where a token's bytes are unknown."""
        if self.bytes_per_token is None:
            return None
        return Fraction(self.train_bytes, len(self.train))

    def num_bytes(self, tokens: NDArray[Any]) -> int | None:
        """How many bytes of UTF-8 text some tokens stand for; None where that is unknown."""
        sizes = self.bytes_per_token
        return None if sizes is None else int(sizes[tokens].sum())

    def encode(self, text: str) -> Tokens:
        """The tokens of any text; UserError if the corpus came as tokens."""
        return self.tokenizer.encode(text)

    def decode(self, tokens: Sequence[int] | Tokens) -> str:
        """The text of tokens; UserError if the corpus came as tokens."""
        return self.tokenizer.decode(tokens)


def load_corpus(source: CorpusSource) -> Corpus:
    """Read, fetch or generate the texts, learn the tokenizer and encode them.

    Raises UserError if a file is missing, damaged, too short, or not UTF-8, the hub cannot be
    reached, or the vocabulary does not fit the training text.
    """
    if source.corpus == "gpt2_shards":
        return _load_shards(source)
    train, validation, heldout, origin = read_texts(source)
    tokenizer: Tokenizer
    if source.tokenizer == "bbpe":
        from triplu_ray.corpus.byte_pair import learn_byte_pairs

        tokenizer = learn_byte_pairs(train, source.tokenizer_vocab_size)
    else:
        tokenizer = CharTokenizer.of(train, origin)
    texts = [train, validation, *([] if heldout is None else [heldout])]
    splits = [tokenizer.encode(text) for text in texts]
    unit = "characters"
    note = f", {(splits[1] == 0).sum()} unknown in validation"
    if source.tokenizer == "bbpe":
        unit = f"tokens of {_counts(len(text.encode()) for text in texts)} bytes"
        note = ""
    return Corpus(
        train=splits[0],
        validation=splits[1],
        tokenizer=tokenizer,
        sha256=_fingerprint(part.encode() for part in (*tokenizer.identity, *texts)),
        description=f"{origin}: {_counts(map(len, splits))} {unit}, "
        f"vocabulary {tokenizer.vocab_size}{note}",
        heldout=splits[2] if heldout is not None else None,
        train_bytes=len(train.encode()),
    )


def _load_shards(source: CorpusSource) -> Corpus:
    if source.train_file is None or source.validation_file is None:
        raise UserError("corpus gpt2_shards: expected train_file and validation_file")
    tokenizer = OpaqueTokens("gpt2", GPT2_VOCAB_SIZE)
    train = read_shards("train", source.train_file, source.train_bytes)
    validation = read_shards("validation", source.validation_file, source.validation_bytes)
    return Corpus(
        train=train,
        validation=validation,
        tokenizer=tokenizer,
        sha256=_fingerprint(
            [*(part.encode() for part in tokenizer.identity), train.data, validation.data]
        ),
        description=f"{source.train_file} and {source.validation_file}: "
        f"{_counts([len(train), len(validation)])} tokens, vocabulary {tokenizer.vocab_size}",
    )


def _counts(counts: Iterable[int]) -> str:
    return listed(f"{count:,}" for count in counts)


def _fingerprint(parts: Iterable[bytes | memoryview]) -> str:
    """A hash of hashes; tokens are hashed as they are read, not copied."""
    digests = (hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def is_at_hand(source: CorpusSource) -> bool:
    """Whether `load_corpus` would read it without fetching anything."""
    if source.corpus != "gpt2_shards":
        return are_at_hand(source)
    files = (source.train_file, source.validation_file)
    return all(file is None or find_shards(file) for file in files)


def check_length(corpus: Corpus, context_length: int, where: str) -> None:
    """Raise UserError if a split has no whole window of context and next token."""
    splits = {
        "training": corpus.train,
        "validation": corpus.validation,
        "held-out": corpus.heldout,
    }
    for split, tokens in splits.items():
        if tokens is not None and len(tokens) <= context_length:
            raise UserError(
                f"{where}: context_length: expected fewer than the {len(tokens):,} tokens of the "
                f"{split} text, got {context_length:,}"
            )
