"""The openings of text files, and a folder for what took long to fetch or to make."""

import os
from pathlib import Path

from triplu_ray.errors import UserError, reason
from triplu_ray.files import write_atomically


def read_opening(path: Path, name: str, num_bytes: int | None) -> bytes:
    """The first bytes of a file, or all of them; UserError, which begins with `name`, if not."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # `read` reserves what it is asked for
            return file.read(size if num_bytes is None else min(size, num_bytes))
    except (OSError, ValueError) as error:
        raise UserError(f"{name}: cannot be read: {reason(error)}") from error


def cached(name: str) -> Path:
    """Where a file of the cache lies, whether it is there or not."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "triplu_ray" / name


def keep(path: Path, content: bytes) -> None:
    """Write a file of the cache; UserError if the cache cannot be written."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"cache {path}: cannot be written: {reason(error)}") from error
