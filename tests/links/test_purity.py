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


@pytest.fixture
def trace_file(tmp_path: Path) -> str:
    lines = ["client,online_from_s,online_until_s", "a,100,7000", "b,0,3000", "b,20000,40000"]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines))
    return str(path)


def draw(
    name: str, file: str, clients: int = CLIENTS, seed: int = 1, stream: str = "uplink"
) -> np.ndarray:
    p = np.linspace(0.05, 0.95, CLIENTS)[:clients]
    setting = Setting(seed, clients, ROUNDS, p, stream)
    return dense(Timetable.draw(name, setting, {"file": file} if name == "trace" else {}))


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
    p = np.linspace(0.05, 0.95, CLIENTS)
    options = {"file": trace_file} if name == "trace" else {}
    short = dense(Timetable.draw(name, Setting(1, CLIENTS, 33, p), options))
    assert (draw(name, trace_file)[:33] == short).all()


@pytest.mark.parametrize("name", DRAWN)
def test_uplink_and_downlink_draw_separately(name: str, trace_file: str) -> None:
    assert (draw(name, trace_file) != draw(name, trace_file, stream="downlink")).any()


def test_links_do_not_depend_on_other_clients_probabilities() -> None:
    # Offsets are where this could go wrong: rejected draws would shift those of later clients.
    for name in ("cyclic", "cyclic_reset", "bernoulli", "markov_varying"):
        p = np.full(CLIENTS, 0.3)
        one = dense(Timetable.draw(name, Setting(1, CLIENTS, ROUNDS, p)))
        p = np.append(np.linspace(0, 1, CLIENTS - 1), 0.3)
        other = dense(Timetable.draw(name, Setting(1, CLIENTS, ROUNDS, p)))
        assert (one[:, -1] == other[:, -1]).all()
