"""Where the text of each split comes from: generated, files, a folder, the hub."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from triplu_ray.corpus import hub
from triplu_ray.corpus.files import read_opening
from triplu_ray.corpus.source import DATA_VARIABLE, CorpusName, CorpusSource
from triplu_ray.errors import UserError
from triplu_ray.lite import generate_stories

_MAX_GENERATED_BYTES = 1 << 30
"""More would take many minutes and gigabytes before the first step."""
_SEEDS = {"train": 1, "validation": 2, "heldout": 3}
"""Of generated texts."""


class Texts(NamedTuple):
    """What a corpus says, in whole lines; `origin` tells people where it comes from."""

    train: str
    validation: str
    heldout: str | None
    origin: str


def read_texts(source: CorpusSource) -> Texts:
    """Read, fetch or generate the texts.

    Raises UserError if a file is missing, too short, or not UTF-8, or the hub cannot be reached.
    """
    if source.corpus in ("tinystories_lite", "arithmetic_lite"):
        return _generated(source)
    return _stored(source, _place(source))


def are_at_hand(source: CorpusSource) -> bool:
    """Whether `read_texts` would fetch nothing."""
    if source.corpus not in ("tinystories", "wikitext2") or os.environ.get(DATA_VARIABLE):
        return True
    return all(
        hub.is_fetched(source.corpus, split, size) for split, size in _openings(source).items()
    )


def _generated(source: CorpusSource) -> Texts:
    if source.train_bytes is None or source.validation_bytes is None:
        raise UserError(
            f"corpus {source.corpus}: expected train_bytes and validation_bytes, as it has no end"
        )
    sizes = {split: size for split, size in source.sizes.items() if size is not None}
    if max(sizes.values()) > _MAX_GENERATED_BYTES:
        keys = listed(f"{split}_bytes" for split in sizes)
        raise UserError(
            f"corpus {source.corpus}: expected {keys} of at most {_MAX_GENERATED_BYTES:,}"
        )
    generate = _generator(source.corpus)
    texts = {split: generate(size, _SEEDS[split]) for split, size in sizes.items()}
    for split, text in texts.items():
        if not text:
            raise UserError(f"{split}_bytes: expected more, the first line of the text is longer")
    return Texts(
        texts["train"],
        texts["validation"],
        texts.get("heldout"),
        f"{source.corpus} (generated)",
    )


def _generator(corpus: CorpusName) -> Callable[[int, int], str]:
    """What makes a text of so many bytes from a seed."""
    if corpus == "tinystories_lite":
        return generate_stories
    from triplu_ray.arithmetic import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        generate_arithmetic,
    )

    generate: Callable[[int, int], str] = generate_arithmetic
    return generate


@dataclass(frozen=True)
class _Place:
    """Where texts lie: their names in error lines, and what reads the opening of one."""

    names: Mapping[str, str]
    read: Callable[[str, int | None], bytes]
    origin: str


def _place(source: CorpusSource) -> _Place:
    if source.corpus == "text":
        files = {split: Path(file) for split, file in source.files.items() if file is not None}
        if not {"train", "validation"} <= files.keys():
            raise UserError("corpus text: expected train_file and validation_file")
        return _local_place(files, {split: f"{split}_file {file}" for split, file in files.items()})
    if location := os.environ.get(DATA_VARIABLE):
        files = find_texts(source.corpus, Path(location))
        return _local_place(files, {split: str(file) for split, file in files.items()})

    def fetch(split: str, num_bytes: int | None) -> bytes:
        return hub.fetch_opening(source.corpus, split, num_bytes)

    if source.corpus == "tinystories":
        return _Place(hub.TINYSTORIES_FILES, fetch, hub.TINYSTORIES)
    names = {split: f"{hub.WIKITEXT2} {name}" for split, name in hub.WIKITEXT2_SPLITS.items()}
    return _Place(names, fetch, f"{hub.WIKITEXT2} {hub.WIKITEXT2_CONFIG}")


def _local_place(files: Mapping[str, Path], names: Mapping[str, str]) -> _Place:
    return _Place(
        names,
        lambda split, num_bytes: read_opening(files[split], names[split], num_bytes),
        listed(files.values()),
    )


# Name patterns of a folder's files, as a regular expression and for people, and a word by split.
_FOLDER_NAMES: dict[str, tuple[str, str, dict[str, str]]] = {
    "tinystories": (
        r"tinystories.*{}.*\.txt",
        "tinystories*{}*.txt",
        {"train": "train", "validation": "valid"},
    ),
    "wikitext2": (
        r".*wikitext[-_]?2.*{}.*\.(txt|raw)",
        "*wikitext2*{}*.txt or .raw",
        {"train": "train", "validation": "valid", "heldout": "test"},
    ),
}


def find_texts(corpus: CorpusName, location: Path) -> dict[str, Path]:
    """The files in a folder by split, for instance `TinyStories-train.txt`.

    Of several the shortest name is taken, so the plain text comes before its derivatives.
    """
    expression, pattern, words = _FOLDER_NAMES[corpus]
    if not location.is_dir():
        examples = " and ".join(pattern.format(word) for word in words.values())
        raise UserError(
            f"{DATA_VARIABLE}={location}: expected a folder with the texts of {corpus}: {examples}"
        )
    found = {}
    for split, word in words.items():
        named = re.compile(expression.format(word), re.IGNORECASE)
        files = [path for path in location.iterdir() if named.fullmatch(path.name)]
        if not files:
            raise UserError(
                f"{DATA_VARIABLE}={location}: expected a file {pattern.format(word)}, found none"
            )
        found[split] = min(files, key=lambda path: (len(path.name), path.name))
    return found


def _openings(source: CorpusSource) -> dict[str, int | None]:
    """How much is read of each stored text; of TinyStories the held-out text is the second part."""
    sizes = source.sizes
    if source.corpus == "tinystories" and source.heldout_bytes is not None:
        assert source.validation_bytes is not None  # CorpusSource.check
        sizes["validation"] = source.validation_bytes + source.heldout_bytes
    if source.corpus != "wikitext2" and source.heldout_file is None:
        del sizes["heldout"]
    return sizes


def _stored(source: CorpusSource, place: _Place) -> Texts:
    names = dict(place.names)
    contents = {split: place.read(split, size) for split, size in _openings(source).items()}
    boundary = 0
    if source.corpus == "tinystories" and source.heldout_bytes is not None:
        boundary = source.validation_bytes or 0
        both = contents["validation"]
        contents |= {"validation": both[:boundary], "heldout": both[boundary:]}
        names["heldout"] = f"{names['validation']} after validation_bytes"
    texts = {
        split: decode_lines(
            content,
            names[split],
            f"{split}_bytes",
            source.sizes[split],
            boundary if split == "heldout" else 0,
        )
        for split, content in contents.items()
    }
    return Texts(texts["train"], texts["validation"], texts.get("heldout"), place.origin)


def decode_lines(
    content: bytes, name: str, key: str, num_bytes: int | None, begins_at: int = 0
) -> str:
    """The whole lines of a stretch of a text; a line cut at either end is dropped.

    `begins_at` is the stretch's place in its file. Raises UserError, which names key and text, if
    it is shorter than `num_bytes`, not UTF-8, or holds no whole line.
    """
    if num_bytes is not None and len(content) < num_bytes:
        raise UserError(
            f"{key}: expected at most the {len(content):,} of {name}, got {num_bytes:,}"
        )
    # A newline is never part of another character, so lines can be told before decoding.
    first = content.find(b"\n") + 1 or len(content) if begins_at else 0
    last = content.rfind(b"\n") + 1
    try:
        text = content[first:last].decode()
    except UnicodeDecodeError as error:
        place = begins_at + first + error.start
        raise UserError(f"{name}: expected UTF-8 text, byte {place} is not") from error
    if not text:
        raise UserError(f"{key}: expected at least one line of {name}, found none")
    return text


def listed(items: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = map(str, items)
    return " and ".join([", ".join(first), last] if first else [last])
