"""The paper's figures, spot-checked against its text."""

from __future__ import annotations

from fedpbc.algorithms import PAPER_ALGORITHMS
from fedpbc.paper.published import published_accuracies, published_rounds, published_thresholds
from fedpbc.paper.table1 import LINKS


def test_table_1_is_whole():
    keys = {
        (links, algorithm, data, split)
        for links in LINKS
        for algorithm in PAPER_ALGORITHMS
        for data in ("svhn", "cifar10", "cinic10")
        for split in ("train", "test")
    }
    assert published_accuracies().keys() == keys


def test_table_1_has_the_papers_figures():
    found = published_accuracies()
    # FedPBC under Bernoulli with time-invariant p_i: 84.4 % ± 0.008, 84.3 % ± 0.008, …
    first = found["bernoulli", "fedpbc", "svhn", "train"]
    assert (first.mean, first.deviation) == (84.4, 0.8)
    assert str(found["bernoulli", "fedpbc", "cifar10", "test"]) == "66.3 ± 1.3"
    assert str(found["bernoulli", "fedavg", "cinic10", "test"]) == "37.8 ± 2.9"
    # The caption of table 2 quotes it.
    assert found["bernoulli_varying", "fedavg_all", "svhn", "test"].mean == 36.5


def test_table_2_is_whole_and_tells_never_from_round_0():
    found = published_rounds()
    assert len(found) == 3 * 7 * 4
    assert [found["svhn", "fedpbc", p] for p in (20, 40, 60, 80)] == [150, 300, 450, 1650]
    assert [found["svhn", "fedavg", p] for p in (20, 40, 60, 80)] == [300, 450, 1050, None]
    assert found["cinic10", "fedpbc", 10] == 0


def test_thresholds_are_quarters_of_the_best():
    for data, best in (("svhn", 80), ("cifar10", 60), ("cinic10", 40)):
        assert published_thresholds(data) == tuple(best * k / 4 for k in (1, 2, 3, 4))
    assert published_thresholds("fashion") == ()
