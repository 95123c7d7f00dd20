"""What ``tools/evidence.py`` runs: a list in order of worth, derived from what is kept already.

A later run may depend on earlier results, as on chosen step sizes. So the list is a pure function
of the kept files: whoever has them knows what is next, on whatever machine.

**The grid** (η_0 × η_g of the paper, once for each data set and algorithm, on
``bernoulli_varying``). The paper judges by "the best performance after 500 global rounds" and does
not say on which samples or which seed. Here it is the accuracy in the paper's view, as the mean of
the last 100 of 500 rounds, on a tenth of the training samples that is held out, with seed 10,
which no table uses: so nothing is chosen on test data. All 36 pairs of seven algorithms would take
most of a day, so not all are run. First come the nine pairs around the default (0.05, 1), and the
three others on the ridge where η_0·η_g = 0.05, since for small steps only the product matters. Then
the eight neighbours of the best pair so far are run, until none of them is better. A pair that
diverges counts as worst. What this can miss: a second peak that is neither near the first one nor
on the ridge.

**The search of the study**: one rule for every algorithm and the ceiling, on ``bernoulli_varying``,
with η_g = 1 and the algorithms' own options at their defaults. Four values of η_0 are run for all
450 rounds on held-out samples, again with seed 10 (successive halving ranked noise here, see
docs/study.md). As long as the best is at an end, the next value beyond it is run, too. The view to
deploy is chosen together with η_0: the best that a server could have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedpbc.algorithms import ALGORITHMS, PAPER_ALGORITHMS
from fedpbc.experiments.comparison_row import window_of
from fedpbc.experiments.conditions import CEILING, FEDAVG
from fedpbc.simulation.views import DEPLOYABLE, paper_view, views_of

AT_END: dict[str, int] = {"evaluate_every_at_end": 10}
CYCLIC_RESET_OF_THE_PAPER: dict[str, float] = {"gamma": 0.4}

PAPER_LINKS = (
    *("bernoulli_varying", "bernoulli", "markov_varying"),
    *("cyclic_reset", "markov", "cyclic"),
)
PAPER_ROUNDS = {"cifar10": 10_000, "svhn": 4_000}
LEARNING_RATES = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1)
GLOBAL_RATES = (0.5, 1.0, 1.5, 5.0, 10.0, 50.0)
RIDGE = ((0.01, 5.0), (0.005, 10.0), (0.001, 50.0))
CHOICE_SEED = 10
STUDY_LINKS = ("bernoulli_varying", "markov_varying", "cyclic_reset", "devices")
STUDY_RATES = (0.0125, 0.025, 0.05, 0.1)
STUDY_ROUNDS = 450
STUDY_SEEDS = range(5)
LABELS = (*ALGORITHMS, CEILING)
ABLATION = {"alpha-1": ("data", "alpha", 1.0), "sigma-1": ("links", "sigma", 1.0)} | {
    "delta-0.001": ("links", "delta", 0.001)
}

Pair = tuple[float, float]
Point = TypeVar("Point")
Kept = Mapping[str, Mapping[str, Any]]
"""What is kept of each run, by its id."""


@dataclass(frozen=True)
class Run:
    """A run of the list.

    Attributes:
        part: what it was made for; also the folder that keeps it.
        name: unique within its part.
        settings: its configuration, but for defaults and for where files are on a machine.
        label: the algorithm's name, or ``ceiling``.
        serves: the other parts that use it.
        ready: whether its step sizes are chosen; if not, the settings have the default ones.
    """

    part: str
    name: str
    settings: Mapping[str, Any]
    label: str
    serves: Sequence[str] = ()
    ready: bool = True

    @property
    def id(self) -> str:
        """Tells it from all others."""
        return f"{self.part}/{self.name}"

    @property
    def group(self) -> str:
        """What it is counted with."""
        return f"{self.part} {self.settings['data']['name']}"

    def is_kept(self, kept: Kept) -> bool:
        """Whether it is kept, made with just these settings."""
        return self.id in kept and kept[self.id]["settings"] == self.settings


def evidence(kept: Kept) -> list[Run]:
    """All runs in order of worth, as far as they follow from what is kept."""
    return [
        *paper_runs("cifar10", kept, more_seeds=(1, 2)),
        *study_runs(kept),
        *paper_runs("svhn", kept),
        *ablation_runs(kept),
    ]


def paper_runs(data: str, kept: Kept, more_seeds: Sequence[int] = ()) -> Iterator[Run]:
    """The grid of a data set, and its part of table 1; more seeds of the links of table 2."""
    for algorithm in PAPER_ALGORITHMS:
        yield from grid(data, algorithm, kept)[0]
    for links, seed in [(links, 0) for links in PAPER_LINKS] + [
        (PAPER_LINKS[0], seed) for seed in more_seeds
    ]:
        # Table 2 samples every 150 rounds.
        every, serves = (50, ["table2"]) if links == PAPER_LINKS[0] else (100, [])
        for algorithm in PAPER_ALGORITHMS:
            pair = grid(data, algorithm, kept)[1]
            made = settings(algorithm, data, links, PAPER_ROUNDS[data], seed, every, pair)
            if links == "cyclic_reset":
                made["links"] |= CYCLIC_RESET_OF_THE_PAPER
            name = f"{data}-{links}-{algorithm}-seed{seed}"
            yield Run("table1", name, made, algorithm, serves, pair is not None)


def ablation_runs(kept: Kept) -> Iterator[Run]:
    """The ends of the ablation; what they are compared with is in table 1."""
    for change, (section, option, value) in ABLATION.items():
        for algorithm in PAPER_ALGORITHMS:
            pair = grid("cifar10", algorithm, kept)[1]
            made = settings(algorithm, "cifar10", PAPER_LINKS[0], 10_000, 0, 100, pair)
            made[section] |= {option: value}
            name = f"cifar10-{change}-{algorithm}-seed0"
            yield Run("ablation", name, made, algorithm, (), pair is not None)


def study_runs(kept: Kept) -> Iterator[Run]:
    """The study's searches, and its comparisons: all of one seed before the next one's."""
    for label in LABELS:
        yield from search(label, kept)[0]
    for links in STUDY_LINKS:
        for seed in STUDY_SEEDS:
            for label in LABELS:
                # The ceiling is the same for all links.
                if label != CEILING or links == STUDY_LINKS[0]:
                    rate = search(label, kept)[1]
                    made = study_settings(label, links, seed, rate)
                    name = f"cifar10-{links}-{label}-seed{seed}"
                    yield Run("study", name, made, label, (), rate is not None)


def grid(data: str, algorithm: str, kept: Kept) -> tuple[list[Run], Pair | None]:
    """The runs of an algorithm's grid so far, and the chosen pair once all of them are kept."""

    def run_of(pair: Pair) -> Run:
        made = settings(algorithm, data, PAPER_LINKS[0], 500, CHOICE_SEED, 25, pair)
        made |= {"task": HELD_OUT, "views": ["server", "mean"]}
        made["data"] |= {"train_samples": 500}
        return Run("grid", f"{data}-{algorithm}-eta{pair[0]:g}-global{pair[1]:g}", made, algorithm)

    start = [(eta, eta_g) for eta in LEARNING_RATES[3:] for eta_g in GLOBAL_RATES[:3]]
    tried, best = climb(
        [*start, *RIDGE], grid_neighbours, lambda pair: score(run_of(pair), kept, paper=True)
    )
    return [run_of(pair) for pair in tried], best


def grid_neighbours(pair: Pair) -> list[Pair]:
    """The up to eight neighbours of a pair of the grid."""
    row, column = LEARNING_RATES.index(pair[0]), GLOBAL_RATES.index(pair[1])
    rates, global_rates = (
        values[max(0, at - 1) : at + 2]
        for values, at in ((LEARNING_RATES, row), (GLOBAL_RATES, column))
    )
    return [(eta, eta_g) for eta in rates for eta_g in global_rates if (eta, eta_g) != pair]


def search(label: str, kept: Kept) -> tuple[list[Run], float | None]:
    """The runs of a search of the study so far, and its η_0 once all of them are kept."""

    def run_of(rate: float) -> Run:
        made = study_settings(label, STUDY_LINKS[0], CHOICE_SEED, rate) | {"task": HELD_OUT}
        return Run("search", f"cifar10-{label}-eta{rate:g}", made, label)

    tried, best = climb(
        STUDY_RATES, lambda rate: [rate / 2, rate * 2], lambda rate: score(run_of(rate), kept)
    )
    return [run_of(rate) for rate in tried], best


def deploy_view(label: str, kept: Kept) -> str | None:
    """The view that the search of the study chose for a label."""
    runs, best = search(label, kept)
    chosen = [run for run in runs if run.settings["train"]["learning_rate"] == best]
    return best_view(kept[chosen[0].id])[1] if chosen else None


def climb(
    start: Sequence[Point],
    neighbours: Callable[[Point], Sequence[Point]],
    score: Callable[[Point], float | None],
) -> tuple[list[Point], Point | None]:
    """The points to try as far as it is known, and the best once no neighbour of it is better.

    Of equal points the earlier one counts as better. A point that is not scored yet has None.

    Example:
        >>> climb([2, 3], lambda n: [n - 1, n + 1], {2: 0.1, 3: 0.5, 4: 0.4}.get)
        ([2, 3, 4], 3)
        >>> climb([2, 3], lambda n: [n - 1, n + 1], {2: 0.1, 3: 0.5}.get)
        ([2, 3, 4], None)
    """
    tried = list(start)
    while True:
        scores = [value for value in map(score, tried) if value is not None]
        if len(scores) < len(tried):
            return tried, None
        best = tried[scores.index(max(scores))]
        more = [point for point in neighbours(best) if point not in tried]
        if not more:
            return tried, best
        tried += more


def score(run: Run, kept: Kept, *, paper: bool = False) -> float | None:
    """The accuracy by which a run of a search is judged; None if it is not kept."""
    if not run.is_kept(kept):
        return None
    return best_view(kept[run.id], paper=paper)[0]


def best_view(content: Mapping[str, Any], *, paper: bool = False) -> tuple[float, str | None]:
    """The accuracy over a run's last rounds and its view: the paper's, or the best to deploy."""
    if content["failure"]:
        return -1.0, None
    evaluations = content["evaluations"]
    rounds, views = evaluations["round"], evaluations["views"]
    first = rounds[-1] - window_of(rounds[-1])
    last = sum(t > first for t in rounds)
    means = {view: sum(of["test_accuracy"][-last:]) / last for view, of in views.items()}
    names = [paper_view(list(views))] if paper else [v for v in views if v in DEPLOYABLE]
    best = max(names, key=lambda view: means[view])
    return means[best], best


HELD_OUT = {"name": "classification", "validation": 0.1}


def study_settings(label: str, links: str, seed: int, rate: float | None) -> dict[str, Any]:
    """The settings of a run of the study; its tables show no training accuracy."""
    pair = None if rate is None else (rate, 1.0)
    made = settings(label, "cifar10", links, STUDY_ROUNDS, seed, 30, pair)
    made["data"] |= {"train_samples": 500}
    return made


def settings(
    label: str, data: str, links: str, rounds: int, seed: int, every: int, pair: Pair | None
) -> dict[str, Any]:
    """The settings of a run; without a pair of step sizes those are the default ones."""
    schemes: dict[str, Any] = {"devices": {"name": "trace", "file": "devices5d.csv"}}
    scheme = "always" if label == CEILING else links
    eta, eta_g = pair or (0.05, 1.0)
    return {
        "rounds": rounds,
        "seed": seed,
        "clients": 100,
        "evaluate_every": every,
        **AT_END,
        "algorithm": {"name": FEDAVG if label == CEILING else label},
        "data": {"name": data},
        "links": schemes.get(scheme, {"name": scheme}),
        "train": {"learning_rate": eta, "global_learning_rate": eta_g},
    }


SECONDS = {"cifar10": (0.09, 1.25), "svhn": (0.085, 1.15)}
"""Measured for a round on one core: a few clients train in it, or all of them."""
EVALUATED_SAMPLE, START = 5.3e-5, 8.0


def seconds_per_round(settings: Mapping[str, Any]) -> float:
    """How long a round takes on one core, without evaluations."""
    everyone = settings["links"]["name"] == "always"
    everyone |= ALGORITHMS[settings["algorithm"]["name"]].everyone_trains
    return SECONDS.get(settings["data"]["name"], (0.01, 0.01))[everyone]


def estimated_seconds(settings: Mapping[str, Any]) -> float:
    """How long a run takes on one core that nothing else uses."""
    views = len(views_of(ALGORITHMS[settings["algorithm"]["name"]], settings.get("views")))
    evaluations: float = settings["rounds"] / settings["evaluate_every"] + 9
    samples: int = settings["data"].get("train_samples", 5_000)
    samples += 5_000 if "task" in settings else 10_000
    training: float = settings["rounds"] * seconds_per_round(settings)
    return START + training + evaluations * views * samples * EVALUATED_SAMPLE
