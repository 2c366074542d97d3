"""How figures look: one palette, quiet axes, the same bytes for the same data."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # loaded by what draws: reports without figures do not wait a second for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

INK = "#1f2328"
PAPER = "#ffffff"
BASELINE = "#6e7781"
# Okabe and Ito's colours for all kinds of colour vision, without black and the pale yellow.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31"]
OTHERS = "#9aa0a6"
"""Of variants that figures show without room for a colour of their own."""
FIRST = ["triplu", "quad_prod", "double_prod"]
"""Variants that come first in the palette, so that they look the same in every report."""

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "figure.facecolor": PAPER,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.alpha": 0.25,
    "grid.color": BASELINE,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "path",
    "svg.hashsalt": "triplu-ray",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": INK,
    "ytick.labelsize": 8.5,
}


def render(draw: Callable[[], Figure]) -> tuple[bytes, str]:
    """Draw a figure in the house style; PNG bytes and SVG text, without dates and versions."""
    import matplotlib as mpl

    png, svg = io.BytesIO(), io.StringIO()
    with mpl.rc_context(STYLE):
        figure = draw()
        figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
        figure.set_layout_engine("none")  # the layout is done, and costs as much as drawing
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()


def inline_svg(svg: str, name: str) -> str:
    """An SVG for a page: no prolog, no background, ink in the colour of the page's text.

    Ids begin with `name`, so that several fit into one page.
    """
    svg = svg[svg.index("<svg") :]
    for reference in (' id="', 'href="#', "url(#"):
        svg = svg.replace(reference, f"{reference}{name}-")
    return svg.replace(f"fill: {PAPER}", "fill: none").replace(INK, "currentColor")


def colours(labels: Iterable[str], baseline: str | None) -> dict[str, str]:
    """A colour for each label, in order; grey for the baseline, a gradient for very many."""
    variants = sorted(dict.fromkeys(label for label in labels if label != baseline), key=_place)
    if len(variants) <= len(COLOURS):
        chosen = dict(zip(variants, COLOURS, strict=False))
    else:
        chosen = dict(zip(variants, gradient(len(variants) + 1), strict=False))
    return chosen if baseline is None else {baseline: BASELINE, **chosen}


def gradient(count: int) -> list[str]:
    """So many colours from dark to light, for what has an order."""
    import matplotlib as mpl

    shades = mpl.colormaps["viridis"].resampled(count)
    return [mpl.colors.to_hex(shades(place)) for place in range(count)]


def _place(label: str) -> int:
    return FIRST.index(label) if label in FIRST else len(FIRST)


def panels(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes in rows of at most `columns`; sizes in inches a panel."""
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(width * columns, 4.5), height * rows + 0.35))
    return figure, [figure.add_subplot(rows, columns, 1 + place) for place in range(count)]


def step_ticks(ax: Axes) -> None:
    """A few ticks along x, written as 2k or 4M."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def line_key(
    colour: str, label: str, width: float = 1.2, style: Literal["-", "--", ":"] = "-"
) -> Line2D:
    """A line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, label=label, linewidth=width, linestyle=style)
