"""fedpbc links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpbc.cli.options import Json, Set, Trust, config_options
from fedpbc.cli.terminal import say, say_json, say_written, show_fitted

if TYPE_CHECKING:
    from fedpbc.experiments.link_query import LinkReport

__all__ = ["links"]

LINK_OPTIONS = ("links", "trace", "app", "data", "data_dir", "clients", "rounds", "seed", "plugin")
DATA = ("data", "app", "data.name", "data.dir", "task.app")


@config_options(*LINK_OPTIONS)
def links(
    options: dict[str, Any],
    source: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml|RUN", help="A configuration or a run's folder."),
    ] = None,
    trace: Path | None = None,
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A page (.html), a picture (.png, .svg) or all numbers (.json)."),
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Describe a link log or scheme: who is up, how long outages last, what changes."""
    from fedpbc.experiments.configuration import Config
    from fedpbc.experiments.link_query import link_values, report_links
    from fedpbc.report.link_page import check_link_report_path, write_link_report

    check_link_report_path(out)
    values = link_values(source, options, set_, trace=trace, trust=trust)
    of_folder = source is not None and source.is_dir()
    config = Config.from_dict(values, lenient=of_folder)
    report = report_links(config, with_data=bool({*DATA} & {*options}))
    if out is not None:
        write_link_report(report, out)
    if as_json:
        say_json(report.as_dict())
        return
    show_links(report)
    if out is not None:
        say_written([out])


def show_links(report: LinkReport) -> None:
    """Print sentences and numbers."""
    from fedpbc.report.link_statistics import SUBJECTS, link_table
    from fedpbc.theory.link_sentences import format_devices, format_rounds

    statistics = report.statistics
    rounds = format_rounds(statistics.rounds, None)
    say(f"links: {report.name}; {rounds}, {format_devices(statistics.clients)}")
    for subject, sentence in report.sentences.items():
        say(f"  {SUBJECTS.get(subject, subject)}: {sentence}")
    show_fitted(link_table(statistics))
    if statistics.sampled < statistics.clients:
        say(
            f"note: outages, contacts and dependence are those of {statistics.sampled:,} devices, "
            "drawn at random"
        )
