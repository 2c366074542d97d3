"""Texts of the Hugging Face hub, through `datasets`; only as much as needed is fetched, once."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from triplu_ray.corpus.files import cached, keep, read_opening
from triplu_ray.corpus.source import DATA_VARIABLE, CorpusName
from triplu_ray.errors import UserError, reason

TINYSTORIES = "roneneldan/TinyStories"
TINYSTORIES_FILES = {"train": "TinyStories-train.txt", "validation": "TinyStories-valid.txt"}
WIKITEXT2 = "Salesforce/wikitext"
WIKITEXT2_CONFIG = "wikitext-2-raw-v1"
WIKITEXT2_SPLITS = {"train": "train", "validation": "validation", "heldout": "test"}


def is_fetched(corpus: CorpusName, split: str, num_bytes: int | None) -> bool:
    """Whether this opening is in the cache."""
    return _cached_opening(corpus, split, num_bytes).exists()


def fetch_opening(corpus: CorpusName, split: str, num_bytes: int | None) -> bytes:
    """The opening of a text, from the cache or else from the hub; UserError if out of reach."""
    path = _cached_opening(corpus, split, num_bytes)
    if path.exists():
        return read_opening(path, f"cache {path}", num_bytes)
    fetch: Callable[[int | None], bytes]
    if corpus == "tinystories":
        address = f"hf://datasets/{TINYSTORIES}/{TINYSTORIES_FILES[split]}"
        fetch = partial(read_lines, address)
    else:
        address = f"{WIKITEXT2} {WIKITEXT2_CONFIG} {WIKITEXT2_SPLITS[split]}"
        fetch = partial(read_wikitext, WIKITEXT2, WIKITEXT2_SPLITS[split])
    try:
        content = fetch(num_bytes)
    except Exception as error:  # whatever the hub's client and its transport raise
        raise UserError(
            f"corpus {corpus}: cannot fetch {address} ({type(error).__name__}: {reason(error)}); "
            f"set {DATA_VARIABLE} to a folder that holds its texts"
        ) from error
    keep(path, content)
    return content


def _cached_opening(corpus: CorpusName, split: str, num_bytes: int | None) -> Path:
    return cached(f"{corpus}-{split}-{num_bytes or 'all'}.txt")


def read_lines(address: str, num_bytes: int | None) -> bytes:
    """Stream a text file, local or on the hub, up to so many bytes.

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
    return _joined((row["text"] for row in rows), num_bytes)


def read_wikitext(dataset: str, split: str, num_bytes: int | None) -> bytes:
    """Stream a split of WikiText-2 raw up to so many bytes, as the official file holds it.

    A row is a line with its newline; of blank lines, ` ` and a newline, the rows hold nothing.
    """
    import datasets

    rows: Iterable[Mapping[str, str]] = datasets.load_dataset(
        dataset, WIKITEXT2_CONFIG, split=split, streaming=True
    )
    return _joined((row["text"] or " \n" for row in rows), num_bytes)


def _joined(lines: Iterable[str], num_bytes: int | None) -> bytes:
    content = bytearray()
    for line in lines:
        content += line.encode()
        if num_bytes is not None and len(content) >= num_bytes:
            break
    return bytes(content[:num_bytes])
