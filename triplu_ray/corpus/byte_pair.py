"""Byte-level BPE, learned on the training text alone: the TriPLU paper's subword tokenizer.

The recipe: no normalization; GPT-2's pre-tokenization without a space put in front; an alphabet of
all 256 bytes in the order of the characters that write them; no special tokens; the most frequent
pair of neighbours is merged, down to pairs met twice, until the vocabulary has the size that was
asked for. It loses nothing: every text decodes to itself.

V vocabulary
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triplu_ray.corpus.files import cached, keep
from triplu_ray.corpus.tokenizers import Tokens
from triplu_ray.errors import UserError

if TYPE_CHECKING:
    import tokenizers

# A core encodes 4 MB a second; threads would have the library warn at every fork from then on.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

RECIPE_VERSION = 1
"""Part of fingerprints; raised when the recipe, or what it gives, changes."""
MIN_FREQUENCY = 2
_PIECES_AT_ONCE = 4096
# The last blank of a run of them begins a pre-token, whatever is around it: ` ` that of the word
# behind it, a newline its own. So a text may be cut before it, and here is where lines allow it.
_LINE = re.compile(r"(?=\n\S)|(?<=\n)(?= \S)")


@dataclass(frozen=True)
class BytePairTokenizer:
    """The merges in the order they were learned, as JSON: all there is to know."""

    merges: str

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Byte-level strings: each of their characters writes one byte."""
        merged = ("".join(pair) for pair in json.loads(self.merges))
        return tuple(dict.fromkeys([*_alphabet(), *merged]))

    @property
    def vocab_size(self) -> int:
        """256 bytes and what was merged."""
        return len(self.vocabulary)

    @property
    def bytes_per_token(self) -> NDArray[np.int64]:
        """`[V]`; summed over a text's tokens, the length of the text in UTF-8."""
        return np.array([len(token) for token in self.vocabulary], np.int64)

    @property
    def identity(self) -> tuple[str, ...]:
        """The recipe and its result."""
        return (f"bbpe {RECIPE_VERSION}", self.merges)

    def encode(self, text: str) -> Tokens:
        """Tokens of the whole text, encoded line by line, which changes none of them."""
        library = _library_tokenizer(self.merges)
        pieces = split_lines(text)
        tokens = []
        for start in range(0, len(pieces), _PIECES_AT_ONCE):
            batch = library.encode_batch_fast(pieces[start : start + _PIECES_AT_ONCE])
            tokens += [np.array(encoding.ids, np.uint16) for encoding in batch]
        return np.concatenate(tokens)

    def decode(self, tokens: Sequence[int] | Tokens) -> str:
        """Their text; bytes that are no whole character become the replacement character."""
        return str(_library_tokenizer(self.merges).decode([int(token) for token in tokens]))


def split_lines(text: str) -> list[str]:
    """A text in pieces, about its lines, whose tokens together are those of the whole."""
    return _LINE.split(text)


def learn_byte_pairs(text: str, vocab_size: int) -> BytePairTokenizer:
    """The tokenizer of a training text, from the cache if it was learned before.

    Raises UserError if the text cannot fill a vocabulary of this size.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()
    key = hashlib.sha256(f"{RECIPE_VERSION} {vocab_size} {digest}".encode()).hexdigest()
    path = cached(f"bbpe-{vocab_size}-{key[:16]}.json")
    merges = _read_merges(path, key)
    if merges is None:
        merges = _learn_merges(text, vocab_size)
        content = {"key": key, "merges": merges, "merges_sha256": _sha256(merges)}
        keep(path, json.dumps(content).encode())
    return BytePairTokenizer(merges)


def _read_merges(path: Path, key: str) -> str | None:
    """What the cache holds under a key; None if that is nothing, or damaged."""
    try:
        content = json.loads(path.read_bytes())
        sound = content["key"] == key and content["merges_sha256"] == _sha256(content["merges"])
        return str(content["merges"]) if sound else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _learn_merges(text: str, vocab_size: int) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        initial_alphabet=list(_alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    library.train_from_iterator(split_lines(text), trainer)
    if library.get_vocab_size() != vocab_size:
        raise UserError(
            f"tokenizer_vocab_size: expected at most {library.get_vocab_size():,}, which is as far "
            f"as the pairs of the training text go, got {vocab_size:,}"
        )
    return json.dumps(json.loads(library.to_str())["model"]["merges"], ensure_ascii=False)


@lru_cache(maxsize=8)
def _library_tokenizer(merges: str) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = BytePairTokenizer(merges).vocabulary
    pairs = [(left, right) for left, right in json.loads(merges)]
    library = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, pairs))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def _alphabet() -> tuple[str, ...]:
    """The characters that write the bytes: printable ones themselves, others moved beyond 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return tuple(sorted(map(chr, {*printable, *range(0x100, 0x100 + 256 - len(printable))})))
