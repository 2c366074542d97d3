"""A report in the terminal."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from triplu_ray.report.model import Report, Table


def print_report(report: Report, console: Console) -> None:
    """Headline, warnings and tables; columns that do not fit, from the right, are left out."""
    console.print(Text(report.space, style="bold"))
    for line in report.headline:
        console.print(Text(line))
    for line in report.warnings:
        console.print(Text(f"warning: {line}", style="yellow"))
    for section in report.sections:
        if section.text:
            console.print()
        for line in section.text:
            console.print(Text(line))
        for table in section.tables:
            console.print()
            _print_table(table, console)


def _print_table(table: Table, console: Console) -> None:
    count = len(table.columns)
    while count > 2 and _width(_rich_table(table, count), console) > console.width:
        count -= 1
    console.print(_rich_table(table, count))
    left_out = [column.heading for column in table.columns[count:]]
    notes = table.notes()
    if left_out:
        notes = [*notes, f"Left out for want of width: {', '.join(left_out)}."]
    for note in notes:
        console.print(Text(note, style="dim"))


def _rich_table(table: Table, count: int) -> RichTable:
    grid = RichTable(
        title=Text(table.title, style="bold"),
        title_justify="left",
        box=None,
        pad_edge=False,
        show_header=any(column.heading for column in table.columns),
    )
    for column in table.columns[:count]:
        grid.add_column(
            Text(column.heading, style="dim"),
            justify="right" if column.spec else "left",
            overflow="fold",
        )
    for row in table.rows():
        grid.add_row(*(Text(cell) for cell in row[:count]))
    return grid


def _width(table: RichTable, console: Console) -> int:
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum
