"""A report as data, before anyone decides whether it is read in a terminal, a page or a program."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from triplu_ray.report.style import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

MAX_ROWS = 100
"""Longer tables are cut in print; report.json has every row."""
MAX_NAMES = 6
"""How many runs or variants a line names before it only counts."""

NULL = "\N{EN DASH}"


def number_text(value: Any, spec: str) -> str:
    """A number by a format specification, or by `si` as 7.85 M; text as it is; a dash for null."""
    if value is None or value != value:
        return NULL
    if isinstance(value, str):
        return value
    if spec.endswith("si"):
        from matplotlib.ticker import EngFormatter

        sign = "+" if spec.startswith("+") and value > 0 else ""
        return sign + EngFormatter(places=2)(value).replace("\N{MINUS SIGN}", "-")
    return format(value, spec)


def axis_words(axis: str) -> str:
    """A configuration key in words: layers, learning rate."""
    return axis.removeprefix("num_").replace("_", " ")


def at(text: object, setting: object) -> str:
    """What is said of a setting, where it has a name."""
    return f"{text} at {setting}" if setting else f"{text}"


def named(names: Iterable[object]) -> str:
    """The first few names, and how many more there are."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - MAX_NAMES} more" if len(texts) > MAX_NAMES else ""
    return ", ".join(texts[:MAX_NAMES]) + more


def by_itself(intervals: int) -> str:
    """What the note of so many intervals, or verdicts from them, must say."""
    if intervals < 2:
        return ""
    return f" Each interval stands by itself, not corrected for the {intervals} comparisons."


@dataclass(frozen=True)
class Column:
    """One printed column: the values of `keys`, joined; null if one of them is.

    `spec` is that of `number_text`; without it the column is text.
    """

    heading: str
    keys: tuple[str, ...]
    spec: str = ""
    join: str = " to "

    def text(self, row: Mapping[Any, Any]) -> str:
        """The cell of a row; a dash for null."""
        values = [row[key] for key in self.keys]
        if any(value is None or value != value for value in values):
            return NULL
        return self.join.join(number_text(value, self.spec) for value in values)


@dataclass(frozen=True)
class Table:
    """Rows to print and, as `raw` where they differ, the numbers behind them for report.json."""

    name: str
    title: str
    frame: pd.DataFrame
    columns: Sequence[Column]
    note: str = ""
    raw: pd.DataFrame | None = None

    def rows(self) -> list[list[str]]:
        """The cells as text, of the first MAX_ROWS rows."""
        records = self.frame.head(MAX_ROWS).to_dict("records")
        return [[column.text(row) for column in self.columns] for row in records]

    def notes(self) -> list[str]:
        """What stands below the table."""
        hidden = len(self.frame) - MAX_ROWS
        cut = [f"{hidden} more rows are in report.json."] if hidden > 0 else []
        return [*cut, self.note] if self.note else cut


@dataclass(frozen=True)
class Figure:
    """A figure that is drawn when first asked for, as PNG and as SVG."""

    name: str
    caption: str
    draw: "Callable[[], MatplotlibFigure]"

    @cached_property
    def images(self) -> tuple[bytes, str]:
        """The PNG's bytes and the SVG's text."""
        return render(self.draw)


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it, in this order."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Report:
    """Everything that is said about a space; `record` is its merged plan, as the store keeps it.

    `twin_ids` are runs of no plan of the space that the report looks at too.
    """

    space: str
    description: str
    headline: Sequence[str]
    warnings: Sequence[str]
    sections: Sequence[Section]
    run_ids: Sequence[str] = ()
    twin_ids: Sequence[str] = ()
    record: Mapping[str, Any] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        """All tables in order."""
        return [table for section in self.sections for table in section.tables]

    def figures(self) -> list[Figure]:
        """All figures in order."""
        return [figure for section in self.sections for figure in section.figures]
