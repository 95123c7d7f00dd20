"""Each algorithm's rule, called directly with numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpbc.algorithms import (
    F3AST,
    MIFA,
    FedAU,
    FedAvg,
    FedAvgAll,
    FedAvgKnown,
    FedAWE,
    FedPBC,
    FedVARP,
    Round,
    Scaffold,
    ServerInit,
    Update,
    advance,
    mean,
)
from fedpbc.errors import InputError


def vector(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def a_round(t, active, rate=0.5, steps=2, p=None):
    return Round(t, np.array(active, dtype=np.int64), rate, steps, p)


def make(kind, x0=0.0, clients=2, global_lr=1.0, **options):
    return kind(ServerInit(vector(x0), clients, global_lr), **options)


def aggregate(algorithm, t, deltas, start=None, **options):
    """Aggregate one round with these Δ_i, from x unless `start` is given; returns x."""
    active = sorted(deltas)
    starts = {i: algorithm.x if start is None else vector(start[i]) for i in active}
    round = a_round(t, active, **options)
    assert algorithm.select(round).tolist() == active
    algorithm.aggregate(round, [Update(i, starts[i], starts[i] + deltas[i]) for i in active])
    return algorithm.x.item()


@pytest.mark.parametrize("kind", [FedPBC, FedAvg, FedAvgAll, FedAU, F3AST, FedAWE])
def test_empty_round_leaves_the_server_alone(kind):
    algorithm = make(kind, x0=3.0)
    aggregate(algorithm, 0, {0: 8.0})
    before = algorithm.x.clone()
    assert aggregate(algorithm, 1, {}) == before.item() != 3.0


def test_fedpbc_is_the_mean_of_the_active_models():
    fedpbc = make(FedPBC, clients=3)
    assert aggregate(fedpbc, 0, {0: 1.0, 2: 2.0}, start={0: 3.0, 2: 8.0}) == (4 + 10) / 2
    assert fedpbc.report(a_round(0, [0]), Update(0, vector(3.0), vector(4.0))).item() == 4.0


def test_fedpbc_does_not_apply_the_global_rate_again():
    """An update's end is x_i + η_g·Δ_i already."""
    assert aggregate(make(FedPBC, global_lr=10.0), 0, {0: 4.0, 1: 8.0}) == 6.0


@pytest.mark.parametrize(
    ("kind", "expected"), [(FedAvg, 2 + 0.5 * (6 + 2) / 2), (FedAvgAll, 2 + 0.5 * (6 + 2) / 4)]
)
def test_fedavg_divides_by_the_active_and_fedavg_all_by_all(kind, expected):
    assert aggregate(make(kind, x0=2.0, clients=4, global_lr=0.5), 0, {1: 6.0, 3: 2.0}) == expected


def test_fedavg_adds_the_change_also_where_the_start_was_another_model():
    # A lost downlink: client 0 began at 10, and 10 → 11 is a change of 1 to the server's 2.
    assert aggregate(make(FedAvg, x0=2.0), 0, {0: 1.0}, start={0: 10.0}) == 3.0


def test_fedavg_known_divides_each_by_its_own_p():
    known = make(FedAvgKnown, x0=1.0, clients=4)
    p = np.array([0.5, 0.25, 0.0, 0.125])
    assert aggregate(known, 0, {0: 1.0, 1: 1.0}, p=p) == 1 + (1 / 0.5 + 1 / 0.25) / 4
    assert aggregate(known, 1, {3: 1.0}, p=p) == 2.5 + (1 / 0.125) / 4
    assert aggregate(known, 2, {}) == 4.5


def test_fedavg_known_needs_probabilities():
    with pytest.raises(InputError, match=r"probabilities"):
        aggregate(make(FedAvgKnown), 0, {0: 1.0})
    with pytest.raises(InputError, match=r"client 1 in round 7 is 0\.0"):
        aggregate(make(FedAvgKnown), 7, {1: 1.0}, p=np.array([1.0, 0.0]))


def test_fedau_weighs_by_the_intervals_recorded_before():
    fedau = make(FedAU, clients=1)
    # Contacts in rounds 2, 3 and 8: intervals 3, 1, 5; weights 1, 3 and (3+1)/2.
    expected = {2: 1.0, 3: 1.0 + 3, 8: 4.0 + 2}
    for t in range(9):
        x = aggregate(fedau, t, {0: 1.0} if t in expected else {})
        assert x == expected.get(t, x)
    assert fedau.weights().tolist() == [3.0]


def test_fedau_cutoff():
    fedau = make(FedAU, clients=1, cutoff=3)
    # Inactive in rounds 0-6: 3 is recorded after rounds 2 and 5, and c is 1 after round 6. Round 7
    # has weight 3 and records 2; round 8 has weight (3 + 3 + 2)/3.
    for t in range(7):
        assert aggregate(fedau, t, {}) == 0
    assert aggregate(fedau, 7, {0: 1.0}) == 3.0
    assert aggregate(fedau, 8, {0: 3.0}) == 3.0 + 8


def test_fedau_contact_at_the_cutoff_is_recorded_once():
    fedau = make(FedAU, clients=1, cutoff=2)
    aggregate(fedau, 0, {})
    aggregate(fedau, 1, {0: 1.0})  # the counter would reach 2 here: one interval of 2
    assert aggregate(fedau, 2, {0: 1.0}) == 1 + 2
    assert fedau.weights().tolist() == [(2 + 1) / 2]


def test_f3ast_selects_the_lowest_rates_and_ties_by_number():
    f3ast = make(F3AST, clients=5, cap=2, beta=0.5)
    assert f3ast.select(a_round(0, [0, 1, 3, 4])).tolist() == [0, 1]
    f3ast.rates = np.array([0.5, 0.25, 0.1, 0.25, 0.25])
    assert f3ast.select(a_round(0, [0, 1, 3, 4])).tolist() == [1, 3]
    assert f3ast.select(a_round(0, [0, 4])).tolist() == [0, 4]
    assert f3ast.select(a_round(0, [])).tolist() == []


def test_f3ast_weighs_by_the_updated_rates_which_decay_in_empty_rounds_too():
    f3ast = make(F3AST, clients=2, beta=0.5)
    assert aggregate(f3ast, 0, {}) == 0
    assert f3ast.rates.tolist() == [0.5, 0.5]
    assert aggregate(f3ast, 1, {0: 3.0}) == 3.0 / 0.75 / 2
    assert f3ast.rates.tolist() == [0.75, 0.25]


def test_f3ast_selects_at_most_ten_by_default():
    f3ast = make(F3AST, clients=30)
    assert f3ast.select(a_round(0, range(5, 30))).tolist() == list(range(5, 15))


def test_mifa_moves_in_an_empty_round():
    mifa = make(MIFA, global_lr=0.5)
    assert aggregate(mifa, 0, {}) == 0
    assert aggregate(mifa, 1, {0: 4.0}) == 0.5 * 4 / 2
    assert aggregate(mifa, 2, {}) == 2.0
    assert aggregate(mifa, 3, {1: 8.0}) == 2.0 + 0.5 * (4 + 8) / 2
    assert aggregate(mifa, 4, {0: -2.0}) == 5.0 + 0.5 * (-2 + 8) / 2  # the last one counts, once


def test_mifa_rescaled_uses_the_current_rate():
    mifa = make(MIFA, rescale=True)
    assert aggregate(mifa, 0, {0: 4.0}, rate=0.5) == 4 / 2
    assert aggregate(mifa, 1, {}, rate=0.25) == 2.0 + 0.25 * (4 / 0.5) / 2


def test_fedawe_scales_by_the_rounds_missed_and_clips():
    fedawe = make(FedAWE, clients=2, clip=0.0)
    assert aggregate(fedawe, 2, {0: 1.0}) == 3.0  # τ = −1
    assert aggregate(fedawe, 3, {0: 1.0, 1: 1.0}, start={0: 3.0, 1: 0.0}) == (3 + 1 + 0 + 4) / 2
    assert aggregate(fedawe, 4, {}) == 4.0
    assert aggregate(fedawe, 6, {1: -1.0}, start={1: 4.0}) == 4 - 3

    clipped = make(FedAWE, clients=2)
    assert aggregate(clipped, 0, {0: 0.25}) == 0.25
    assert aggregate(clipped, 3, {0: 1.0, 1: -3.0}, start={0: 2.0, 1: 4.0}) == 3.0 - 0.5


def test_fedawe_clips_the_norm_and_keeps_the_direction():
    fedawe = FedAWE(ServerInit(vector(0.0, 0.0), 1), clip=0.5)
    fedawe.aggregate(a_round(0, [0]), [Update(0, vector(0.0, 0.0), vector(3.0, 4.0))])
    torch.testing.assert_close(fedawe.x, vector(0.3, 0.4), rtol=0, atol=1e-15)


def test_fedawe_reports_unclipped():
    fedawe = make(FedAWE, global_lr=0.5)
    update = Update(1, vector(1.0), vector(3.0))
    assert fedawe.report(a_round(5, [1]), update).item() == 1 + 0.5 * 6 * 2


def test_fedvarp_corrects_its_memory():
    fedvarp = make(FedVARP, global_lr=0.5)
    assert aggregate(fedvarp, 0, {0: 4.0}) == 0.5 * 4  # y = (0, 0) before
    # y = (4, 0): mean over {0, 1} of (2 − 4, 6 − 0), and the memory's mean 2.
    assert aggregate(fedvarp, 1, {0: 2.0, 1: 6.0}) == 2 + 0.5 * ((-2 + 6) / 2 + 4 / 2)
    assert aggregate(fedvarp, 2, {}) == 4.0
    assert aggregate(fedvarp, 3, {1: 6.0}) == 4 + 0.5 * (0 + (2 + 6) / 2)


def test_scaffold_control_variates():
    scaffold = make(Scaffold, clients=4, global_lr=0.5)
    assert scaffold.correction(0).tolist() == [0.0]
    # s·η = 1, so c_0⁺ = −2 and c_1⁺ = −6: c = −8/4.
    assert aggregate(scaffold, 0, {0: 2.0, 1: 6.0}) == 0.5 * 4
    assert [scaffold.correction(i).item() for i in range(3)] == [-2 + 2, -2 + 6, -2]
    # Client 2: c_2⁺ = 0 + 2 − 1·4, c = −2 + (−2)/4. Client 0: c_0⁺ = −2 + 2 − 1, c += 1/4.
    aggregate(scaffold, 1, {0: 1.0, 2: 4.0})
    assert scaffold.correction(3).item() == -2 + (-2 + 1) / 4
    assert scaffold.correction(2).item() == -2.25 + 2
    assert scaffold.correction(0).item() == -2.25 + 1
    before = [scaffold.correction(i).item() for i in range(4)]
    assert aggregate(scaffold, 2, {}) == 2 + 0.5 * 2.5
    assert [scaffold.correction(i).item() for i in range(4)] == before


def test_scaffold_divides_by_the_steps_and_the_rate_of_the_round():
    scaffold = make(Scaffold, clients=1)
    aggregate(scaffold, 0, {0: 3.0}, rate=0.25, steps=6)
    assert scaffold.client_control[0].item() == scaffold.control.item() == -3 / 1.5


def test_mean_adds_up_in_double_precision_and_rounds_once():
    big, one = torch.tensor([2.0**24]), torch.tensor([1.0])
    # In single precision 2**24 + 1 would be 2**24.
    assert mean([big, one, one, one, one]).tolist() == [np.float32((2**24 + 4) / 5)]
    assert mean([big, one]).dtype == torch.float32
    assert torch.equal(big, torch.tensor([2.0**24]))


def test_advance_returns_the_end_itself_from_the_same_start():
    start, end = torch.tensor([0.1]), torch.tensor([0.3])
    assert advance(start.clone(), Update(0, start, end), 1.0) is end
    assert advance(start, Update(0, start, end), 0.5).dtype == torch.float64


@pytest.mark.parametrize("kind", [FedPBC, FedAvg, FedAU, F3AST, MIFA, FedAWE, FedVARP, Scaffold])
def test_the_model_keeps_its_dtype_and_updates_are_not_modified(kind):
    x0 = torch.tensor([1.0, 2.0])
    algorithm = kind(ServerInit(x0, 2))
    updates = [Update(i, x0, torch.tensor([0.5, i])) for i in range(2)]
    copies = [update.end.clone() for update in updates]
    for t in range(3):
        algorithm.aggregate(a_round(t, [0, 1]), updates)
    assert algorithm.x.dtype == torch.float32
    assert x0.tolist() == [1.0, 2.0]
    assert all(torch.equal(u.end, k) for u, k in zip(updates, copies, strict=True))
