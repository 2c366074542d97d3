"""Text as tokens: where a corpus comes from, its vocabulary and its fingerprint.

The training text is a prefix of so many bytes, decoded as UTF-8 and cut at its last newline; the
validation text likewise. The vocabulary is drawn from the training text alone.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triplu_ray.errors import UserError, reason
from triplu_ray.lite import generate_stories
from triplu_ray.store import write_atomically

CorpusName = Literal["tinystories_lite", "tinystories", "text"]
UNKNOWN = "<UNK>"
_MAX_VOCABULARY = 1 << 16
"""Tokens are 16 bits wide."""
_MAX_LITE_BYTES = 1 << 30
"""Of generated stories; more would take many minutes and gigabytes before the first step."""
DATA_VARIABLE = "TRIPLU_RAY_DATA"
_HUB_FOLDER = "hf://datasets/roneneldan/TinyStories"
_HUB_FILES = {"train": "TinyStories-train.txt", "validation": "TinyStories-valid.txt"}


class CorpusSource(NamedTuple):
    """The part of a configuration that says which text a run reads."""

    corpus: CorpusName
    train_bytes: int | None
    validation_bytes: int | None
    train_file: str | None = None
    validation_file: str | None = None


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens of both splits; `sha256` covers tokenizer and texts, whatever their source."""

    train: NDArray[np.uint16]
    validation: NDArray[np.uint16]
    vocabulary: tuple[str, ...]
    sha256: str
    description: str


def load_corpus(source: CorpusSource) -> Corpus:
    """Read or generate the texts and encode them.

    Raises UserError if a file is missing, too short, or not UTF-8, or the hub cannot be reached.
    """
    train, validation, description = _TEXTS[source.corpus](source)
    vocabulary = (UNKNOWN, *sorted(set(train)))
    if len(vocabulary) > _MAX_VOCABULARY:
        raise UserError(
            f"corpus {description}: expected at most {_MAX_VOCABULARY - 1:,} distinct characters, "
            f"got {len(vocabulary) - 1:,}"
        )
    fingerprint = hashlib.sha256()
    for part in ("char", train, validation):
        fingerprint.update(hashlib.sha256(part.encode()).digest())
    validation_tokens = encode(validation, vocabulary)
    return Corpus(
        train=encode(train, vocabulary),
        validation=validation_tokens,
        vocabulary=vocabulary,
        sha256=fingerprint.hexdigest(),
        description=f"{description}: {len(train):,} and {len(validation):,} characters, "
        f"vocabulary {len(vocabulary)}, {(validation_tokens == 0).sum()} unknown in validation",
    )


def is_at_hand(source: CorpusSource) -> bool:
    """Whether `load_corpus` would read it without fetching anything."""
    if source.corpus != "tinystories" or os.environ.get(DATA_VARIABLE):
        return True
    return all(_cached_prefix(split, size).exists() for split, size in _sizes(source).items())


def check_length(corpus: Corpus, context_length: int, where: str) -> None:
    """Raise UserError if a split has no whole window of context and next token."""
    for split, tokens in (("training", corpus.train), ("validation", corpus.validation)):
        if len(tokens) <= context_length:
            raise UserError(
                f"{where}: context_length: expected fewer than the {len(tokens):,} tokens of the "
                f"{split} text, got {context_length:,}"
            )


def encode(text: str, vocabulary: tuple[str, ...]) -> NDArray[np.uint16]:
    """Indices of the characters in a vocabulary sorted after its first entry, the unknown (0)."""
    characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    known = np.array([ord(entry) for entry in vocabulary[1:]], np.uint32)
    nearest = np.searchsorted(known, characters).clip(max=len(known) - 1)
    return np.where(known[nearest] == characters, nearest + 1, 0).astype(np.uint16)


def _lite(source: CorpusSource) -> tuple[str, str, str]:
    if source.train_bytes is None or source.validation_bytes is None:
        raise UserError(
            "corpus tinystories_lite: expected train_bytes and validation_bytes, as it has no end"
        )
    if max(source.train_bytes, source.validation_bytes) > _MAX_LITE_BYTES:
        raise UserError(
            f"corpus tinystories_lite: expected train_bytes and validation_bytes of at most "
            f"{_MAX_LITE_BYTES:,}"
        )
    train = generate_stories(source.train_bytes, seed=1)
    validation = generate_stories(source.validation_bytes, seed=2)
    for key, text in (("train_bytes", train), ("validation_bytes", validation)):
        if not text:
            raise UserError(f"{key}: expected more, the first line of the stories is longer")
    return train, validation, "tinystories_lite (generated)"


def _text_files(source: CorpusSource) -> tuple[str, str, str]:
    if source.train_file is None or source.validation_file is None:
        raise UserError("corpus text: expected train_file and validation_file")
    files = {"train": Path(source.train_file), "validation": Path(source.validation_file)}
    return _read_files(files, source)


def _tinystories(source: CorpusSource) -> tuple[str, str, str]:
    if location := os.environ.get(DATA_VARIABLE):
        return _read_files(find_tinystories(Path(location)), source)
    raw = {split: _hub_prefix(split, size) for split, size in _sizes(source).items()}
    return (*_decode(raw, _HUB_FILES, source), "roneneldan/TinyStories")


_TEXTS = {"tinystories_lite": _lite, "tinystories": _tinystories, "text": _text_files}


def _sizes(source: CorpusSource) -> dict[str, int | None]:
    return {"train": source.train_bytes, "validation": source.validation_bytes}


def find_tinystories(location: Path) -> dict[str, Path]:
    """The train and validation file in a folder: named `*tinystories*train*` and `*...*valid*`.

    Of several the shortest name is taken, so the plain text comes before its derivatives.
    """
    if not location.is_dir():
        raise UserError(
            f"{DATA_VARIABLE}={location}: expected a folder with the TinyStories texts, "
            f"for instance {_HUB_FILES['train']} and {_HUB_FILES['validation']}"
        )
    found = {}
    for split, word in (("train", "train"), ("validation", "valid")):
        pattern = re.compile(rf"tinystories.*{word}.*\.txt", re.IGNORECASE)
        files = [path for path in location.iterdir() if pattern.fullmatch(path.name)]
        if not files:
            raise UserError(
                f"{DATA_VARIABLE}={location}: expected a file tinystories*{word}*.txt, found none"
            )
        found[split] = min(files, key=lambda path: (len(path.name), path.name))
    return found


def _read_files(files: Mapping[str, Path], source: CorpusSource) -> tuple[str, str, str]:
    names = {
        split: f"{split}_file {file}" if source.corpus == "text" else str(file)
        for split, file in files.items()
    }
    raw = {
        split: _read_prefix(files[split], names[split], num_bytes)
        for split, num_bytes in _sizes(source).items()
    }
    return (*_decode(raw, names, source), f"{files['train']} and {files['validation']}")


def _read_prefix(path: Path, name: str, num_bytes: int | None) -> bytes:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # `read` reserves what it is asked for
            return file.read(size if num_bytes is None else min(size, num_bytes))
    except (OSError, ValueError) as error:
        raise UserError(f"{name}: cannot be read: {reason(error)}") from error


def _cached_prefix(split: str, num_bytes: int | None) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "triplu_ray" / f"tinystories-{split}-{num_bytes or 'all'}.txt"


def _hub_prefix(split: str, num_bytes: int | None) -> bytes:
    """The opening of a file on the hub, kept in the cache; only as much as needed is fetched."""
    cached = _cached_prefix(split, num_bytes)
    if not cached.exists():
        address = f"{_HUB_FOLDER}/{_HUB_FILES[split]}"
        try:
            content = read_lines(address, num_bytes)
        except Exception as error:  # whatever the hub's client and its transport raise
            raise UserError(
                f"corpus tinystories: cannot fetch {address} "
                f"({type(error).__name__}: {reason(error)}); "
                f"set {DATA_VARIABLE} to a folder that holds its texts"
            ) from error
        try:
            write_atomically(cached, content)
        except OSError as error:
            raise UserError(f"cache {cached}: cannot be written: {reason(error)}") from error
    return _read_prefix(cached, f"cache {cached}", num_bytes)


def read_lines(address: str, num_bytes: int | None) -> bytes:
    """Stream a text file, local or on the hub, through `datasets` up to so many bytes.

    Byte for byte what the file holds, but for carriage returns: `\\r\\n` and `\\r` become `\\n`.
    """
    import datasets

    rows = datasets.load_dataset(
        "text",
        data_files={"train": address},
        split="train",
        streaming=True,
        keep_linebreaks=True,
    )
    content = bytearray()
    lines: Iterator[dict[str, str]] = iter(rows)
    for line in lines:
        content += line["text"].encode()
        if num_bytes is not None and len(content) >= num_bytes:
            break
    return bytes(content[:num_bytes])


def _decode(
    raw: Mapping[str, bytes], names: Mapping[str, str], source: CorpusSource
) -> tuple[str, str]:
    train, validation = (
        _decode_prefix(raw[split], names[split], f"{split}_bytes", size)
        for split, size in _sizes(source).items()
    )
    return train, validation


def _decode_prefix(content: bytes, name: str, key: str, num_bytes: int | None) -> str:
    """Decode, dropping a character cut at the end, and cut after the last newline."""
    if num_bytes is not None and len(content) < num_bytes:
        raise UserError(
            f"{key}: expected at most the {len(content):,} of {name}, got {num_bytes:,}"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            raise UserError(f"{name}: expected UTF-8 text, byte {error.start} is not") from error
        text = content[: error.start].decode()
    text = text[: text.rfind("\n") + 1]
    if not text:
        raise UserError(f"{key}: expected at least one line of {name}, found none")
    return text
