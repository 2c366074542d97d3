"""How commands end and where they print: data on stdout, exit codes."""

import json
import sys
from typing import Any

from rich.console import Console

EXIT_DONE, EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED = 0, 1, 2, 130


def stdout() -> Console:
    """A terminal's own width, or one that holds a table whole where there is none."""
    width = None if sys.stdout.isatty() else 160
    return Console(highlight=False, markup=False, emoji=False, width=width)


def print_json(content: Any) -> None:
    """One object on stdout: a line for a program, indented for a person."""
    indent = 1 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(content, indent=indent, allow_nan=False) + "\n")
    sys.stdout.flush()
