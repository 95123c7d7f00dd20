"""The reference itself, compared with rounds worked by hand.

Unless a case says otherwise: two clients, F_i(x) = (x − u_i)²/2, u = (8, 16), x⁰ = 0, s = 1 and
η = 1/2, so one local step goes halfway from the start to u_i: end = (start + u_i)/2, and
Δ_i = (u_i − start)/2. All numbers are dyadic, so the arithmetic is exact.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.reference import ALGORITHMS, FROM_SERVER, reference

UP, DOWN = 1, 0


class Quadratics:
    """Gradient descent on the F_i; `calls` and `gradients` record the arguments of each call."""

    def __init__(self, u=(8.0, 16.0), s=1, eta=lambda t: 0.5, dtype=torch.float64):
        self.u = [torch.as_tensor(v, dtype=dtype).reshape(-1) for v in u]
        self.s, self.eta = s, eta
        self.calls = []
        self.gradients = []

    def __call__(self, client, start, t, first_batch, correction):
        fix = None if correction is None else correction.tolist()[0]
        self.calls.append((t, client, start.tolist()[0], first_batch, fix))
        x = start
        for _ in range(self.s):
            g = x - self.u[client]
            if correction is not None:
                g = g + correction
            x = x - self.eta(t) * g
        return x

    def gradient(self, client, model, batch):
        self.gradients.append((client, model.tolist()[0], batch))
        return model - self.u[client]

    def loss(self, client, model):
        return float((model - self.u[client]).square().sum() / 2)

    def starts(self):
        return {(t, client): start for t, client, start, _, _ in self.calls}

    def batches(self):
        return [(t, client, first) for t, client, _, first, _ in self.calls]


def table(rows, m=2):
    """[{0}, {}, {0, 1}] as a bool table [rounds, clients]."""
    return np.array([[i in row for i in range(m)] for row in rows], dtype=bool)


def run(algorithm, active, problem=None, *, x0=0.0, **options):
    problem = problem or Quadratics()
    start = torch.as_tensor(x0, dtype=torch.float64).reshape(-1)
    return reference(
        algorithm,
        start,
        table(active, len(problem.u)),
        problem,
        local_steps=problem.s,
        learning_rate=problem.eta,
        gradient=problem.gradient,
        loss=problem.loss,
        **options,
    )


def trajectory(algorithm, active, view="server", make=Quadratics, downlink=None, **options):
    """The view after round 0, after round 1, and so on."""
    values = []
    for n in range(1, len(active) + 1):
        down = None if downlink is None else np.array(downlink[:n], dtype=bool)
        values.append(
            run(algorithm, active[:n], make(), downlink=down, **options)[view].tolist()[0]
        )
    return values


# --- fedpbc ---------------------------------------------------------------------------------------


def test_fedpbc():
    # t=0 A={0}:   x* = (4, 8).        x = 4.     x_i = (4, 8).         reports (4, –).
    # t=1 A={}:    x* = (6, 12).       x = 4.     x_i = (6, 12).        reports (4, –).
    # t=2 A={0,1}: x* = (7, 14).       x = 10.5.  x_i = (10.5, 10.5).   reports (7, 14).
    # t=3 A={1}:   x* = (9.25, 13.25). x = 13.25. x_i = (9.25, 13.25).  reports (7, 13.25).
    active = [{0}, {}, {0, 1}, {1}]
    assert trajectory("fedpbc", active) == [4, 4, 10.5, 13.25]
    assert trajectory("fedpbc", active, "mean") == [6, 9, 10.5, 11.25]
    assert trajectory("fedpbc", active, "reported") == [4, 4, 10.5, 10.125]
    # a: 0.05·4 = 0.2; not moved; 0.2 + 0.05·10.3 = 0.715; 0.715 + 0.05·12.535 = 1.34175.
    averaged = trajectory("fedpbc", active, "averaged")
    assert averaged == pytest.approx([0.2, 0.2, 0.715, 1.34175], rel=1e-14)
    # Reports less a: 3.8; the same; 6.285 and 13.285; 6.285 and 13.25 − 1.34175 = 11.90825.
    corrected = trajectory("fedpbc", active, "corrected")
    assert corrected == pytest.approx([4, 4, 10.5, 1.34175 + 9.096625], rel=1e-14)


def test_fedpbc_every_client_trains_and_uses_batches():
    # s=2: a round goes 3/4 of the way. t=0 A={}: x_i = (6, 12). t=1 A={1}: x* = (7.5, 15).
    problem = Quadratics(s=2)
    views = run("fedpbc", [{}, {1}], problem)
    assert problem.batches() == [(0, 0, 0), (0, 1, 0), (1, 0, 2), (1, 1, 2)]
    assert views["server"].item() == 15
    assert views["mean"].item() == 11.25
    assert views["reported"].item() == 15


def test_fedpbc_global_lr():
    # η_g = 1/2: x* = x_i + (u_i − x_i)/4.
    # t=0 A={0}: x* = (2, 4), x = 2. t=1 A={0,1}: x* = (3.5, 7), x = 5.25.
    assert trajectory("fedpbc", [{0}, {0, 1}], global_lr=0.5) == [2, 5.25]


def test_fedpbc_downlink_lost():
    # t=0 A={0,1}, client 0 misses the broadcast: x* = (4, 8), x = 6, x_i = (4, 6).
    # t=1 A={1}, all downlinks up, but client 0 is not in A: x* = (6, 11), x = 11.
    down = [[DOWN, UP], [UP, UP]]
    assert trajectory("fedpbc", [{0, 1}, {1}], downlink=down) == [6, 11]
    assert trajectory("fedpbc", [{0, 1}, {1}], "mean", downlink=down) == [5, 8.5]
    assert trajectory("fedpbc", [{0, 1}, {1}], "reported", downlink=down) == [6, 7.5]


def test_fedpbc_downlink_lost_keeps_x_star():
    # η_g = 2: x* = x_i + (u_i − x_i) = u_i, the trained model is (4, 8).
    # t=0 A={0,1}, neither hears: x = 12, x_i = x* = (8, 16), not the trained models.
    problem = Quadratics()
    down = np.array([[DOWN, DOWN], [UP, UP]], dtype=bool)
    run("fedpbc", [{0, 1}, {}], problem, global_lr=2.0, downlink=down)
    assert problem.starts()[1, 0] == 8
    assert problem.starts()[1, 1] == 16


# --- fedavg and its weights -----------------------------------------------------------------------


def test_fedavg():
    # t=0 A={0}: 4. t=1: 4. t=2 A={0,1}: ends (6, 10), mean 8. t=3 A={1}: end 12.
    active = [{0}, {}, {0, 1}, {1}]
    assert trajectory("fedavg", active) == [4, 4, 8, 12]
    problem = Quadratics(s=2)
    run("fedavg", active, problem)
    assert problem.batches() == [(0, 0, 0), (2, 0, 2), (2, 1, 0), (3, 1, 2)]


def test_fedavg_global_lr():
    # η_g = 2. t=0: 0 + 2·4 = 8. t=2: Δ = (0, 4), 8 + 2·2 = 12. t=3: Δ_1 = 2, 12 + 4 = 16.
    assert trajectory("fedavg", [{0}, {}, {0, 1}, {1}], global_lr=2.0) == [8, 8, 12, 16]


def test_fedavg_downlink_lost():
    # t=0 A={0,1}, 1 misses:   ends (4, 8), x = 6.                     holds (6, 8).
    # t=1 A={1}, both miss:    8 → 12, Δ = 4, x = 6 + 4 = 10.          holds (6, 12).
    # t=2 A={0}, both receive: 6 → 7, Δ = 1, x = 11.                   holds (11, 11).
    # t=3 A={0,1}:             ends (9.5, 13.5), x = 11.5.
    active = [{0, 1}, {1}, {0}, {0, 1}]
    down = [[UP, DOWN], [DOWN, DOWN], [UP, UP], [UP, UP]]
    assert trajectory("fedavg", active, downlink=down) == [6, 10, 11, 11.5]


def test_fedavg_all():
    # t=0: 4/2 = 2. t=1: 2. t=2: Δ = (3, 7), 2 + 10/2 = 7. t=3: Δ_1 = 4.5, 7 + 2.25 = 9.25.
    active = [{0}, {}, {0, 1}, {1}]
    assert trajectory("fedavg_all", active) == [2, 2, 7, 9.25]
    # η_g = 2. t=0: 4. t=2: Δ = (2, 6), 4 + 2·4 = 12. t=3: Δ_1 = 2, 12 + 2·1 = 14.
    assert trajectory("fedavg_all", active, global_lr=2.0) == [4, 4, 12, 14]


def test_fedavg_known_divides_by_each_clients_probability_of_the_round():
    p = np.array([[1 / 2, 1 / 4], [1 / 2, 1 / 4], [1 / 4, 1 / 2], [1, 1 / 8]])
    # t=0: 4·2/2 = 4. t=2: Δ = (2, 6), 4 + (2·4 + 6·2)/2 = 14. t=3: Δ_1 = 1, 14 + 8/2 = 18.
    active = [{0}, {}, {0, 1}, {1}]
    assert trajectory("fedavg_known", active, probabilities=p) == [4, 4, 14, 18]
    with pytest.raises(ValueError, match="probabilities"):
        run("fedavg_known", active)


# --- fedau ----------------------------------------------------------------------------------------


def test_fedau_cutoff():
    # K = 2.              client 0                            client 1
    # t=0 A={0}           ω = 1 (none), then records 1        c = 1
    # t=1 A={}            c = 1                               c = 2 ≥ K: records 2, c = 0
    # t=2 A={0}           ω = 1, then records 2               c = 1
    # t=3 A={0,1}         ω = (1+2)/2 = 1.5, then records 1   ω = 2, then records c+1 = 2
    # t=4 A={1}                                               ω = (2+2)/2 = 2, then records 1
    # t=5 A={1}                                               ω = (2+2+1)/3 = 5/3
    # x: 0 + 4/2 = 2; 2; Δ_0 = 3, 2 + 1.5 = 3.5;
    #    Δ = (2.25, 6.25), 3.5 + (1.5·2.25 + 2·6.25)/2 = 3.5 + 7.9375 = 11.4375;
    #    Δ_1 = 2.28125, 11.4375 + 2·2.28125/2 = 13.71875;
    #    Δ_1 = 1.140625, 13.71875 + (5/3)·0.5703125.
    active = [{0}, {}, {0}, {0, 1}, {1}, {1}]
    got = trajectory("fedau", active, cutoff=2)
    assert got[:5] == [2, 2, 3.5, 11.4375, 13.71875]
    assert got[5] == pytest.approx(13.71875 + 5 * 0.5703125 / 3, rel=1e-15)


def test_fedau_default_cutoff_is_50():
    # Client 0 in t=0 only, so that x = 2 stays until client 1 is first active, Δ_1 = 7.
    # After 49 inactive rounds nothing is recorded: ω = 1, x = 2 + 3.5 = 5.5.
    # After 50 (t = 0 … 49) an interval of 50 is: ω = 50, x = 2 + 50·3.5 = 177.
    assert run("fedau", [{0}, *[set()] * 48, {1}])["server"].item() == 5.5
    assert run("fedau", [{0}, *[set()] * 49, {1}])["server"].item() == 177


def test_fedau_over_heard():
    # t=0 A={1}: ω = 1, n = 1: Δ_1 = 8, x = 8. t=1 A={0}: n = 2, Δ_0 = 0, x = 8.
    # t=2 A={1}: recorded 1, Δ_1 = 4, x = 8 + 4/2 = 10. t=3 A={1}: (1+2)/2·3/2 = 2.25, x = 12.25.
    assert trajectory("fedau", [{1}, {0}, {1}, {1}], over="heard") == [8, 8, 10, 12.25]


def test_fedavg_debiased():
    # t=0 A={0}: 1/1, x = 4/2 = 2. t=1: x = 2. t=2 A={0,1}: weights 3/2 and 3, Δ = (3, 7):
    # x = 2 + (4.5 + 21)/2 = 14.75. t=3 A={1}: 4/2, Δ_1 = 0.625, x = 15.375.
    active = [{0}, {}, {0, 1}, {1}]
    assert trajectory("fedavg_debiased", active) == [2, 2, 14.75, 15.375]
    # cap 2. t=2: x = 2 + (4.5 + 14)/2 = 11.25. t=3: 2 is not above it: 11.25 + 2.375.
    assert trajectory("fedavg_debiased", active, cap=2) == [2, 2, 11.25, 13.625]
    # cap 1: fedavg_all.
    assert trajectory("fedavg_debiased", active, cap=1) == trajectory("fedavg_all", active)


# --- f3ast ----------------------------------------------------------------------------------------


def test_f3ast_cap_tie_and_decay():
    # u = (20, 30), cap 1, β = 1/2.
    # t=0 A={0,1}: r = (1, 1), a tie: 0.          r = (1, 1/2).      x = 0 + (10/1)/2 = 5.
    # t=1 A={}:    rates decay all the same.      r = (1/2, 1/4).    x = 5.
    # t=2 A={0,1}: 1 has the smaller rate: 1.     r = (1/4, 5/8).    x = 5 + 12.5·(8/5)/2 = 15.
    # t=3 A={0}:   0.                             r = (5/8, 5/16).   x = 15 + 2.5·(8/5)/2 = 17.
    active = [{0, 1}, {}, {0, 1}, {0}]
    got = trajectory("f3ast", active, make=lambda: Quadratics(u=(20.0, 30.0)), beta=0.5, cap=1)
    assert got == [5, 5, 15, 17]
    # Only the selected train, and count batches.
    problem = Quadratics(u=(20.0, 30.0), s=2)
    run("f3ast", active, problem, beta=0.5, cap=1)
    assert problem.batches() == [(0, 0, 0), (2, 1, 0), (3, 0, 2)]


def test_f3ast_defaults():
    # Eleven clients, all up. t=0: 0 … 9. Then r_10 = 0.99 and the others 1: t=1: 10 and 0 … 8.
    problem = Quadratics(u=(8.0,) * 11)
    x = run("f3ast", [range(11)] * 2, problem)["server"].item()
    chosen = [{c for t, c, *_ in problem.calls if t == k} for k in (0, 1)]
    assert chosen == [set(range(10)), {*range(9), 10}]
    # x¹ = 10·4/11 = 40/11. After t=1: r_0…8 = 1, r_10 = 0.99·0.99 + 0.01 = 0.9901.
    # Δ = (8 − 40/11)/2 = 24/11; x² = 40/11 + (24/11)(9 + 1/0.9901)/11.
    assert x == pytest.approx(40 / 11 + 24 / 121 * (9 + 1 / 0.9901), rel=1e-14)


def test_f3ast_downlink_lost_unselected():
    # cap 1: client 1 is in A in t=0 but is not selected, so what it keeps is x⁰ = 0.
    problem = Quadratics()
    down = np.array([[UP, DOWN], [UP, UP]], dtype=bool)
    run("f3ast", [{0, 1}, {1}], problem, beta=0.5, cap=1, downlink=down)
    assert problem.starts() == {(0, 0): 0, (1, 1): 0}


# --- mifa -----------------------------------------------------------------------------------------


def test_mifa_moves_in_an_empty_round():
    # t=0 A={0}: G = (4, 0), x = 2. t=1 A={}: x = 4. t=2 A={1}: Δ_1 = 6, G = (4, 6), x = 9.
    # t=3 A={}: x = 14. The average takes in t=0 and t=2 only: 0.1, then 0.1 + 0.05·8.9 = 0.545.
    active = [{0}, {}, {1}, {}]
    assert trajectory("mifa", active) == [2, 4, 9, 14]
    averaged = trajectory("mifa", active, "averaged")
    assert averaged == pytest.approx([0.1, 0.1, 0.545, 0.545], rel=1e-14)


def test_mifa_rescale():
    # η = 1/2, 1/4, 1/4, 1/8.
    # t=0 A={0}: Δ_0 = 4, G_0 = 8, x = (1/2)·8/2 = 2. t=1: x = 2 + (1/4)·8/2 = 3.
    # t=2 A={1}: Δ_1 = 13/4, G_1 = 13, x = 3 + (1/4)·21/2 = 5.625. t=3: 5.625 + (1/8)·21/2.
    rates = (1 / 2, 1 / 4, 1 / 4, 1 / 8)
    got = trajectory(
        "mifa", [{0}, {}, {1}, {}], make=lambda: Quadratics(eta=lambda t: rates[t]), rescale=True
    )
    assert got == [2, 3, 5.625, 6.9375]


def test_mifa_downlink_carries_the_empty_round():
    # t=0 A={0}, both receive 2. t=1 A={}, x = 4, only 0 receives it.
    # t=2: starts (4, 2), Δ = (2, 7), x = 4 + 9/2 = 8.5.
    problem = Quadratics()
    down = np.array([[UP, UP], [UP, DOWN], [UP, UP]], dtype=bool)
    views = run("mifa", [{0}, {}, {0, 1}], problem, downlink=down)
    assert problem.starts() == {(0, 0): 0, (2, 0): 4, (2, 1): 2}
    assert views["server"].item() == 8.5


def test_mifa_over_heard():
    # t=0 A={}: nothing. t=1 A={0}: G = (4, –), x = 4. t=2: x = 8. t=3 A={1}: Δ_1 = 4, x = 12.
    # t=4 A={0}: Δ_0 = −2, x = 12 + (−2 + 4)/2 = 13.
    active = [{}, {0}, {}, {1}, {0}]
    assert trajectory("mifa", active, over="heard") == [0, 4, 8, 12, 13]


@pytest.mark.parametrize("over", ["all", "heard"])
@pytest.mark.parametrize("rescale", [False, True])
def test_mifa_with_the_memory_on_the_clients(over, rescale):
    active = [{}, {0}, {}, {1}, {0}, {0, 1}, {1}]
    options = {"over": over, "rescale": rescale, "downlink": [[UP, DOWN], [DOWN, UP]] * 4}
    make = lambda: Quadratics(eta=lambda t: 0.5**t / 2)  # noqa: E731
    got = trajectory("mifa", active, make=make, memory="client", **options)
    assert got == pytest.approx(trajectory("mifa", active, make=make, **options), rel=1e-14)


# --- fedawe ---------------------------------------------------------------------------------------

AWE = [{0}, {}, {0, 1}, {0}]


def test_fedawe_unclipped():
    # t=0 A={0}:   t−τ = 1, Δ = 4: x = 4.                                  x_i = (4, 0).
    # t=1 A={}:    nobody trains, nothing moves.
    # t=2 A={0,1}: 4 + 2·2 = 8 and 0 + 3·8 = 24 (τ_1 = −1): x = 16.        x_i = (16, 16).
    # t=3 A={0}:   16 + 1·(−4) = 12: x = 12.                               x_i = (12, 16).
    # Reports: (4, –), (4, –), (8, 24), (12, 24).
    assert trajectory("fedawe", AWE, clip=0) == [4, 4, 16, 12]
    assert trajectory("fedawe", AWE, "mean", clip=0) == [2, 2, 16, 14]
    assert trajectory("fedawe", AWE, "reported", clip=0) == [4, 4, 16, 18]
    # a = 0.2, 0.2, 0.99, 1.5405. Reports less a: 3.8; the same; 7.01, 23.01; 10.4595, 23.01.
    corrected = trajectory("fedawe", AWE, "corrected", clip=0)
    assert corrected == pytest.approx([4, 4, 16, 1.5405 + 16.73475], rel=1e-14)
    problem = Quadratics(s=2)
    run("fedawe", AWE, problem, clip=0)
    assert problem.batches() == [(0, 0, 0), (2, 0, 2), (2, 1, 0), (3, 0, 4)]


def test_fedawe_clip():
    # clip = 0.5, the default.
    # t=0: |4| > 0.5: x = 0 + 0.5. x_i = (0.5, 0). Report 4.
    # t=2: 2·3.75 = 7.5 and 3·8 = 24, mean 15.75 → 0.5; starts' mean 0.25: x = 0.75.
    #      Reports (8, 24).
    # t=3: Δ_0 = 3.625 → 0.5: x = 1.25. x_i = (1.25, 0.75). Reports (4.375, 24).
    assert trajectory("fedawe", AWE) == pytest.approx([0.5, 0.5, 0.75, 1.25], rel=1e-15)
    assert trajectory("fedawe", AWE, "mean") == pytest.approx([0.25, 0.25, 0.75, 1], rel=1e-15)
    assert trajectory("fedawe", AWE, "reported") == pytest.approx([4, 4, 16, 14.1875], rel=1e-15)


def test_fedawe_clip_is_of_the_mean_and_only_above():
    # clip = 4. t=0: 4 is not above it: x = 4. t=2: mean (4 + 24)/2 = 14 → 4, on starts' mean 2: 6.
    assert trajectory("fedawe", AWE[:3], clip=4) == pytest.approx([4, 4, 6], rel=1e-15)
    # In two dimensions the norm is of the whole vector: Δ = (3, 4), norm 5, clip 1: (0.6, 0.8).
    x = run("fedawe", [{0}], Quadratics(u=[(6.0, 8.0)]), x0=(0.0, 0.0), clip=1)["server"]
    assert x.tolist() == pytest.approx([0.6, 0.8], rel=1e-15)


def test_fedawe_global_lr():
    # η_g = 1/2. t=0: 2. t=2: 2 + ½·2·3 = 5 and ½·3·8 = 12: x = 8.5. t=3: 8.5 + ½·(−0.25) = 8.375.
    assert trajectory("fedawe", AWE, clip=0, global_lr=0.5) == [2, 2, 8.5, 8.375]


def test_fedawe_downlink_lost():
    # clip 0. t=0 A={0,1}, 0 misses it: reports (4, 8), x = 6, x_i = (4, 6), and yet τ_0 = 0.
    # t=1 A={0}: 4 + 1·2 = 6: x = 6, x_i = (6, 6), reports (6, 8).
    down = [[DOWN, UP], [UP, UP]]
    assert trajectory("fedawe", [{0, 1}, {0}], clip=0, downlink=down) == [6, 6]
    assert trajectory("fedawe", [{0, 1}, {0}], "mean", clip=0, downlink=down) == [5, 6]
    assert trajectory("fedawe", [{0, 1}, {0}], "reported", clip=0, downlink=down) == [6, 7]
    # clip 2: x = 0 + 2, and client 0 keeps its unclipped 4: x_i = (4, 2).
    mean = trajectory("fedawe", [{0, 1}], "mean", clip=2, downlink=down)
    assert mean == pytest.approx([3], rel=1e-15)


# --- fedvarp --------------------------------------------------------------------------------------


def test_fedvarp():
    # t=0 A={0}:   Δ_0 = 4, y = 0: x = 4.                                        y = (4, 0).
    # t=1 A={}:    x = 4.
    # t=2 A={1}:   Δ_1 = 6: x = 4 + (6 − 0) + (4 + 0)/2 = 12.                    y = (4, 6).
    # t=3 A={0}:   Δ_0 = −2: x = 12 + (−2 − 4) + (4 + 6)/2 = 11.                 y = (−2, 6).
    # t=4 A={0,1}: Δ = (−1.5, 2.5): x = 11 + (0.5 − 3.5)/2 + (−2 + 6)/2 = 11.5.
    assert trajectory("fedvarp", [{0}, {}, {1}, {0}, {0, 1}]) == [4, 4, 12, 11, 11.5]


# --- scaffold -------------------------------------------------------------------------------------


def test_scaffold():
    # t=0 A={0}:   g = −8, fix 0, Δ = 4. x = 4. c_0 = −8, c = −4.
    # t=1 A={}:    x = 4.
    # t=2 A={0,1}: 0: g = −4, fix −4 + 8 = 4, Δ = 0, c_0⁺ = −8 + 4 − 0 = −4.
    #              1: g = −12, fix −4, Δ = 8, c_1⁺ = 0 + 4 − 16 = −12.
    #              x = 4 + 8/2 = 8. c = −4 + (4 − 12)/2 = −8.
    # t=3 A={0}:   g = 0, fix −8 + 4 = −4, Δ = 2. x = 10. c_0 = −4 + 8 − 4 = 0, c = −6.
    # t=4 A={1}:   g = −6, fix −6 + 12 = 6, Δ = 0. x = 10.
    active = [{0}, {}, {0, 1}, {0}, {1}]
    assert trajectory("scaffold", active) == [4, 4, 8, 10, 10]
    problem = Quadratics()
    run("scaffold", active, problem)
    assert [fix for *_, fix in problem.calls] == [0, 4, -4, -4, 6]


def test_scaffold_two_steps():
    # t=0 A={0}: 0 → 4 → 6. x = 6. c_0 = −6/(2·½) = −6, the mean of g = −8, −4. c = −3.
    # t=1 A={1}: fix −3: 6 → 12.5 → 15.75, Δ = 9.75. c_1 = 0 + 3 − 9.75 = −6.75. c = −6.375.
    # t=2 A={0}: fix −6.375 + 6 = −0.375: 15.75 − 7.375/2 = 12.0625, − 3.6875/2 = 10.21875.
    got = trajectory("scaffold", [{0}, {1}, {0}], make=lambda: Quadratics(s=2))
    assert got == [6, 15.75, 10.21875]


def test_scaffold_global_lr_leaves_the_control_variates():
    # η_g = 2. t=0 A={0}: Δ = 4, x = 8, c_0 = −8 (from Δ, not 2Δ), c = −4.
    # t=1 A={1}: g = −8, fix −4, Δ = 6: x = 8 + 12 = 20.
    assert trajectory("scaffold", [{0}, {1}], global_lr=2.0) == [8, 20]


def test_scaffold_downlink_lost():
    # t=0 A={0,1}, 1 misses it: Δ = (4, 8), x = 6, holds (6, 8). c_i = (−8, −16), c = −12.
    # t=1 A={1}: from 8, with the c = 0 it received last: g = −8, fix 0 + 16, Δ = −4: x = 2.
    problem = Quadratics()
    down = np.array([[UP, DOWN], [UP, UP]], dtype=bool)
    views = run("scaffold", [{0, 1}, {1}], problem, downlink=down)
    assert problem.calls[-1] == (1, 1, 8, 1, 16)
    assert views["server"].item() == 2


def test_scaffold_downlink_lost_keeps_the_control_variate_that_came_before():
    # t=0 A={0}, 1 misses it: Δ = 4, x = 4, c_0 = −8, c = −4. 1 holds x⁰ = 0 and c = 0.
    # t=1 A={1}: from 0: g = −16, fix 0 − 0, Δ = 8: x = 12. c_1 = 0 − 0 − 16, c = −4 − 8 = −12.
    # t=2 A={1}: from 12: g = −4, fix −12 + 16 = 4, Δ = 0.
    problem = Quadratics()
    down = np.array([[UP, DOWN], [UP, UP], [UP, UP]], dtype=bool)
    views = run("scaffold", [{0}, {1}, {1}], problem, downlink=down)
    assert [call[2:] for call in problem.calls] == [(0, 0, 0), (0, 0, 0), (12, 1, 4)]
    assert views["server"].item() == 12


# --- focus ----------------------------------------------------------------------------------------


def test_focus_one_step():
    # s = 1: no local move, y = g − g_prev.
    # t=0 A={0}: g = −8 = Y, x = 4. t=1: x = 4 although Y = −8.
    # t=2 A={1}: g = −12, Y = −20, x = 14. t=3 A={0,1}: g = (6, −2), y = (14, 10), Y = 4, x = 12.
    assert trajectory("focus", [{0}, {}, {1}, {0, 1}]) == [4, 4, 14, 12]


def test_focus_two_steps():
    # η = 1/4. t=0 A={0}: g = −8, y = −8, x_0 = 2; g = −6, y = −6. Y = −6, x = 1.5.
    # t=1 A={0,1}: 0: g = −6.5, y = −0.5, x_0 = 1.625; g = −6.375, y = −0.375.
    #              1: g = −14.5 = y, x_1 = 5.125; g = −10.875 = y.
    #              Y = −17.25, x = 1.5 + 4.3125 = 5.8125.
    make = lambda: Quadratics(s=2, eta=lambda t: 0.25)  # noqa: E731
    assert trajectory("focus", [{0}, {0, 1}], make=make) == [1.5, 5.8125]
    problem = make()
    run("focus", [{0}, {0, 1}], problem)
    assert problem.gradients == [
        *((0, 0, 0), (0, 2, 1)),
        *((0, 1.5, 2), (0, 1.625, 3), (1, 1.5, 0), (1, 5.125, 1)),
    ]
    # η_g = 2 is the server's only.
    assert trajectory("focus", [{0}], make=make, global_lr=2.0) == [3]


def test_focus_downlink_lost():
    # t=0 A={0}, 0 misses it: x = 4, and 0 starts from 0 again: g = −8, y = 0. x = 4 + 8/2 = 8.
    down = [[DOWN, UP], [UP, UP]]
    assert trajectory("focus", [{0}, {0}], downlink=down) == [4, 8]


def test_focus_needs_gradients_and_ca_fed_losses():
    for algorithm, needed in (("focus", "gradient"), ("ca_fed", "loss")):
        with pytest.raises(ValueError, match=needed):
            reference(
                algorithm,
                torch.zeros(1),
                table([{0}]),
                Quadratics(),
                local_steps=1,
                learning_rate=lambda t: 0.5,
            )


# --- fedstale, mimic, area ------------------------------------------------------------------------

BETA = [{0}, {}, {0, 1}, {1}]


def test_fedstale():
    # β = 1/2. t=0: Δ_0 = 4, x = 2. h = (4, 0). t=1: x = 2.
    # t=2: weights 1, Δ = (3, 7): x = 2 + ((3 − 2) + 7 + 2)/2 = 7. h = (3, 7).
    # t=3: ω_1 = 3, Δ_1 = 4.5: x = 7 + (3·(4.5 − 3.5) + 5)/2 = 11.
    assert trajectory("fedstale", BETA) == [2, 2, 7, 11]


def test_fedstale_limits():
    # β = 0: fedau. β = 1: t=2: Δ = (3, 7), x = 2 + ((3 − 4) + 7 + 4)/2 = 7.
    # t=3: x = 7 + (3·(4.5 − 7) + 10)/2 = 8.25.
    assert trajectory("fedstale", BETA, beta=0) == trajectory("fedau", BETA)
    assert trajectory("fedstale", BETA, beta=1) == [2, 2, 7, 8.25]


def test_fedstale_has_no_cutoff():
    # Client 1 first in round 70: ω_1 = 1, Δ_1 = 8 and x = 4; then ω_1 = 71, Δ_1 = 6, h_1 = 8.
    active = [*[set()] * 70, {1}, {1}]
    assert run("fedstale", active[:-1])["server"].item() == 4
    assert run("fedstale", active)["server"].item() == 4 + (71 * (6 - 4) + 4) / 2


def test_mimic():
    # t=0 A={0}: Δ = 4 = v, x = 4, c_0 = 0. t=1: x = 4.
    # t=2 A={0,1}: Δ = (2, 6), v = 4, x = 8, c = (2, −2). t=3 A={1}: Δ = 4, v = 2, x = 10, c_1 = −2.
    assert trajectory("mimic", BETA) == [4, 4, 8, 10]
    # η_g = 2. t=0: x = 8. t=2: Δ = (0, 4), v = 2, x = 12, c = (2, −2). t=3: Δ = 2, v = 0, x = 12.
    assert trajectory("mimic", BETA, global_lr=2.0) == [8, 8, 12, 12]


def test_area():
    # t=0: w = 4, h = (4, 0), x = 2. t=1: x = 2. t=2: w = (5, 9): x = 7.
    # t=3: w_1 = 11.5: h = (5, 11.5), x = 8.25.
    assert trajectory("area", BETA) == [2, 2, 7, 8.25]
    # η_g = 2. t=0: x = 4. t=2: w = (6, 10), r = (2, 10), x = 16. t=3: w_1 = 16, r = 6, x = 22.
    assert trajectory("area", BETA, global_lr=2.0) == [4, 4, 16, 22]
    # x⁰ = 8: h = (8, 8). t=0: w = 8, r = 0. t=2: w = (8, 12), x = 10. t=3: w_1 = 13, x = 10.5.
    assert trajectory("area", BETA, x0=8.0) == [8, 8, 10, 10.5]


def test_area_downlink_lost():
    # t=0 A={0}, 0 misses it: w = 4 = h_0, x = 2, and 0 holds 4. t=1 A={0}: w = 6, x = 2 + 2/2.
    assert trajectory("area", [{0}, {0}], downlink=[[DOWN, UP], [UP, UP]]) == [2, 3]


# --- ca_fed ---------------------------------------------------------------------------------------

SPELLS = [{}, {0}, {}, {1}]
"""F_i(x) = (x − u_i)²/2: t=1: F_0(0) = 32, so F = (32, 32); π_0 = 1/2, Δ_0 = 4, x = 4.

t=3: F_1(4) = 72: F = (32, 72). π = (2/6, 2/6). Transitions of client 0: down-up, up-down and
down-down, P00 = 2/4, P11 = 1/3; of client 1: down-down twice and down-up, P00 = 3/5, P11 = 1/2. So
λ = (−1/6, 1/10). The error is 52; without 0: 72 + κ·72/4; without 1: 32 + κ·72/4. Δ_1 = 6.
"""


@pytest.mark.parametrize(
    ("options", "x"),
    [
        ({}, 4),  # 52 → 50
        ({"bias": 1.2}, 4 + 6 * 3 / 2),  # 53.6
        ({"threshold": 2.0}, 4),
        ({"threshold": 2.1}, 13),
        ({"smoothing": 0.5}, 13),  # F = (32, 52): 42 → 32 + 13
        ({"bias": 0.0}, 4),
        ({"global_lr": 2.0}, 8 + 2 * 4 * 3 / 2),  # F_1(8) = 32, and Δ_1 = 4
    ],
)
def test_ca_fed(options, x):
    assert run("ca_fed", SPELLS, **options)["server"].item() == pytest.approx(x, rel=1e-14)


def test_ca_fed_all_train_although_one_is_left_out():
    problem = Quadratics()
    run("ca_fed", [*SPELLS, {1}], problem)
    assert problem.batches() == [(1, 0, 0), (3, 1, 0), (4, 1, 1)]


# --- amplified fedavg and scaffold ----------------------------------------------------------------


def test_amplified_fedavg():
    # P = 2, γ = 3. t=0: 4. t=1: 0 + 3·4 = 12. t=2 A={0,1}: ends (10, 14), 12.
    # t=3 A={1}: 14, 12 + 3·2 = 18.
    assert trajectory("amplified_fedavg", BETA, window=2, gamma=3) == [4, 12, 12, 18]
    assert trajectory("amplified_fedavg", BETA) == trajectory("fedavg", BETA)  # P = 20
    # P = 1: η_g = γ.
    got = trajectory("amplified_fedavg", BETA, window=1, gamma=2)
    assert got == trajectory("fedavg", BETA, global_lr=2.0)
    assert run("amplified_fedavg", [{0}, *[set()] * 19])["server"].item() == 1.5 * 4


def test_amplified_scaffold():
    # P = 2, γ = 1. t=0 A={0}: g = −8, x = 4. t=1 A={0}: g = −4, x = 6. c_0 = −6, c = −3.
    # t=2 A={0,1}: 0: g = −2, fix 3, Δ = −0.5; 1: g = −10, fix −3, Δ = 6.5. x = 9.
    # t=3 A={1}: g = −7, fix −3, Δ = 5. x = 14. c_0 = −2, c_1 = −8.5, c = −5.25.
    # t=4 A={0}: g = 6, fix −3.25, Δ = −1.375. x = 12.625. t=5: c_0 = 6, c_1 stays, c = −1.25.
    # t=6 A={1}: g = −3.375, fix 7.25, Δ = −1.9375. x = 10.6875.
    active = [{0}, {0}, {0, 1}, {1}, {0}, {}, {1}]
    got = trajectory("amplified_scaffold", active, window=2, gamma=1)
    assert got == [4, 6, 9, 14, 12.625, 12.625, 10.6875]
    problem = Quadratics()
    run("amplified_scaffold", active, problem, window=2, gamma=1)
    assert [fix for *_, fix in problem.calls] == [0, 0, 3, -3, -3, -3.25, 7.25]
    # γ = 2. t=1: x = 12, c_0 = −6 all the same. t=2: 0: g = 4, fix 3, Δ = −3.5; 1: g = −4, fix −3,
    # Δ = 3.5: x = 12. t=3: the same Δ_1, x = 12 + 2·3.5.
    assert trajectory("amplified_scaffold", active[:4], window=2, gamma=2) == [4, 12, 12, 19]


def test_amplified_scaffold_with_a_window_of_one_round_is_scaffold():
    active = [{0}, {}, {0, 1}, {0}, {1}]
    make = lambda: Quadratics(s=2)  # noqa: E731
    got = trajectory("amplified_scaffold", active, make=make, window=1, gamma=1)
    assert got == pytest.approx(trajectory("scaffold", active, make=make), rel=1e-14)


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [name for name in FROM_SERVER if name != "focus"])
def test_a_lost_broadcast_leaves_the_trained_model(algorithm):
    # t=0 A={0,1}: ends (4, 8), all weights 1: x = 6 in every one of them, but 9 in CA-Fed, which
    # weighs by 3/2. Client 1 misses it.
    # t=1 A={}: both miss it. t=2: 0 starts from 6, 1 from 8, whatever mifa's server did meanwhile.
    problem = Quadratics()
    down = np.array([[UP, DOWN], [DOWN, DOWN], [UP, UP]], dtype=bool)
    options = {"probabilities": np.ones((3, 2))} if algorithm == "fedavg_known" else {}
    if algorithm == "ca_fed":
        options["bias"] = 10.0  # no one is left out
    run(algorithm, [{0, 1}, {}, {0, 1}], problem, downlink=down, **options)
    x = 9 if algorithm == "ca_fed" else 6
    assert problem.starts() == {(0, 0): 0, (0, 1): 0, (2, 0): x, (2, 1): 8}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_client_is_ever_active(algorithm):
    options = {"probabilities": np.ones((3, 2))} if algorithm == "fedavg_known" else {}
    views = run(algorithm, [{}, {}, {}], x0=3.0, **options)
    assert views["server"].item() == 3
    assert views["averaged"].item() == 3
    if algorithm in ("fedpbc", "fedawe"):
        assert set(views) == {"server", "averaged", "mean", "reported", "corrected"}
        assert views["reported"].item() == views["corrected"].item() == 3
    else:
        assert set(views) == {"server", "averaged"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fedpbc_is_fedavg_to_the_bit_when_all_links_are_up(dtype):
    gen = torch.Generator().manual_seed(1)
    u = torch.randn(7, 13, generator=gen, dtype=dtype)
    x0 = torch.randn(13, generator=gen, dtype=dtype)
    options = {"local_steps": 3, "learning_rate": lambda t: 0.1}
    up = np.ones((9, 7), dtype=bool)
    out = [
        reference(name, x0, up, Quadratics(u, 3, lambda t: 0.1, dtype), **options)
        for name in ("fedpbc", "fedavg")
    ]
    assert out[0]["server"].dtype == dtype
    assert torch.equal(out[0]["server"], out[1]["server"])
    assert torch.equal(out[0]["averaged"], out[1]["averaged"])


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedavg"])
def test_sums_are_in_float64_and_rounded_once(algorithm):
    # Ends 1, 2⁻²⁴, 2⁻²⁴, 0: summed in float32 the small ones vanish; in float64 the mean is
    # (1 + 2⁻²³)/4, which float32 can hold.
    ends = [1.0, 2.0**-24, 2.0**-24, 0.0]
    x = reference(
        algorithm,
        torch.zeros(1),
        np.ones((1, 4), dtype=bool),
        lambda i, start, t, first, fix: torch.tensor([ends[i]]),
        local_steps=1,
        learning_rate=lambda t: 0.5,
    )["server"]
    assert x.dtype == torch.float32
    assert x.item() == (1 + 2.0**-23) / 4


def test_aggregation_leaves_the_mean_of_all_clients():
    # fedpbc: the mean of x_i does not depend on who was in A in the last round.
    means = [
        trajectory("fedpbc", [{0}, last], "mean", lambda: Quadratics((8.0, 16.0, 4.0, 28.0)))[-1]
        for last in ({}, {1}, {0, 3}, {0, 1, 2, 3})
    ]
    assert means == [means[0]] * 4


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown algorithm"):
        run("fedprox", [{0}])
    with pytest.raises(TypeError, match="cutoff"):
        run("fedavg", [{0}], cutoff=2)
