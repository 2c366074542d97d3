"""Reports: tables and figures from a store, for the terminal, Markdown, HTML and programs."""

from triplu_ray.report.build import build_report, space_names
from triplu_ray.report.markdown import to_markdown
from triplu_ray.report.model import Report
from triplu_ray.report.terminal import print_report
from triplu_ray.report.webpage import to_html
from triplu_ray.report.write import FORMATS, report_json, write_report

__all__ = [
    "FORMATS",
    "Report",
    "build_report",
    "print_report",
    "report_json",
    "space_names",
    "to_html",
    "to_markdown",
    "write_report",
]
