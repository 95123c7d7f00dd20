"""Every link is a pure function of (seed, client, round)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedpbc.links import SCHEMES, Setting, Timetable
from tests.links.drawing import dense

CLIENTS, ROUNDS = 40, 130
# A table is not drawn.
DRAWN = sorted(set(SCHEMES) - {"table", "always"})
OPTIONS: dict[str, dict[str, object]] = {
    # By default nothing is left to chance.
    "label_cyclic": {"outside": 0.3},
    # Everything that is drawn.
    "group": {"assign": "random", "away": 0.05, "late": 0.5, "leave": 0.01},
}
CLASSES = np.random.default_rng(0).dirichlet(np.full(4, 0.5), size=CLIENTS)
# The most samples first: probabilities are relative to the largest client.
SAMPLES = np.linspace(500, 5, CLIENTS).astype(int)


@pytest.fixture
def trace_file(tmp_path: Path) -> str:
    lines = ["client,online_from_s,online_until_s", "a,100,7000", "b,0,3000", "b,20000,40000"]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines))
    return str(path)


def draw(
    name: str, file: str, clients: int = CLIENTS, seed: int = 1, stream: str = "uplink"
) -> np.ndarray:
    return dense(Timetable.draw(name, setting_of(clients, seed, stream), options_of(name, file)))


def setting_of(
    clients: int = CLIENTS, seed: int = 1, stream: str = "uplink", rounds: int = ROUNDS
) -> Setting:
    p = np.linspace(0.05, 0.95, CLIENTS)[:clients]
    data = {"class_shares": CLASSES[:clients], "samples": SAMPLES[:clients]}
    return Setting(seed, clients, rounds, p, stream, **data)


def options_of(name: str, file: str) -> dict[str, object]:
    return {"file": file} if name == "trace" else OPTIONS.get(name, {})


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_seed_gives_the_same_links(name: str, trace_file: str) -> None:
    assert (draw(name, trace_file) == draw(name, trace_file)).all()
    assert (draw(name, trace_file) != draw(name, trace_file, seed=2)).any()


@pytest.mark.parametrize("name", DRAWN)
def test_links_do_not_depend_on_the_number_of_clients(name: str, trace_file: str) -> None:
    all_clients = draw(name, trace_file)
    for clients in (1, 7, 8, 9, 39):
        assert (draw(name, trace_file, clients) == all_clients[:, :clients]).all()


@pytest.mark.parametrize("name", DRAWN)
def test_a_longer_run_starts_like_a_shorter_one(name: str, trace_file: str) -> None:
    setting = setting_of(rounds=33)
    short = dense(Timetable.draw(name, setting, options_of(name, trace_file)))
    assert (draw(name, trace_file)[:33] == short).all()


# A trace has no probabilities, only shares of the rounds that there are.
@pytest.mark.parametrize("name", sorted(set(DRAWN) - {"trace"}))
def test_probabilities_do_not_depend_on_the_number_of_clients_or_rounds(name: str) -> None:
    options = OPTIONS.get(name, {})
    long = list(Timetable.draw(name, setting_of(), options).probabilities())
    short = list(Timetable.draw(name, setting_of(9, rounds=33), options).probabilities())
    assert (np.array(long)[:33, :9] == np.array(short)).all()


@pytest.mark.parametrize("name", DRAWN)
def test_uplink_and_downlink_draw_separately(name: str, trace_file: str) -> None:
    assert (draw(name, trace_file) != draw(name, trace_file, stream="downlink")).any()


def test_links_do_not_depend_on_other_clients_probabilities() -> None:
    # Offsets are where this could go wrong: rejected draws would shift those of later clients.
    names = ("cyclic", "cyclic_reset", "bernoulli", "markov_varying", "staircase", "group")
    for name in (*names, "interleaved_sine"):
        p = np.full(CLIENTS, 0.3)
        one = dense(Timetable.draw(name, Setting(1, CLIENTS, ROUNDS, p)))
        p = np.append(np.linspace(0, 1, CLIENTS - 1), 0.3)
        other = dense(Timetable.draw(name, Setting(1, CLIENTS, ROUNDS, p)))
        assert (one[:, -1] == other[:, -1]).all()
