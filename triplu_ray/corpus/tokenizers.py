"""What turns text into tokens and back, 16 bits each; a tokenizer travels to workers by pickle.

V vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from triplu_ray.errors import UserError, brief

UNKNOWN = "<UNK>"
MAX_VOCAB_SIZE = 1 << 16

Tokens = NDArray[np.uint16]


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def vocab_size(self) -> int:
        """Number of different tokens, V."""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The name of each token; empty where tokens are known by number alone."""

    @property
    def bytes_per_token(self) -> NDArray[np.int64] | None:
        """How many bytes of UTF-8 text each token stands for `[V]`; None where that is unknown."""

    @property
    def identity(self) -> tuple[str, ...]:
        """What tells it from other tokenizers that were given the same training text."""

    def encode(self, text: str) -> Tokens:
        """The tokens of a text."""

    def decode(self, tokens: Sequence[int] | Tokens) -> str:
        """The text of tokens."""


@dataclass(frozen=True)
class CharTokenizer:
    """Characters; the unknown, token 0, hides what it stands for, so bytes are not counted."""

    vocabulary: tuple[str, ...]
    """`UNKNOWN`, then characters in order of their code points."""

    @staticmethod
    def of(text: str, description: str) -> "CharTokenizer":
        """That of a training text's characters; UserError if they are too many."""
        characters = sorted(set(text))
        if len(characters) >= MAX_VOCAB_SIZE:
            raise UserError(
                f"corpus {description}: expected at most {MAX_VOCAB_SIZE - 1:,} distinct "
                f"characters, got {len(characters):,}"
            )
        return CharTokenizer((UNKNOWN, *characters))

    @property
    def vocab_size(self) -> int:
        """Characters and the unknown."""
        return len(self.vocabulary)

    @property
    def bytes_per_token(self) -> None:
        """Unknown."""

    @property
    def identity(self) -> tuple[str, ...]:
        """The training text decides the rest."""
        return ("char",)

    def encode(self, text: str) -> Tokens:
        """One token a character."""
        return encode(text, self.vocabulary)

    def decode(self, tokens: Sequence[int] | Tokens) -> str:
        """The characters, and `UNKNOWN` for unknown ones."""
        return "".join(self.vocabulary[token] for token in tokens)


def encode(text: str, vocabulary: tuple[str, ...]) -> Tokens:
    """Indices of the characters in a vocabulary sorted after its first entry, the unknown (0)."""
    characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    known = np.array([ord(entry) for entry in vocabulary[1:]], np.uint32)
    nearest = np.searchsorted(known, characters).clip(max=len(known) - 1)
    return np.where(known[nearest] == characters, nearest + 1, 0).astype(np.uint16)


@dataclass(frozen=True)
class OpaqueTokens:
    """Tokens known by number alone, as those of a text that came as tokens."""

    name: str
    vocab_size: int

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """None of them has a name."""
        return ()

    @property
    def bytes_per_token(self) -> None:
        """Unknown."""

    @property
    def identity(self) -> tuple[str, ...]:
        """The name."""
        return (self.name,)

    def encode(self, text: str) -> Tokens:
        """Raises UserError: what the tokens stand for is not known."""
        raise UserError(f"{brief(text)}: cannot be encoded: {self._why}")

    def decode(self, tokens: Sequence[int] | Tokens) -> str:
        """Raises UserError, as `encode`."""
        raise UserError(f"{len(tokens):,} tokens: cannot be decoded: {self._why}")

    @property
    def _why(self) -> str:
        return f"tokens of {self.name} are known by number alone"
