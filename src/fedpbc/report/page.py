"""The report: one self-contained HTML page about any runs.

The page is made of the Jinja2 templates in templates/, which escape all text; the page loads and
sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedpbc.errors import InputError
from fedpbc.experiments.paired import check_baseline
from fedpbc.experiments.run_directory import REPORT_MARK, is_report
from fedpbc.report.chart_data import AXES, comparison_of
from fedpbc.report.groups import RunGroup, group_runs
from fedpbc.report.load import LoadedRun, load_runs
from fedpbc.report.page_sections import group_section
from fedpbc.report.page_tables import PageTable
from fedpbc.report.pictures import embedded_figure, embedded_picture
from fedpbc.report.provenance import provenance
from fedpbc.report.run_names import comparison_label
from fedpbc.report.style import view_styles
from fedpbc.simulation.views import DEPLOYABLE, PAPER_ORDER, VIEWS
from fedpbc.storage.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PageTable", "check_report_path", "render_page", "write_page"]

SCRIPTS = tuple(
    f"{name}.js"
    for name in (
        *("state", "text", "style", "lines", "charts", "client_charts", "fleet_charts", "legend"),
        *("export", "zoom", "tables", "page"),
    )
)
"""What draws the charts and moves the tables, in this order, as one script."""


def write_page(
    path: Path,
    runs: Sequence[Path],
    *,
    title: str,
    commands: Sequence[str] = (),
    notes: Sequence[str] = (),
    tables: Sequence[PageTable] = (),
    pictures: Sequence[Path | tuple[str, Figure]] = (),
    baseline: str | None = None,
    live: int = 0,
    labels: Sequence[str] = (),
    stored: bool = True,
) -> list[LoadedRun]:
    """Write a page about runs, finished or not, and return the runs.

    Args:
        runs: run directories; the page groups those that can be compared.
        commands: how to reproduce all of it.
        notes: what a reader must know first.
        tables: shown before the groups.
        pictures: PNG or SVG files to embed, or each a name and a figure; shown after the tables.
        baseline: what differences are to, in groups that have it; by default FedAvg.
        live: the page reloads itself after this many seconds; 0: never.
        labels: of the entries of a comparison that left no plan, as from Python.
        stored: whether the directories stay; if not, the page does not name them.

    Example:
        >>> import tempfile
        >>> from fedpbc.experiments.configuration import Config
        >>> from fedpbc.experiments.start import start_run
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = start_run(Config.from_dict({"data": "digits", "clients": 5, "rounds": 2}),
        ...               folder / "run")
        >>> _ = write_page(folder / "page.html", [folder / "run"], title="A first run")
        >>> "A first run" in (folder / "page.html").read_text(encoding="utf-8")
        True
    """
    check_report_path(path)
    loaded = load_runs(runs, labels=labels, stored=stored)
    groups = group_runs(loaded)
    baseline = _row_name(baseline, groups)
    if baseline is not None:
        compared = [run for group in groups for run in comparison_of(group)[0].runs]
        names = {name for run in compared for name in (run.label, run.algorithm)}
        check_baseline(baseline, sorted(names))
    sections = [group_section(k, group, len(groups), baseline) for k, group in enumerate(groups)]
    content = render_page(
        "page.html.j2",
        title,
        sections,
        live=live,
        run_count=_count_runs(loaded),
        notes=notes,
        omitted_runs=_omitted(loaded, groups),
        tables=tables,
        pictures=[_embedded(picture) for picture in pictures],
        commands=commands,
    )
    write_atomically(path, content)
    return loaded


def render_page(
    template: str,
    title: str,
    sections: Sequence[Mapping[str, Any]],
    *,
    live: int = 0,
    **values: Any,
) -> bytes:
    """Return a page of the layout that all pages share.

    Args:
        sections: of the groups of runs whose charts are on the page.
        live: the page reloads itself after this many seconds; 0: never.
        values: what the template shows besides.
    """
    charts = [section["charts"] for section in sections]
    curves = [curve for chart in charts for curve in chart["curves"].values()]
    views = {view for curve in curves for view in curve["views"]}
    text = (
        page_environment()
        .get_template(template)
        .render(
            report_mark=REPORT_MARK,
            provenance=provenance(),
            scripts=SCRIPTS,
            title=title,
            live=live,
            axes=[(axis, text) for axis, text in AXES.items() if _is_counted(axis, curves)],
            views=[view for view in VIEWS if view in views],
            several_views=_with_several_views(charts),
            values=list(dict.fromkeys(value for chart in charts for value in chart["values"])),
            groups=sections,
            data={
                "live": live,
                "groups": charts,
                "deployable": DEPLOYABLE,
                "paper_order": PAPER_ORDER,
                "view_styles": view_styles(),
            },
            **values,
        )
    )
    # A path may have bytes that are not UTF-8.
    return text.encode(errors="backslashreplace")


def _with_several_views(charts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of curves that can be shown in several views at once."""
    curves = [pair for chart in charts for pair in chart["curves"].items()]
    return list(dict.fromkeys(name for name, curve in curves if len(curve["views"]) > 1))


def _is_counted(axis: str, curves: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether some curve has the axis; runs of earlier versions have no bytes."""
    return any(value is not None for curve in curves for value in curve[axis])


@cache
def page_environment() -> Environment:
    """Return the templates, which escape all text."""
    environment = Environment(
        loader=PackageLoader("fedpbc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # Unsorted: the order of algorithms is the order of their curves.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters["thousands"] = "{:,}".format
    environment.globals["asset"] = asset
    return environment


def asset(name: str) -> str:
    """Return a file that is part of every page."""
    return (files("fedpbc.report") / "assets" / name).read_text(encoding="utf-8")


def _row_name(label: str | None, groups: Sequence[RunGroup]) -> str | None:
    """The name that a page has for a comparison's label: it tells only what differs."""
    for group in groups if label is not None else ():
        for run in group.runs:
            if comparison_label(run) == label:
                return group.label_of(run)
    return label


def check_report_path(path: Path) -> None:
    """Raise unless a page may be written there: only older reports are overwritten."""
    if path.is_dir():
        raise InputError("out", str(path), "a file, such as report.html; this is a folder")
    if not path.parent.is_dir():
        raise InputError("out", str(path), "a file in a folder that exists")
    if path.exists() and not is_report(path):
        raise InputError(
            f"out is {path}, which is not a report: choose a new file or an old report"
        )


def _count_runs(runs: Sequence[LoadedRun]) -> str:
    if not runs:
        return ""
    if len(runs) == 1:
        return f"one run, {runs[0].state}"
    finished = sum(run.state == "finished" for run in runs)
    return f"{len(runs)} runs, {'all' if finished == len(runs) else finished} finished"


def _omitted(runs: Sequence[LoadedRun], groups: Sequence[RunGroup]) -> list[LoadedRun]:
    """Return the runs that are in no group, except copies of runs that are."""
    shown = {run for group in groups for run in group.runs}
    identities = {(run.algorithm, run.seed) for run in shown}
    return [
        run
        for run in runs
        if run not in shown
        if run.state in {"damaged", "not begun"} or (run.algorithm, run.seed) not in identities
    ]


def _embedded(picture: Path | tuple[str, Figure]) -> dict[str, str]:
    """What the template needs of a picture."""
    if isinstance(picture, Path):
        return {"name": picture.stem, "url": embedded_picture(picture)}
    name, figure = picture
    return {"name": name, "url": embedded_figure(figure)}
