"""A report as one HTML file: its Markdown rendered, figures and style inside."""

import html
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererProtocol
from markdown_it.token import Token

from triplu_ray.report.markdown import to_markdown
from triplu_ray.report.model import Report
from triplu_ray.report.style import inline_svg

STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --soft: #59636e; --line: #d1d9e0;
  --page: #ffffff; --shade: #f6f8fa; --note: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --line: #3d444d;
  --page: #0d1117; --shade: #151b23; --note: #d29922; } }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1, h2, h3 { line-height: 1.25; font-weight: 600; text-wrap: balance; }
h1 { font-size: 1.9rem; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; margin: 2.75rem 0 1rem; padding-bottom: .3rem;
  border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.75rem 0 .6rem; }
p { max-width: 46rem; }
h1 + p, table + p, .figure-line + p { color: var(--soft); }
p strong { color: var(--text); }
table + p, .figure-line + p { font-size: .86rem; line-height: 1.45; margin-top: .4rem; }
table { display: block; max-width: max-content; overflow-x: auto; border-collapse: collapse;
  font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem .7rem; border-bottom: 1px solid var(--line); vertical-align: baseline; }
th { color: var(--soft); font-weight: 500; text-align: left; vertical-align: bottom; }
td { white-space: nowrap; }
td:last-child { white-space: normal; }
tbody tr:hover { background: var(--shade); }
h2#warnings + ul { border-left: 3px solid var(--note); padding-left: 1.5rem; margin-left: 0; }
li { max-width: 46rem; margin: .25rem 0; }
.figure-line { max-width: none; margin: 1.75rem 0 0; }
.figure-line svg { max-width: 100%; height: auto; }
"""


def to_html(report: Report) -> str:
    """The report as a page that needs no other file."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    images = {
        f"figures/{figure.name}.png": inline_svg(figure.images[1], figure.name)
        for figure in report.figures()
    }

    def image(
        _renderer: RendererProtocol, tokens: Sequence[Token], place: int, _options: Any, _env: Any
    ) -> str:
        token = tokens[place]
        label = html.escape(token.content)
        return f'<span role="img" aria-label="{label}">{images[str(token.attrs["src"])]}</span>'

    markdown.add_render_rule("image", image)
    body = markdown.render(to_markdown(report))
    body = body.replace("<p><span role", '<p class="figure-line"><span role')
    body = body.replace("<h2>Warnings</h2>", '<h2 id="warnings">Warnings</h2>')
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{html.escape(report.space)}</title>
<style>{STYLE}</style>
</head>
<body><main>
{body}</main></body>
</html>
"""
