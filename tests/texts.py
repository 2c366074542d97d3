"""Texts as files, for the tests of corpora."""

from pathlib import Path

from triplu_ray.corpus import CorpusSource

TRAIN, VALIDATION = "abba\ncab\n", "abxe\u0301c\n"


def source_of(
    folder: Path,
    train: str | bytes = TRAIN,
    validation: str | bytes = VALIDATION,
    train_bytes: int | None = None,
    validation_bytes: int | None = None,
) -> CorpusSource:
    """Both texts as files in a folder."""
    files: dict[str, str] = {}
    folder.mkdir(exist_ok=True)
    for name, text in (("train", train), ("validation", validation)):
        file = folder / f"{name}.txt"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        files[name] = str(file)
    return CorpusSource("text", train_bytes, validation_bytes, files["train"], files["validation"])
