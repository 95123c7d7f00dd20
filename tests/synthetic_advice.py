"""Write advice without running anything: its page, from runs that nobody ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedpbc import Config
from fedpbc.experiments.advice.advise import Advice
from fedpbc.experiments.advice.directory import AdviceDirectory
from fedpbc.experiments.advice.link_facts import LinkFacts
from fedpbc.experiments.advice.recommendation import recommend
from fedpbc.experiments.advice.request import AdviceRequest
from fedpbc.experiments.advice.schedule import Schedule
from fedpbc.experiments.link_query import report_links
from fedpbc.report.advice import write_advice
from fedpbc.report.chart_data import comparison_of
from fedpbc.report.groups import group_runs
from fedpbc.report.load import load_runs
from tests.synthetic_runs import write_grid

ALGORITHMS = ("fedavg", "mifa", "fedpbc")


def synthetic_advice(folder: Path) -> Advice:
    """Return advice on runs that are written below a folder."""
    runs = write_grid(folder / "compare", ALGORITHMS, seeds=(1, 2, 3))
    [group] = group_runs(load_runs(runs))
    comparison = comparison_of(group)[0]
    links = {"name": "bernoulli", "p": 0.4}
    config = Config.from_dict({"links": links, "clients": 8, "rounds": 40, "data": "digits"})
    settings = {name: {"train.learning_rate": 0.1} for name in ALGORITHMS}
    request = AdviceRequest({"links": links}, minutes=5.0)
    return Advice(
        request=request,
        schedule=Schedule(40, ALGORITHMS, 2, 3, 3, True, 9.0, False),
        links=LinkFacts(
            replace(report_links(config), name=request.links_name), 1000, 5, {}, rounds=40
        ),
        excluded={"scaffold": "devices keep nothing"},
        tuning=None,
        settings=settings,
        comparison=comparison,
        recommendation=recommend(comparison, settings, request.constraints, 1000),
        seconds=90.0,
    )


def write_synthetic_advice(folder: Path) -> Path:
    """Write the page of such advice; returns its path."""
    directory = AdviceDirectory(folder)
    write_advice(synthetic_advice(folder), directory, "fedpbc advise --data digits --minutes 5")
    return directory.page_path
