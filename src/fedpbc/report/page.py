"""The report: one HTML page about any runs, with everything in it; it opens from disk.

Text that comes from files is escaped wherever it goes, and the page may load and send nothing.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError, Verbatim
from fedpbc.experiments.run_directory import REPORT_MARK, is_report
from fedpbc.report.groups import RunGroup, grouped
from fedpbc.report.load import ShownRun, read_runs
from fedpbc.report.page_data import chart_data, comparison_of
from fedpbc.report.page_sections import group_section, toolbar
from fedpbc.report.page_tables import TableCell, sortable_table
from fedpbc.report.style import looks_of
from fedpbc.storage.atomic import write_atomically

__all__ = ["PageTable", "check_place", "page_of", "write_page"]

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
"""The page may use what is in it, and nothing else."""


@dataclass(frozen=True)
class PageTable:
    """A table that a page begins with; it can be sorted.

    What stands in it is text, or a :class:`TableCell` of the kind «text», «first» or «second».

    Example:
        >>> PageTable("Table 2", ["algorithm", "15 %"], [["fedpbc", "150"]]).notes
        ()
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | TableCell]]
    notes: Sequence[str] = ()


def write_page(
    path: Path,
    runs: Sequence[Path],
    *,
    title: str,
    commands: Sequence[str] = (),
    notes: Sequence[str] = (),
    tables: Sequence[PageTable] = (),
    pictures: Sequence[Path] = (),
    live: int = 0,
) -> None:
    """Write a page about run folders, finished or not.

    Args:
        path: of the page.
        runs: run folders; told apart by what they share.
        title: of the page.
        commands: how to make all of it again.
        notes: what a reader must know first.
        tables: come before everything else.
        pictures: PNG files, put into the page.
        live: after how many seconds the page reads itself again; 0: never.

    Example:
        >>> import tempfile
        >>> from fedpbc.experiments.configuration import Config
        >>> from fedpbc.experiments.run import start_run
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = start_run(Config.from_dict({"data": "digits", "clients": 5, "rounds": 2}),
        ...               folder / "run")
        >>> write_page(folder / "page.html", [folder / "run"], title="A first run")
        >>> "A first run" in (folder / "page.html").read_text(encoding="utf-8")
        True
    """
    check_place(path)
    text = page_of(
        read_runs(runs),
        title=title,
        commands=commands,
        notes=notes,
        tables=tables,
        pictures=pictures,
        live=live,
    )
    write_atomically(path, text)


def check_place(path: Path) -> None:
    """Raise unless a page may be written there: nobody's other file is lost to it."""
    if path.is_dir():
        raise InputError("out", str(path), "a file, such as report.html; this is a folder")
    if not path.parent.is_dir():
        raise InputError("out", str(path), "a file in a folder that exists")
    if path.exists() and not is_report(path):
        given = Verbatim(f"{path}, which is not a report")
        raise InputError("out", given, "a new file, or an older report")


def page_of(
    runs: Sequence[ShownRun],
    *,
    title: str,
    commands: Sequence[str] = (),
    notes: Sequence[str] = (),
    tables: Sequence[PageTable] = (),
    pictures: Sequence[Path] = (),
    live: int = 0,
) -> str:
    """The whole page as text."""
    groups = grouped(runs)
    sections, data = [], []
    for number, group in enumerate(groups):
        comparison, so_far = comparison_of(group)
        rows = comparison.rows()
        charts = chart_data(group, comparison, rows, len(groups))
        charts["aided"] = [
            a for a in comparison.algorithms if comparison.cost_of(a)["memory_aided"]
        ]
        data.append(charts)
        sections.append(group_section(number, group, comparison, rows, so_far, charts))
    names = {run.algorithm for group in groups for run in group.runs}
    content = {"live": live, "groups": data, "looks": looks_of(names)}
    body = [
        header(title, runs, groups, live),
        toolbar(data) if data else "",
        "<main>",
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
        left_out(runs, groups),
        *map(leading_table, tables),
        *map(picture, pictures),
        again(commands),
        *sections,
        "</main>",
        f"<footer>Made by fedpbc {escape(version('fedpbc'))}. Everything is in this file.</footer>",
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{REPORT_MARK}">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{asset("page.css")}</style>
</head>
<body>
{chr(10).join(filter(None, body))}
<script type="application/json" id="data">{embedded(content)}</script>
<script>
{asset("echarts.min.js")}</script>
<script>
{asset("page.js")}</script>
</body>
</html>
"""


def asset(name: str) -> str:
    """A file that every page has in it."""
    return (files("fedpbc.report") / "assets" / name).read_text(encoding="utf-8")


def embedded(content: Any) -> str:
    """JSON that can stand in a script element, whatever strings are in it.

    Example:
        >>> embedded({"name": "</script>"})
        '{"name":"\\\\u003c/script>"}'
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # The first would end the element, the others a line of JavaScript.
    for letter in ("<", "\u2028", "\u2029"):
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def header(title: str, runs: Sequence[ShownRun], groups: Sequence[RunGroup], live: int) -> str:
    """What the page is about."""
    finished = sum(run.state == "finished" for run in runs)
    counted = f"{len(runs)} runs" if len(runs) != 1 else "one run"
    done = "all finished" if finished == len(runs) else f"{finished} finished"
    if len(runs) == 1:
        done = runs[0].state
    watched = ""
    if live:
        moment = time.strftime("%H:%M:%S")
        watched = (
            f'<p class="note live">Runs are going on; as of {moment}. '
            f"This page reads itself again every {live} seconds.</p>"
        )
    nav = ""
    if len(groups) > 1:
        items = (
            f'<li><a href="#group-{k}">{escape(group.title)}</a></li>'
            for k, group in enumerate(groups)
        )
        nav = f'<nav aria-label="Groups"><ul>{"".join(items)}</ul></nav>'
    themes = "".join(
        f'<button type="button" value="{name}">{name}</button>'
        for name in ("auto", "light", "dark")
    )
    return (
        f'<header><div><h1>{escape(title)}</h1><p class="dim">{counted}, {done}.</p>{watched}</div>'
        f'<div class="choice" id="choose-theme" role="group" aria-label="Colours">{themes}</div>'
        f"</header>{nav}"
    )


def left_out(runs: Sequence[ShownRun], groups: Sequence[RunGroup]) -> str:
    """Runs that no group has, since nobody can tell what they are."""
    shown = {id(run) for group in groups for run in group.runs}
    known = {(run.algorithm, run.seed) for group in groups for run in group.runs}
    lost = [
        run
        for run in runs
        if id(run) not in shown
        # A copy of one that is shown.
        if run.state in {"damaged", "not begun"} or (run.algorithm, run.seed) not in known
    ]
    if not lost:
        return ""
    items = "".join(
        f"<li><b>{escape(str(run.path))}</b>: {escape(run.state)}"
        f"{': ' + escape(run.note) if run.note not in ('', run.state) else ''}</li>"
        for run in lost
    )
    return f'<div class="note bad">Not shown below:<ul>{items}</ul></div>'


def leading_table(table: PageTable) -> str:
    """A table that the page begins with."""
    rows = [
        [
            cell if isinstance(cell, TableCell) else TableCell(cell, kind="" if k else "text")
            for k, cell in enumerate(row)
        ]
        for row in table.rows
    ]
    notes = "".join(f'<p class="dim">{escape(note)}</p>' for note in table.notes)
    return sortable_table(table.head, rows, title=table.title) + notes


def picture(path: Path) -> str:
    """A PNG in the page."""
    try:
        content = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise InputError("picture", str(path), f"a file ({error.strerror})") from None
    name = escape(path.stem)
    return (
        f'<figure class="wide"><img class="picture" alt="{name}" '
        f'src="data:image/png;base64,{content}"></figure>'
    )


def again(commands: Sequence[str]) -> str:
    """How to make all of it again."""
    if not commands:
        return ""
    return f"<h3>Made with</h3><pre>{escape(chr(10).join(commands))}</pre>"
