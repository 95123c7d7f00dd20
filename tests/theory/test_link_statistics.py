from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedpbc import InputError
from fedpbc.links import from_table
from fedpbc.theory.empirical import EmpiricalLinks
from fedpbc.theory.link_sentences import link_sentences, theory_sentences
from fedpbc.theory.link_statistics import link_statistics
from fedpbc.theory.summary import Constants, TheorySummary
from tests.theory.test_daily_cycle import nights
from tests.theory.test_stationarity import drawn

HAND = [[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 0]]


def test_a_timetable_by_hand() -> None:
    statistics = link_statistics(from_table(HAND), round_seconds=60)
    assert statistics.shares.tolist() == [0.75, 0.5, 0]
    assert (statistics.never, statistics.empty_rounds) == (1, 1)
    assert statistics.curve.tolist() == pytest.approx([1 / 3, 2 / 3, 0, 2 / 3])
    assert statistics.quantiles[0.5] == 0.5
    # 1 0 1 down: 1; of 0 1 0 1: 1, 1; of 0 0 0 0: 4.
    assert (statistics.outages.runs, statistics.outages.longest) == (4, 4)
    assert statistics.stationary is None
    dependence = statistics.round_dependence
    # Deviations: 1 1 -3 1 (fourths), -1 1 -1 1 (halves): (1 - 3 - 3)/16 - 3/4 by 12/16 + 1.
    assert dependence.lag1 == pytest.approx((-5 / 16 - 3 / 4) / (12 / 16 + 1))
    # Outages that begin: 1 and 1; of rounds in random order 4 × 3/16 and 4 × 1/4.
    assert dependence.stretch == pytest.approx(1.75 / 2)
    sentences = link_sentences(statistics)
    assert sentences["availability"] == (
        "Half of the devices are up in at most 50 % of the rounds, a tenth in at most 10 %; one "
        "was never heard. In 1 of 4 rounds nobody was up."
    )
    assert "cannot be told" in sentences["change"]
    assert "less than two days" in sentences["day"]
    assert "data" not in sentences
    assert json.loads(json.dumps(statistics.as_dict(), allow_nan=False))["never"] == 1


def test_data_that_goes_with_availability() -> None:
    table = np.zeros((20, 40), dtype=bool)
    table[:, :20] = True
    table[:5, 20:] = True
    classes = np.repeat(np.eye(2), 20, axis=0)
    data = link_statistics(from_table(table), class_shares=classes).data
    # Up in all rounds and in a quarter: weights of 4 to 1, of which half each is due.
    assert data.total_variation == pytest.approx(0.3)
    assert (data.over, data.under, data.gain, data.loss) == pytest.approx((0, 1, 0.3, 0.3))
    assert data.p == 0.002
    mixed = link_statistics(from_table(table), class_shares=np.full((40, 2), 0.5)).data
    assert (mixed.total_variation, mixed.p) == (0, 1)
    with pytest.raises(InputError, match="a row of shares for each of the 40 clients"):
        link_statistics(from_table(table), class_shares=classes[:3])


def test_many_clients_are_sampled(monkeypatch) -> None:
    monkeypatch.setattr("fedpbc.theory.link_statistics.CELLS", 2000)
    monkeypatch.setattr("fedpbc.theory.link_statistics.TESTED", 10)
    block = drawn("bernoulli", 200, 50, 0)
    statistics = link_statistics(from_table(block), seed=3)
    assert statistics.sampled == 40
    # What needs no sample is of all clients.
    assert statistics.shares.tolist() == block.mean(axis=0).tolist()
    assert statistics.curve.mean() == pytest.approx(block.mean())
    assert len(statistics.client_tests.p) == 10
    again = link_statistics(from_table(block), seed=3)
    assert again.as_dict() == statistics.as_dict()


def test_links_that_never_change() -> None:
    always = link_statistics(from_table(np.ones((50, 4))))
    assert always.stationary is None
    assert always.constant
    assert not link_statistics(from_table(HAND)).constant
    sentences = link_sentences(always)
    assert sentences["change"] == "No link changed in these 50 rounds."
    assert sentences["rounds"] == "Nothing to remember: no link changed."
    assert sentences["outages"] == "No device was ever down."
    assert sentences["contacts"] == "Every contact was still going on in the last round."
    never = link_sentences(link_statistics(from_table(np.zeros((50, 4)))))
    assert never["contacts"] == "No device was ever up."


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 2), (10, 2), (25, 1), (40, 3)])
def test_small_logs(shape) -> None:
    table = np.random.default_rng(0).random(shape) < 0.5
    statistics = link_statistics(
        from_table(table), round_seconds=7200, class_shares=np.ones((shape[1], 2))
    )
    assert all(link_sentences(statistics).values())


def test_links_that_change_with_the_hour_are_not_stationary() -> None:
    statistics = link_statistics(from_table(nights(0, 4, 0.5, 0.3)), round_seconds=3600)
    assert statistics.stationary is False
    sentences = link_sentences(statistics)
    assert "with the hour of the day" in sentences["change"]
    assert "24 rounds (24 h)" in sentences["change"]
    assert sentences["day"].startswith("The hour of the day matters (p below 0.001)")


def test_what_the_theory_says() -> None:
    measured = EmpiricalLinks.from_rows(np.array(HAND, dtype=bool))
    constants = Constants(step_size=0.1, local_steps=1, rounds=4)
    sentences = theory_sentences(TheorySummary("hand", 3, None, measured, constants))
    # Weights (1 + 1/2 + 1/2)/3, (1/2 + 1/2)/3 and 0.
    assert sentences["weights"] == (
        "Plain averaging (FedAvg) counts devices by how often they are up, not equally: 33 % of "
        "the weight is misplaced; the device with the most weight has 67 % of it instead of 33 %, "
        "and 1 of 3 devices has less than a tenth of an equal share."
    )
    assert "never averaged" in sentences["mixing"]
    # Ages 1 1 1 2 1, 1 2 1 2 1 and 1 2 3 4 5: the last is not that of a contact.
    assert sentences["staleness"] == (
        "At the start of a round, a device was last heard 1.9 rounds ago on average; 1 of 3 never "
        "got through. Before a device's first contact, the rounds since the start count."
    )
    heard = EmpiricalLinks.from_rows(np.array(HAND, dtype=bool)[:, :2])
    sentences = theory_sentences(TheorySummary("hand", 2, None, heard, constants))
    assert "1.3 rounds ago on average, and 2 rounds ago at worst. Before" in sentences["staleness"]
    # Weights 3/4 and 1/4 of four rounds, one of them empty: nobody is below a tenth.
    assert sentences["weights"].endswith("has 67 % of it instead of 50 %.")
    nobody = EmpiricalLinks.from_rows(np.zeros((3, 2), dtype=bool))
    assert "nothing can be learned" in str(
        theory_sentences(TheorySummary("none", 2, None, nobody, constants))
    )
    equal = EmpiricalLinks.from_rows(np.ones((3, 100), dtype=bool))
    sentences = theory_sentences(TheorySummary("all", 100, None, equal, constants))
    assert "almost equally" in sentences["weights"]
    assert sentences["mixing"] == "After a round, no disagreement between devices is left (ρ = 0)."
    assert sentences["staleness"] == "Every device is heard in every round."


@pytest.mark.parametrize(
    ("correlation", "sentence"),
    [
        (0.1, "Devices come and go together: two of them have a correlation of 0.100 on average"),
        (0.09, "Any two devices have little to do with each other: a correlation of 0.090 on"),
        (
            0.006,
            "Any two devices have almost nothing to do with each other: a correlation of 0.006",
        ),
    ],
)
def test_dependence_is_described_by_its_size(correlation, sentence) -> None:
    statistics = link_statistics(from_table(HAND))
    clients = replace(statistics.correlation, plain=correlation, plain_p=0.01)
    text = link_sentences(replace(statistics, correlation=clients))["clients"]
    assert text.startswith(sentence)
    assert "(p = 0.01); the number that is up per round varies 1.6 times as much" in text
    many = replace(clients, overdispersion=4.0)
    text = link_sentences(replace(statistics, correlation=many))["clients"]
    small = correlation < 0.1
    assert ("; over all devices it adds up: the number that is up per round" in text) == small
    assert text.endswith("varies 4 times as much (in variance) as if they were independent.")


def test_data_in_words() -> None:
    table = np.zeros((20, 40), dtype=bool)
    table[:, :20] = True
    table[:5, 20:] = True
    classes = np.repeat(np.eye(2), 20, axis=0)
    statistics = link_statistics(from_table(table), class_shares=classes)
    assert link_sentences(statistics)["data"] == (
        "How often a device is up depends on its data: devices that are up often hold another mix "
        "of classes than the others (p = 0.002). Counted by how often its devices are up, class 0 "
        "has 30.0 percentage points too much weight and class 1 30.0 too little; in all, 30 % of "
        "the weight is on the wrong classes."
    )
    mixed = link_statistics(from_table(table), class_shares=np.full((40, 2), 0.5))
    assert link_sentences(mixed)["data"] == (
        "How often a device is up has nothing to do with its data, as far as classes show: devices "
        "that are up often hold the same mix of classes as the others (p = 1)."
    )
