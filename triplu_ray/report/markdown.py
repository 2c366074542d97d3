"""A report as Markdown, which GitHub shows and `webpage` turns into HTML."""

import re

from triplu_ray.report.model import Report, Section, Table


def to_markdown(report: Report) -> str:
    """The report; figures are linked as `figures/<name>.png`."""
    blocks = [f"# {escape(report.space)}"]
    blocks += [paragraph(report.description)] if report.description else []
    blocks += [f"**{escape(line)}**" for line in report.headline[:1]]
    blocks += [paragraph(line) for line in report.headline[1:]]
    if report.warnings:
        blocks.append("## Warnings")
        blocks.append("\n".join(f"- {paragraph(line)}" for line in report.warnings))
    for section in report.sections:
        blocks += _section(section)
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """Text that Markdown takes literally, on one line."""
    text = re.sub(r"([\\`*<>\[\]|&~#!])", r"\\\1", " ".join(text.split()))
    # Underscores inside a word, as in quad_prod, mean nothing to Markdown.
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\_", text)


def paragraph(text: str) -> str:
    """Escaped text that begins no list and no rule either."""
    return re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", escape(text))


def _section(section: Section) -> list[str]:
    blocks = [f"## {escape(section.title)}", *map(paragraph, section.text)]
    for table in section.tables:
        if table.title != section.title:
            blocks.append(f"### {escape(table.title)}")
        blocks += [_table(table), *map(paragraph, table.notes())]
    for figure in section.figures:
        image = f"![{figure.name.replace('_', ' ')}](figures/{figure.name}.png)"
        blocks += [image, paragraph(figure.caption)]
    return blocks


def _table(table: Table) -> str:
    header = [escape(column.heading) for column in table.columns]
    rule = [":--" if not column.spec else "--:" for column in table.columns]
    rows = [[escape(cell) for cell in row] for row in table.rows()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))
