"""The links of a configuration and their statistics: what ``fedpbc links`` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpbc import defaults
from fedpbc.experiments.overrides import WITHOUT_PROBABILITIES, configuration_values
from fedpbc.experiments.theory_query import config_file, of_timetable, reads_data
from fedpbc.limits import MAX_CLIENTS
from fedpbc.links import Timetable, find_scheme
from fedpbc.links.trace import recorded_rounds, round_length, trace_extent, trace_notes
from fedpbc.theory.arguments import Floats
from fedpbc.theory.link_sentences import link_sentences, theory_sentences
from fedpbc.theory.link_statistics import LinkStatistics, link_statistics
from fedpbc.theory.summary import Constants, TheorySummary

if TYPE_CHECKING:
    from fedpbc.experiments.configuration import Config

__all__ = ["LinkReport", "link_values", "report_links"]


@dataclass(frozen=True, eq=False)
class LinkReport:
    """Links, their statistics, and what the theory says of them.

    Attributes:
        name: of the links, with their seed or file.
        notes: what to know of a log before what it shows.
    """

    name: str
    timetable: Timetable
    statistics: LinkStatistics
    theory: TheorySummary
    notes: Sequence[str] = ()

    @cached_property
    def sentences(self) -> dict[str, str]:
        """What statistics and theory say, one sentence for each subject."""
        of_log = {"log": "; ".join(self.notes) + "."} if self.notes else {}
        return {**of_log, **link_sentences(self.statistics), **theory_sentences(self.theory)}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rho, kind = self.theory.rho
        measured = self.theory.measured
        return {
            "links": self.name,
            **self.statistics.as_dict(),
            "sentences": self.sentences,
            "theory": {
                "total_variation": self.theory.total_variation,
                "weights": {name: w.tolist() for name, w in self.theory.weights.items()},
                "rho": rho,
                "rho_kind": kind,
                "staleness": None if measured is None else float(measured.staleness.mean()),
                "staleness_max": None if measured is None else measured.staleness_max,
            },
        }


def link_values(
    source: Path | None = None,
    options: Mapping[str, Any] | None = None,
    assignments: Sequence[str] | None = None,
    *,
    trace: Path | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """The values of a configuration whose links are of interest.

    A trace is taken whole, with all its devices, unless rounds and clients are given: beyond its
    end it would only repeat itself.
    """
    file = config_file(source)
    values = configuration_values(
        file, options, assignments, trace=trace, of_folder=file != source, trust=trust
    )
    links = values.get("links")
    if isinstance(links, Mapping) and links.get("name") == "trace":
        recorded = links.get("file")
        if isinstance(recorded, str) and not {"rounds", "clients"} <= values.keys():
            devices, _ = trace_extent(recorded, "links.file")
            length = links.get("round_seconds")
            if length is None:
                length = round_length(links)
            if isinstance(length, int | float) and not isinstance(length, bool) and length > 0:
                values.setdefault("rounds", recorded_rounds(recorded, length, "links.file"))
            if "task" not in values:
                values.setdefault("clients", min(devices, MAX_CLIENTS))
    return values


def report_links(config: Config, *, with_data: bool = False) -> LinkReport:
    """Draw the links of a configuration and compute their statistics.

    ``with_data`` is whether to compare them with the classes that clients hold; it reads the data.
    A task's own data is read anyway if the links depend on it. Of a trace, only what was recorded
    is described, however many rounds a run has.

    Example:
        >>> from fedpbc.experiments.configuration import Config
        >>> config = Config.from_dict(
        ...     {"rounds": 60, "clients": 5, "links": {"name": "bernoulli", "p": 0.5}}
        ... )
        >>> report = report_links(config)
        >>> report.statistics.rounds, report.statistics.never, list(report.sentences)[0]
        (60, 0, 'availability')
    """
    from fedpbc.experiments.build import build_task
    from fedpbc.experiments.unused_settings import check_probabilities_are_read
    from fedpbc.simulation.build import draw_timetable
    from fedpbc.tasks import Quadratic

    general, links = config.general, config.links
    rounds, notes = general.rounds, []
    if links["name"] == "trace":
        notes = trace_notes(links, rounds)
        rounds = min(rounds, recorded_rounds(links["file"], links["round_seconds"], "links.file"))
    scheme = find_scheme(links["name"])
    depends = scheme.needs_data(links) or links["name"] not in WITHOUT_PROBABILITIES
    if with_data or (reads_data(config) and depends) or config.task.name == "quadratic":
        task = build_task(config)
    else:
        task = Quadratic(np.zeros((general.clients or defaults.CLIENTS, 1)))
    timetable = draw_timetable(config.objects.get("links", links), task, rounds, general.seed)
    check_probabilities_are_read(config, "links", timetable)
    seconds = float(links["round_seconds"]) if links["name"] == "trace" else None
    classes: Floats | None = task.class_shares
    constants = Constants(
        step_size=config.train.learning_rate,
        local_steps=config.train.local_steps,
        rounds=timetable.rounds,
    )
    name = f"{links['name']}, seed {general.seed}"
    if links["name"] == "trace":
        name = f"trace {Path(links['file']).name}, {links['round_seconds']:g} s per round"
    statistics = link_statistics(
        timetable, round_seconds=seconds, class_shares=classes, seed=general.seed
    )
    theory = of_timetable(name, timetable, constants, None)
    return LinkReport(name, timetable, statistics, theory, notes)
