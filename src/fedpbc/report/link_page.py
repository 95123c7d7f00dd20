"""Statistics of links as a file: a page, a picture or JSON."""

from __future__ import annotations

import json
from pathlib import Path

from fedpbc.errors import InputError
from fedpbc.experiments.link_query import LinkReport
from fedpbc.report.link_statistics import (
    link_figure,
    link_page_tables,
    plot_links,
    sentences_table,
)
from fedpbc.report.page import check_report_path, write_page
from fedpbc.storage.atomic import write_atomically

__all__ = ["check_link_report_path", "write_link_report"]

KINDS = (".html", ".png", ".svg", ".json")


def check_link_report_path(path: Path | None) -> None:
    """Raise before the work begins if the file cannot be written."""
    if path is None:
        return
    if path.suffix not in KINDS or path.is_dir():
        raise InputError("--out", str(path), "a file that ends in .html, .png, .svg or .json")
    if not path.parent.is_dir():
        raise InputError("--out", str(path), "in a folder that exists")
    if path.suffix == ".html":
        check_report_path(path)


def write_link_report(report: LinkReport, path: Path) -> None:
    """Write what a report says in the format that the file's name ends in."""
    statistics = report.statistics
    title = f"Links: {report.name}"
    if path.suffix == ".json":
        write_atomically(path, json.dumps(report.as_dict(), allow_nan=False) + "\n")
    elif path.suffix in (".png", ".svg"):
        plot_links(statistics, path, title)
    else:
        tables = [
            sentences_table("The links in words", report.sentences),
            *link_page_tables(statistics),
        ]
        figure = link_figure(statistics, title)
        write_page(path, [], title=title, tables=tables, pictures=[("links", figure)])
