import io
import json
import sys
from typing import Any

import pytest

from triplu_ray import output


class Terminal(io.StringIO):
    """What is printed, as if to a person."""

    def isatty(self) -> bool:
        return True


CONTENT: dict[str, Any] = {"name": "tiny", "losses": [1.5, None]}


@pytest.mark.parametrize(("screen", "lines"), [(io.StringIO, 1), (Terminal, 7)])
def test_json_is_a_line_for_a_program_and_indented_for_a_person(
    monkeypatch: pytest.MonkeyPatch, screen: type[io.StringIO], lines: int
) -> None:
    printed = screen()
    monkeypatch.setattr(sys, "stdout", printed)
    output.print_json(CONTENT)
    text = printed.getvalue()
    assert json.loads(text) == CONTENT
    assert text.count("\n") == lines


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_json_does_not_know_is_not_printed(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        output.print_json({"loss": number})


@pytest.mark.parametrize(("screen", "width"), [(io.StringIO, 160), (Terminal, 100)])
def test_tables_are_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, screen: type[io.StringIO], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stdout", screen())
    assert output.stdout().width == width
