"""Texts as files, and tokens as text again, for the tests of corpora."""

from pathlib import Path
from typing import Any

from triplu_ray.corpus import Corpus, CorpusSource

TRAIN, VALIDATION = "abba\ncab\n", "abxe\u0301c\n"


def source_of(
    folder: Path,
    train: str | bytes = TRAIN,
    validation: str | bytes = VALIDATION,
    train_bytes: int | None = None,
    validation_bytes: int | None = None,
) -> CorpusSource:
    """Both texts as files in a folder."""
    files = []
    folder.mkdir(exist_ok=True)
    for name, text in (("train", train), ("validation", validation)):
        file = folder / f"{name}.txt"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        files.append(str(file))
    return CorpusSource("text", train_bytes, validation_bytes, *files)


def decode(corpus: Corpus, tokens: Any) -> str:
    """What the tokens of a split say."""
    return "".join(corpus.vocabulary[token] for token in tokens)
