"""The one exception that a user is meant to read."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what was asked: one clear line, exit code 2."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Name the nearest known word, or all of them: the tail of an error line."""
    known = sorted(known)
    nearest = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
