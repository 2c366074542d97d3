"""The type of the fixture `command`."""

from collections.abc import Callable

Command = Callable[..., tuple[int, str, str]]
