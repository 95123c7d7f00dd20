"""The strategies by name: one for each algorithm that an app can run."""

from __future__ import annotations

from typing import Any

from fedpbc import algorithms
from fedpbc.algorithms import find_algorithm
from fedpbc.flower.strategy import AlgorithmStrategy

__all__ = [
    "F3AST",
    "MIFA",
    "AmplifiedFedAvg",
    "AmplifiedScaffold",
    "Area",
    "CAFed",
    "FedAU",
    "FedAWE",
    "FedAvg",
    "FedAvgAll",
    "FedAvgDebiased",
    "FedPBC",
    "FedStale",
    "FedVARP",
    "MimiC",
    "Scaffold",
    "strategy_for",
]


class FedPBC(AlgorithmStrategy):
    """Every client keeps training its own model; the active ones are averaged and get the mean."""

    algorithm = algorithms.FedPBC


class FedAvg(AlgorithmStrategy):
    """Average the active clients; biased towards clients whose uplinks are up more often."""

    algorithm = algorithms.FedAvg


class FedAvgAll(AlgorithmStrategy):
    """Sum the active clients' updates and divide by all m: inactive clients count as zero."""

    algorithm = algorithms.FedAvgAll


class FedAU(AlgorithmStrategy):
    """Weight each update by the mean interval between its client's participations so far."""

    algorithm = algorithms.FedAU


class F3AST(AlgorithmStrategy):
    """Select at most `cap` active clients, lowest rates first; divide each by its rate."""

    algorithm = algorithms.F3AST


class MIFA(AlgorithmStrategy):
    """Remember every client's last update and apply all of them in every round."""

    algorithm = algorithms.MIFA


class FedAWE(AlgorithmStrategy):
    """Active clients train from their own models; innovations are scaled by the rounds missed."""

    algorithm = algorithms.FedAWE


class FedVARP(AlgorithmStrategy):
    """Add the mean of all remembered updates, corrected by how the active clients' changed."""

    algorithm = algorithms.FedVARP


class Scaffold(AlgorithmStrategy):
    """Correct local gradients by control variates: g − c_i + c."""

    algorithm = algorithms.Scaffold


class FedStale(AlgorithmStrategy):
    """Mix fresh updates with remembered ones: β = 0 is FedAvg, β = 1 FedVARP, with weights ω."""

    algorithm = algorithms.FedStale


class MimiC(AlgorithmStrategy):
    """Correct each update by how the client's last one differed from the server's."""

    algorithm = algorithms.MimiC


class Area(AlgorithmStrategy):
    """Keep the mean of the models that all clients last delivered."""

    algorithm = algorithms.Area


class CAFed(AlgorithmStrategy):
    """Divide updates by estimated availability; leave out clients that cost more than they give."""

    algorithm = algorithms.CAFed


class FedAvgDebiased(AlgorithmStrategy):
    """Divide each update by its client's share of the rounds so far, this one included."""

    algorithm = algorithms.FedAvgDebiased


class AmplifiedFedAvg(AlgorithmStrategy):
    """FedAvg; at the end of every window of P rounds, go γ times as far as the window went."""

    algorithm = algorithms.AmplifiedFedAvg


class AmplifiedScaffold(AlgorithmStrategy):
    """SCAFFOLD whose control variates and amplification work in windows of P rounds."""

    algorithm = algorithms.AmplifiedScaffold


def strategy_for(algorithm: str, /, *arguments: Any, **options: Any) -> AlgorithmStrategy:
    """The strategy for an algorithm by its name, also for one that was registered from outside.

    Example:
        >>> strategy_for("fedau", cutoff=50, fraction_evaluate=0.5).settings.options["cutoff"]
        50
    """
    kind = find_algorithm(algorithm)
    namespace = {"algorithm": kind, "__doc__": kind.__doc__}
    strategy = globals().get(kind.__name__)
    if strategy is None or strategy.algorithm is not kind:
        strategy = type(kind.__name__, (AlgorithmStrategy,), namespace)
    instance: AlgorithmStrategy = strategy(*arguments, **options)
    return instance
