"""Which model is evaluated."""

from __future__ import annotations

import pytest
import torch

from fedpbc.algorithms import ALGORITHMS, FedAvg, FedPBC, ServerInit
from fedpbc.engines import SerialEngine
from fedpbc.errors import InputError
from fedpbc.links import from_table
from fedpbc.simulation.costs import models_on_server
from fedpbc.simulation.loop import Simulation
from fedpbc.simulation.views import DEPLOYABLE, VIEWS, paper_view, views_of
from fedpbc.tasks import LocalTraining, Quadratic
from tests import small_runs as small

UP = [{0}, set(), {0, 1}, {1}]


def halves() -> Quadratic:
    """u = (8, 16), and a round goes half-way from the start to the target."""
    half = LocalTraining(local_steps=1, learning_rate=0.5, decay=False)
    return Quadratic([[8.0], [16.0]], training=half)


def history(algorithm, rows=UP, clients=2, view=None, **more):
    """A view's model after each round."""
    made = small.simulation(
        halves(), algorithm, small.table(rows, clients), evaluate_every=1, **more
    )
    return [made.view_models()[view].item() for _ in made.steps()]


def test_the_views_of_fedpbc_by_hand(engine):
    # x* = (4, 8), (6, 12), (7, 14), (9.25, 13.25); x_i as left by the averages over A.
    assert history("fedpbc", view="server", engine=engine) == [4, 4, 10.5, 13.25]
    assert history("fedpbc", view="mean", engine=engine) == [6, 9, 10.5, 11.25]
    assert history("fedpbc", view="reported", engine=engine) == [4, 4, 10.5, (7 + 13.25) / 2]
    averaged = [0.2, 0.2, 0.95 * 0.2 + 0.05 * 10.5]
    averaged.append(0.95 * averaged[-1] + 0.05 * 13.25)
    assert history("fedpbc", view="averaged", engine=engine) == pytest.approx(averaged, rel=1e-14)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_averaged_moves_in_rounds_that_are_not_empty(algorithm):
    """mifa's server moves in empty rounds too, but nobody got through."""
    averaged, wanted = 0.0, []
    for x, active in zip(history(algorithm, view="server"), UP, strict=True):
        averaged += 0.05 * (x - averaged) if active else 0
        wanted.append(averaged)
    assert history(algorithm, view="averaged") == pytest.approx(wanted, rel=1e-14)


def test_averaged_starts_from_the_first_model():
    task = halves()
    far = torch.tensor([100.0], dtype=torch.float64)
    made = Simulation(
        task,
        FedAvg(ServerInit(far, 2)),
        SerialEngine(task),
        from_table(small.table([set(), {0}], 2)),
    )
    steps = made.steps()
    next(steps)
    assert made.view_models()["averaged"].item() == 100
    next(steps)
    assert made.view_models()["averaged"].item() == pytest.approx(100 + 0.05 * (54 - 100))


def test_averaged_is_kept_in_double_precision():
    made, _ = small.finished(small.network(), "fedavg", small.random_table())
    assert made.server.averaged.dtype == torch.float64
    assert made.view_models()["averaged"].dtype == torch.float32


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedawe"])
def test_reported_before_any_contact_is_the_first_model(algorithm, engine):
    assert history(algorithm, [set(), set(), {1}], view="reported", engine=engine)[:2] == [0, 0]


def test_reported_before_any_contact_is_the_first_model_also_if_it_is_not_the_tasks():
    task = halves()
    far = torch.tensor([100.0], dtype=torch.float64)
    uplink = from_table(small.table([set()], 2))
    made = Simulation(task, FedPBC(ServerInit(far, 2)), SerialEngine(task), uplink)
    list(made.run())
    assert made.view_models()["mean"].item() == 50 + (4 + 8) / 2
    assert made.view_models()["reported"].item() == 100


def test_reported_leaves_out_clients_never_heard():
    assert history("fedpbc", [{0}, {0}], view="reported") == [4, 6]


def test_fedawes_reports_are_unclipped():
    # Client 0: 0 + 1·4. Client 1, after two rounds: 0 + 2·8. The server moves by 0.5 at most.
    assert history("fedawe", [{0}, {1}], view="reported") == [4, (4 + 16) / 2]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_which_views_an_algorithm_has(algorithm):
    own = algorithm in ("fedpbc", "fedawe") or ALGORITHMS[algorithm].client_models
    has = VIEWS if own else ("server", "averaged")
    assert views_of(ALGORITHMS[algorithm]) == has
    _, [*_, last] = small.finished(small.quadratic(), algorithm, small.random_table())
    assert tuple(last.views) == has


@pytest.mark.parametrize("wanted", [["server"], ["reported", "averaged"], ["mean"], ["corrected"]])
def test_only_the_views_that_are_named_are_evaluated(wanted, engine):
    _, metrics = small.finished(
        small.quadratic(), "fedpbc", small.random_table(), engine=engine, views=wanted
    )
    assert all(set(m.views) == set(wanted) for m in metrics)
    _, everything = small.finished(small.quadratic(), "fedpbc", small.random_table(), engine=engine)
    for some, every in zip(metrics, everything, strict=True):
        assert some.views == {view: every.views[view] for view in some.views}


def test_restricting_views():
    assert views_of(FedPBC, ["reported", "server"]) == ("server", "reported")
    assert views_of(FedAvg, ["mean", "averaged"]) == ("averaged",)
    with pytest.raises(InputError, match=r"views is 'servr', .*did you mean 'server'\?"):
        views_of(FedAvg, ["servr"])
    with pytest.raises(
        InputError, match=r"views is 'mean,reported', .*server, averaged for fedavg"
    ):
        views_of(FedAvg, ["mean", "reported"])
    with pytest.raises(InputError, match="views is ''"):
        views_of(FedPBC, [])


def test_what_the_paper_shows_and_what_a_server_could_have():
    assert paper_view(views_of(FedPBC)) == "mean"
    assert paper_view(views_of(FedAvg)) == "server"
    assert paper_view(["reported", "averaged"]) == "averaged"
    assert set(DEPLOYABLE) == set(VIEWS) - {"mean"}


def test_what_a_server_stores_for_a_view_is_counted():
    made = small.simulation(halves(), "fedpbc", small.table([{0}, {0}, {0, 1}], 2))
    counts = []
    for _ in made.steps():
        counts.append({view: models_on_server(made.server, view) for view in VIEWS})
    # Beyond the server's own model: the average, and a vector for each client heard so far.
    assert counts[1] == {"server": 1, "averaged": 2, "mean": None, "reported": 2, "corrected": 3}
    assert counts[2] == {"server": 1, "averaged": 2, "mean": None, "reported": 3, "corrected": 4}


def test_corrected_by_hand(engine):
    # z = 0.2, 0.2, 0.715, 1.34175; reports 4 (client 0), (7, 14), 13.25 (client 1).
    z = [0.2, 0.2, 0.95 * 0.2 + 0.05 * 10.5]
    z.append(0.95 * z[2] + 0.05 * 13.25)
    corrected = [4, 4, 10.5, z[3] + ((7 - z[2]) + (13.25 - z[3])) / 2]
    assert history("fedpbc", view="corrected", engine=engine) == pytest.approx(corrected, rel=1e-14)


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedawe"])
def test_corrected_equals_the_reports_at_no_staleness(algorithm):
    up = [{0}, {1}, {0, 1}]
    corrected, reported = (history(algorithm, up, view=v)[-1] for v in ("corrected", "reported"))
    assert corrected == pytest.approx(reported, rel=1e-14)
    assert history(algorithm, [set(), {1}], view="corrected")[0] == 0
