"""Texts that come as GPT-2 tokens: the FineWeb-10B shards of modded-nanogpt (`*.bin`).

A shard is a header of 256 little-endian 32-bit integers, of which the first three are a magic
number, the version and the number of tokens, and then the tokens, 16 bits each.
"""

from pathlib import Path

import numpy as np

from triplu_ray.corpus.source import GPT2_VOCAB_SIZE
from triplu_ray.corpus.tokenizers import Tokens
from triplu_ray.errors import UserError, reason

MAGIC, VERSION = 20240520, 1
_HEADER_BYTES = 256 * 4
TOKEN_BYTES = 2


def find_shards(pattern: str) -> list[Path]:
    """Files of a path whose last part may be a glob pattern, in order of their names."""
    path = Path(pattern)
    try:
        return [path] if path.exists() else sorted(path.parent.glob(path.name))
    except (ValueError, OSError):  # no name at all, a null byte, too long
        return []


def read_shards(split: str, pattern: str, num_bytes: int | None) -> Tokens:
    """The tokens of all shards in order, or a prefix of so many bytes, two a token.

    A single shard stays on disk, as a memory map; several are joined in memory, once. Raises
    UserError for a shard that is none, is damaged or cut off, and for tokens that GPT-2 does not
    have.
    """
    shards = find_shards(pattern)
    if not shards:
        raise UserError(f"{split}_file {pattern}: expected at least one shard, found none")
    wanted = None if num_bytes is None else num_bytes // TOKEN_BYTES
    parts: list[Tokens] = []
    found = 0
    for shard in shards:
        if wanted is not None and found >= wanted:
            break
        part = _read_shard(shard, f"{split}_file {shard}")
        part = part if wanted is None else part[: wanted - found]
        largest = int(part.max(initial=0))
        if largest >= GPT2_VOCAB_SIZE:
            raise UserError(
                f"{split}_file {shard}: expected tokens below {GPT2_VOCAB_SIZE:,}, got {largest:,}"
            )
        parts.append(part)
        found += len(part)
    if wanted is not None and found < wanted:
        raise UserError(
            f"{split}_bytes: expected at most the {found * TOKEN_BYTES:,} of {split}_file "
            f"{pattern} ({TOKEN_BYTES} bytes a token), got {num_bytes:,}"
        )
    if not found:
        raise UserError(f"{split}_bytes: expected at least one token of {split}_file {pattern}")
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _read_shard(path: Path, name: str) -> Tokens:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            opening = file.read(_HEADER_BYTES)
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {reason(error)}") from error
    if size < _HEADER_BYTES:
        raise UserError(f"{name}: expected a header of {_HEADER_BYTES:,} bytes, got {size:,} bytes")
    header = np.frombuffer(opening, "<i4")
    magic, version, num_tokens = header[:3].tolist()
    for what, expected, got in (("magic number", MAGIC, magic), ("version", VERSION, version)):
        if got != expected:
            raise UserError(f"{name}: expected a token shard with {what} {expected}, got {got}")
    expected_size = _HEADER_BYTES + TOKEN_BYTES * num_tokens
    if size != expected_size:
        raise UserError(
            f"{name}: expected {expected_size:,} bytes for the {num_tokens:,} tokens that its "
            f"header counts, got {size:,}" + ": truncated" * (size < expected_size)
        )
    if not num_tokens:
        return np.zeros(0, np.uint16)
    return np.memmap(path, "<u2", mode="r", offset=_HEADER_BYTES, shape=(num_tokens,))
