"""The one exception that a user is meant to read, and the words of its line."""

import difflib
import reprlib
from collections.abc import Iterable

_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 3
_BRIEF.maxstring = _BRIEF.maxother = 100


class UserError(Exception):
    """A mistake in what was asked: one clear line, exit code 2."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Name the nearest known word, or all of them: the tail of an error line."""
    known = sorted(known)
    nearest = difflib.get_close_matches(str(word), known, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"


def brief(value: object) -> str:
    """What was given, as an error line shows it: cut where it is long or nested deeply."""
    return _BRIEF.repr(value)


def reason(error: Exception) -> str:
    """Why something failed, in one line; without the path, which stands before it already."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())
