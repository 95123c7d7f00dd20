"""What is known before anything is trained: the links, and what each algorithm costs on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedpbc.errors import FedpbcError
from fedpbc.experiments.advice.cost_preview import CostPreview, preview_costs
from fedpbc.experiments.advice.request import BASELINE, TUNING_SEED, AdviceRequest
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.link_query import LinkReport, report_links
from fedpbc.links.trace import recorded_rounds
from fedpbc.tasks import LocalTraining

__all__ = [
    "LinkFacts",
    "examine_links",
    "excluded_algorithms",
    "refuse_limits_that_nothing_keeps",
]


@dataclass(frozen=True)
class LinkFacts:
    """The links, what theory says of them, and what algorithms cost there.

    Attributes:
        report: of the whole log, if the links are a trace; else of the rounds that are run.
        parameters: of the model.
        local_steps: of a client in a round.
        costs: of each algorithm that may be recommended, in ``rounds`` rounds.
        rounds: that were asked for; a schedule may have fewer.
    """

    report: LinkReport
    parameters: int
    local_steps: int
    costs: Mapping[str, CostPreview]
    rounds: int

    @property
    def work_of_ceiling(self) -> float:
        """How many times FedAvg's local steps are those with every link up."""
        everything = self.report.statistics.clients * self.rounds * self.local_steps
        return everything / (self.costs[BASELINE].local_steps or 1)


def examine_links(request: AdviceRequest) -> LinkFacts:
    """Draw the links, and see what theory says of them and what each algorithm costs there."""
    experiment = request.experiment(seed=TUNING_SEED)
    simulation, config = experiment.simulation, experiment.config
    training = LocalTraining(local_steps=config.train.local_steps)
    full_config = config
    if config.links["name"] == "trace":
        file, length = config.links["file"], config.links["round_seconds"]
        rounds = recorded_rounds(file, length, "links.file")
        full_config = replace(config, general=replace(config.general, rounds=rounds))
    tables = {
        label: {"name": request.algorithm_of(label), **request.options_of(label)}
        for label in request.algorithms()
    }
    report = report_links(full_config, with_data=True)
    return LinkFacts(
        replace(report, name=_links_title(request, config)),
        simulation.task.layout.dimension,
        training.local_steps,
        preview_costs(request.algorithms(), simulation.uplink, training, tables),
        simulation.uplink.rounds,
    )


def _links_title(request: AdviceRequest, config: Config) -> str:
    """What the links are called, with the length of a round if they are a log's."""
    links, name = config.links, request.links_name
    return f"{name}, {links['round_seconds']:g} s per round" if links["name"] == "trace" else name


def excluded_algorithms(request: AdviceRequest, links: LinkFacts) -> dict[str, str]:
    """Algorithms that break a constraint in every view; FedAvg stays as the baseline."""
    reasons = {}
    for name, cost in links.costs.items():
        if name != BASELINE and (reason := request.constraints.violated(cost)) is not None:
            reasons[name] = reason
    return reasons


def refuse_limits_that_nothing_keeps(request: AdviceRequest, links: LinkFacts) -> None:
    """Raise before anything is trained for nothing: FedAvg breaks a limit, and so do all others."""
    broken = request.constraints.violated(links.costs[BASELINE])
    excluded = excluded_algorithms(request, links)
    if broken is not None and len(excluded) == len(links.costs) - 1:
        limits = "; ".join(request.constraints.described())
        raise FedpbcError(
            f"no algorithm keeps the limits: {limits}; FedAvg has {broken} in "
            f"{request.values['rounds']:,} rounds"
        )
