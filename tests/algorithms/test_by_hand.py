"""Each algorithm's rule, called directly with numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc.algorithms import (
    ALGORITHMS,
    F3AST,
    MIFA,
    AmplifiedFedAvg,
    AmplifiedScaffold,
    Area,
    CAFed,
    ClientWork,
    FedAU,
    FedAvg,
    FedAvgAll,
    FedAvgDebiased,
    FedAvgKnown,
    FedAWE,
    FedPBC,
    FedStale,
    FedVARP,
    Focus,
    MimiC,
    Round,
    Scaffold,
    ServerInit,
    Update,
    advance,
    mean,
)
from fedpbc.errors import InputError
from tests import small_runs as small


def vector(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def a_round(t, active, rate=0.5, steps=2, p=None):
    return Round(t, np.array(active, dtype=np.int64), rate, steps, p)


def make(kind, x0=0.0, clients=2, global_lr=1.0, **options):
    return kind(ServerInit(vector(x0), clients, global_lr), **options)


def aggregate(algorithm, t, deltas, start=None, kept=None, loss=None, **options):
    """Aggregate one round with these Δ_i, from x unless `start` is given; returns x.

    For a rule of the clients, `kept` is their state by client, and `loss` their losses.
    """
    active = sorted(deltas)
    starts = {i: algorithm.x if start is None else vector(start[i]) for i in active}
    round = a_round(t, active, **options)
    assert algorithm.select(round).tolist() == active
    updates = []
    for i in active:
        end = starts[i] + deltas[i]
        upload, model = {}, end
        if (rule := algorithm.client_rule()) is not None:
            work = work_of(algorithm, i, starts[i], round, kept, loss)
            result = rule.finish(work, end)
            upload, kept[i] = result.upload, result.state
            model = end if "model" in rule.uploads else None
        updates.append(Update(i, starts[i], model, upload))
    algorithm.aggregate(round, updates)
    return algorithm.x.item()


def work_of(algorithm, i, start, round, kept, loss=None):
    """What client i knows in a round."""
    return ClientWork(
        i,
        start,
        received=algorithm.message(i),
        state=kept.get(i, algorithm.client_rule().initial_state(algorithm.x * 0)),
        first_round=round.number,
        rates=(round.learning_rate,),
        local_steps=round.local_steps,
        loss=lambda model: loss[i],
    )


def corrections(algorithm, t, kept):
    """What each client would add to its gradients in round t."""
    works = (
        work_of(algorithm, i, algorithm.x, a_round(t, []), kept) for i in range(algorithm.clients)
    )
    return [algorithm.client_rule().correction(work).item() for work in works]


@pytest.mark.parametrize(
    "kind", [FedPBC, FedAvg, FedAvgAll, FedAU, F3AST, FedAWE, FedVARP, FedStale, MimiC]
)
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
    scaffold, kept = make(Scaffold, clients=4, global_lr=0.5), {}
    assert corrections(scaffold, 0, kept) == [0.0] * 4
    # s·η = 1, so c_0⁺ = −2 and c_1⁺ = −6: c = −8/4.
    assert aggregate(scaffold, 0, {0: 2.0, 1: 6.0}, kept=kept) == 0.5 * 4
    assert corrections(scaffold, 1, kept) == [-2 + 2, -2 + 6, -2, -2]
    # Client 2: c_2⁺ = 0 + 2 − 1·4, c = −2 + (−2)/4. Client 0: c_0⁺ = −2 + 2 − 1, c += 1/4.
    aggregate(scaffold, 1, {0: 1.0, 2: 4.0}, kept=kept)
    before = [-2.25 + 1, -2.25 + 6, -2.25 + 2, -2.25]
    assert corrections(scaffold, 2, kept) == before
    assert aggregate(scaffold, 2, {}, kept=kept) == 2 + 0.5 * 2.5
    assert corrections(scaffold, 3, kept) == before


def test_scaffold_divides_by_the_steps_and_the_rate_of_the_round():
    scaffold, kept = make(Scaffold, clients=1), {}
    aggregate(scaffold, 0, {0: 3.0}, kept=kept, rate=0.25, steps=6)
    assert kept[0]["control"].item() == scaffold.message(0)["control"].item() == -3 / 1.5


@settings(max_examples=30)
@given(clip=st.floats(0.01, 10.0), gradient=st.floats(-5, 5), control=st.floats(-5, 5))
def test_scaffold_with_one_step_keeps_the_gradient_whatever_is_clipped(clip, gradient, control):
    """The new c_i is the gradient that was seen: what was clipped off is not mistaken for it."""
    rule = Scaffold(ServerInit(torch.zeros(1), 2), clip=clip).client_rule()
    received = {"control": torch.tensor([control], dtype=torch.float64)}
    state = {"control": torch.tensor([1.0], dtype=torch.float64)}
    work = ClientWork(0, torch.zeros(1).double(), received, state, 0, rates=(0.5,), local_steps=1)
    correction = rule.correction(work).item()
    assert abs(correction) <= clip * (1 + 1e-12)
    assert abs(correction) == pytest.approx(min(clip, abs(control - 1)), rel=1e-12)
    end = work.start - 0.5 * (gradient + correction)
    assert rule.finish(work, end).state["control"].item() == pytest.approx(gradient, abs=1e-9)


@pytest.mark.parametrize(("clip", "bounded"), [(0.0, False), (1.0, True)])
def test_scaffolds_loop_runs_away_where_curvature_grows_unless_it_is_clipped(clip, bounded):
    """One client alone, F(u) = e^u − u/2 and a control variate from far away; c stays 0."""
    rule = Scaffold(ServerInit(torch.zeros(1), 2), clip=clip).client_rule()
    zero = torch.zeros(1, dtype=torch.float64)
    control = torch.tensor([5.0], dtype=torch.float64)
    for _ in range(8):
        work = ClientWork(0, zero, {"control": zero}, {"control": control}, 0, (1.0,), 5)
        u, correction = zero, rule.correction(work)
        for _ in range(5):
            u = u - (u.exp() - 0.5 + correction)
        if not torch.isfinite(u):
            break
        control = rule.finish(work, u).state["control"]
    assert (bool(torch.isfinite(u)) and abs(control.item()) < 10) is bounded


def test_scaffold_client_uses_the_control_variate_that_it_received():
    # c is 5 where the client last heard of it, whatever the server has now.
    rule, start = make(Scaffold).client_rule(), vector(0.0)
    work = ClientWork(0, start, {"control": vector(5.0)}, {"control": vector(2.0)}, 7, (0.5,), 2)
    assert rule.correction(work).item() == 5 - 2
    result = rule.finish(work, vector(4.0))
    assert result.state["control"].item() == 2 - 5 - 4
    assert result.upload["control_change"].item() == -7 - 2


def test_fedau_over_those_heard():
    fedau = make(FedAU, clients=4, over="heard")
    assert aggregate(fedau, 0, {0: 4.0}) == 4.0
    assert aggregate(fedau, 1, {1: 4.0}) == 4 + 4 / 2
    assert aggregate(fedau, 2, {0: 2.0}) == 6 + 2 / 2  # recorded: 1
    assert aggregate(fedau, 3, {0: 4.0}) == 7 + 1.5 * 4 / 2  # recorded: 1 and 2


@pytest.mark.parametrize("memory", ["server", "client"])
def test_mifa_over_those_heard(memory):
    mifa, kept = make(MIFA, clients=4, over="heard", memory=memory), {}
    assert aggregate(mifa, 0, {}, kept=kept) == 0
    assert aggregate(mifa, 1, {0: 4.0}, kept=kept) == 4.0
    assert aggregate(mifa, 2, {}, kept=kept) == 8.0
    assert aggregate(mifa, 3, {1: 8.0}, kept=kept) == 8 + (4 + 8) / 2
    assert aggregate(mifa, 4, {0: -2.0}, kept=kept) == 14 + (-2 + 8) / 2


def test_mifa_clients_upload_the_change_of_their_memory():
    mifa = make(MIFA, memory="client", rescale=True)
    rule, start = mifa.client_rule(), vector(10.0)
    work = ClientWork(0, start, {}, {"memory": vector(6.0)}, 0, (0.5,), 2)
    result = rule.finish(work, vector(12.0))
    assert result.state["memory"].item() == 2 / 0.5
    assert result.upload["change"].item() == 4 - 6
    assert rule.uploads == ("change",)


deltas_of_rounds = st.lists(
    st.dictionaries(st.integers(0, 3), st.integers(-64, 64).map(float), max_size=4), max_size=10
)


@given(deltas_of_rounds, st.sampled_from(["all", "heard"]), st.booleans())
def test_mifa_is_the_same_with_the_memory_on_the_clients(rounds, over, rescale):
    here, there = (
        make(MIFA, clients=4, over=over, rescale=rescale, memory=memory)
        for memory in ("server", "client")
    )
    kept = {}
    for t, deltas in enumerate(rounds):
        x = aggregate(here, t, deltas, rate=0.5 / (t + 1), kept={})
        assert aggregate(there, t, deltas, rate=0.5 / (t + 1), kept=kept) == pytest.approx(
            x, rel=1e-12, abs=1e-9
        )


@given(deltas_of_rounds)
@pytest.mark.parametrize("kind", [MIFA, FedAU])
def test_over_those_heard_is_over_all_once_all_were_heard(kind, rounds):
    heard, all_of_them = (make(kind, clients=4, over=over) for over in ("heard", "all"))
    first = dict.fromkeys(range(4), 2.0)
    for t, deltas in enumerate([first, *rounds]):
        assert aggregate(heard, t, deltas) == aggregate(all_of_them, t, deltas)


def test_mimic_makes_updates_mimic_the_mean():
    mimic = make(MimiC, global_lr=0.5)
    assert aggregate(mimic, 0, {}) == 0
    # v = 6: c = (6 − 4, 6 − 8).
    assert aggregate(mimic, 1, {0: 4.0, 1: 8.0}) == 0.5 * 6
    # Client 0 alone: v = 1 + 2, and c_0 = 3 − 1 stays.
    assert aggregate(mimic, 2, {0: 1.0}) == 3 + 0.5 * 3
    assert aggregate(mimic, 3, {}) == 4.5
    # v = ((2 + 2) + (4 − 2))/2 = 3: c = (1, −1).
    assert aggregate(mimic, 4, {0: 2.0, 1: 4.0}) == 4.5 + 0.5 * 3
    assert {i: c.item() for i, c in mimic.corrections.items()} == {0: 1, 1: -1}


def test_mimic_does_not_correct_a_first_update():
    mimic = make(MimiC, clients=3)
    assert aggregate(mimic, 0, {0: 4.0}) == 4.0
    assert aggregate(mimic, 1, {1: 6.0}) == 10.0
    assert aggregate(mimic, 2, {0: 1.0, 1: 2.0}) == 10 + (1 + 2) / 2


@given(deltas_of_rounds)
def test_mimics_corrections_add_up_to_zero(rounds):
    mimic = make(MimiC, clients=4, global_lr=0.5)
    for t, deltas in enumerate(rounds):
        aggregate(mimic, t, deltas)
        assert sum(c.item() for c in mimic.corrections.values()) == pytest.approx(0, abs=1e-9)


def test_area_is_the_mean_of_the_models_delivered_last():
    area = make(Area, x0=1.0, clients=4)
    kept = {i: {"delivered": vector(1.0)} for i in range(4)}
    # Models 3 and 7: x = (3 + 7 + 1 + 1)/4.
    assert aggregate(area, 0, {0: 2.0, 1: 6.0}, kept=kept) == 3.0
    assert aggregate(area, 1, {}, kept=kept) == 3.0
    # Model 3 + 2 instead of 3: x = (5 + 7 + 1 + 1)/4.
    assert aggregate(area, 2, {0: 2.0}, kept=kept) == 3.5
    half = make(Area, clients=2, global_lr=0.5)
    assert aggregate(half, 0, {0: 4.0}, kept={}) == 0.5 * 4 / 2


def test_areas_memory_starts_at_the_first_model():
    assert make(Area).client_rule().initial_state(vector(3.0))["delivered"].item() == 3.0


def test_fedstale_mixes_fresh_and_stale():
    fedstale = make(FedStale, beta=0.5)
    assert aggregate(fedstale, 0, {0: 4.0}) == 4 / 2  # h = (4, 0), recorded: (1), ()
    assert aggregate(fedstale, 1, {}) == 2.0
    # Both weights 1: (2 − ½·4) + 6, and ½·4.
    assert aggregate(fedstale, 2, {0: 2.0, 1: 6.0}) == 2 + (0 + 6 + 2) / 2
    # h = (2, 6), recorded: (1, 2), (3). Client 1: 3·(2 − ½·6), and ½·8.
    assert aggregate(fedstale, 3, {1: 2.0}) == 6 + (-3 + 4) / 2
    half = make(FedStale, beta=0.5, global_lr=0.5)
    assert aggregate(half, 0, {0: 4.0}) == 1.0


@given(deltas_of_rounds)
def test_fedstale_without_the_stale_part_is_fedau_without_a_cutoff(rounds):
    fedstale, fedau = make(FedStale, clients=4, beta=0.0), make(FedAU, clients=4, cutoff=10**6)
    for t, deltas in enumerate(rounds):
        assert aggregate(fedstale, t, deltas) == aggregate(fedau, t, deltas)


@given(deltas_of_rounds)
def test_fedstale_with_all_of_it_is_fedvarp_with_weights(rounds):
    """Equal to FedVARP's own rule if everyone takes part in every round."""
    fedstale, fedvarp = make(FedStale, clients=4, beta=1.0), make(FedVARP, clients=4)
    for t, deltas in enumerate(rounds):
        everyone = {i: deltas.get(i, 1.0) for i in range(4)}
        x = aggregate(fedvarp, t, everyone)
        assert aggregate(fedstale, t, everyone) == pytest.approx(x, abs=1e-9)
    # And by its formula if not: x + (1/m)(Σ ω_i (Δ_i − h_i) + Σ_all h_i).
    fedstale, h, intervals = make(FedStale, clients=4, beta=1.0), [0.0] * 4, [[] for _ in range(4)]
    x, last = 0.0, [-1] * 4
    for t, deltas in enumerate(rounds):
        omega = [sum(seen) / len(seen) if seen else 1.0 for seen in intervals]
        if deltas:
            x += (sum(omega[i] * (d - h[i]) for i, d in deltas.items()) + sum(h)) / 4
        assert aggregate(fedstale, t, deltas) == pytest.approx(x, rel=1e-9, abs=1e-9)
        for i, d in deltas.items():
            h[i] = d
            intervals[i].append(t - last[i])
            last[i] = t


def test_debiased_fedavg_divides_by_the_share_of_rounds():
    debiased, capped = make(FedAvgDebiased), make(FedAvgDebiased, cap=2.0)
    for algorithm in (debiased, capped):
        assert aggregate(algorithm, 0, {0: 4.0}) == 4 / 2
        assert aggregate(algorithm, 1, {}) == 2.0
    # Participations 2 and 1 in 3 rounds: weights 3/2 and 3.
    assert aggregate(debiased, 2, {0: 1.0, 1: 2.0}) == 2 + (1.5 + 6) / 2
    assert aggregate(capped, 2, {0: 1.0, 1: 2.0}) == 2 + (1.5 + 4) / 2
    half = make(FedAvgDebiased, global_lr=0.5)
    assert aggregate(half, 3, {0: 4.0}) == 0.5 * 4 * 4 / 2


def test_amplified_fedavg_amplifies_each_window():
    amplified = make(AmplifiedFedAvg, window=2, gamma=3.0)
    assert aggregate(amplified, 0, {0: 4.0}) == 4.0
    assert aggregate(amplified, 1, {}) == 3 * 4  # an empty round ends a window, too
    assert aggregate(amplified, 2, {0: 1.0, 1: 3.0}) == 12 + 2
    assert aggregate(amplified, 3, {1: -1.0}) == 12 + 3 * (14 - 1 - 12)
    for t in (4, 5):
        assert aggregate(amplified, t, {}) == 15.0
    half = make(AmplifiedFedAvg, window=1, gamma=3.0, global_lr=0.5)
    assert aggregate(half, 0, {0: 4.0}) == 3 * 0.5 * 4


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_amplified_scaffold_renews_its_control_variates_with_each_window(gamma):
    amplified, kept = make(AmplifiedScaffold, window=2, gamma=gamma), {}
    # s·η = 1, so the mean gradient is c_i − c − Δ_i: −2, and −4 with c still 0.
    x = aggregate(amplified, 0, {0: 2.0}, kept=kept)
    assert (x, corrections(amplified, 1, kept)) == (2, [0, 0])
    # The window's end: c_0 = (−2 − 4)/2, c = −3/2.
    x = aggregate(amplified, 1, {0: 4.0}, kept=kept)
    assert x == gamma * 6
    assert corrections(amplified, 2, kept) == [-1.5 + 3, -1.5]
    # Client 1: 0 + 1.5 − 1 = 0.5.
    assert aggregate(amplified, 2, {1: 1.0}, kept=kept) == x + 1
    assert corrections(amplified, 3, kept) == [-1.5 + 3, -1.5]
    # Client 0: −3 + 1.5 − 2 = −3.5. The window's end: c = −1.5 + ((−3.5 + 3) + 0.5)/2.
    assert aggregate(amplified, 3, {0: 2.0}, kept=kept) == x + gamma * 3
    assert corrections(amplified, 4, kept) == [-1.5 + 3.5, -1.5 - 0.5]
    # A window without clients changes nothing, nor one in which 1 is not heard c_1.
    for t in (4, 5, 6):
        assert aggregate(amplified, t, {}, kept=kept) == x + gamma * 3
    # Client 0: −3.5 + 1.5 − 0 = −2, c = −1.5 + 1.5/2.
    aggregate(amplified, 7, {0: 0.0}, kept=kept)
    assert corrections(amplified, 8, kept) == [-0.75 + 2, -0.75 - 0.5]


def test_ca_fed_divides_by_the_estimated_availability():
    ca_fed, kept = make(CAFed), {}
    assert aggregate(ca_fed, 0, {}, kept=kept) == 0
    # One of two rounds: (1 + 1)/(2 + 2). Everyone counts as a loss of 4: no one is left out.
    assert aggregate(ca_fed, 1, {0: 4.0}, kept=kept, loss={0: 4.0}) == 4 / 0.5 / 2
    half = make(CAFed, global_lr=0.5)
    assert aggregate(half, 0, {0: 4.0}, kept=kept, loss={0: 4.0}) == 0.5 * 4 * 1.5 / 2


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({}, True),
        ({"threshold": 0.5}, True),
        ({"threshold": 0.625}, False),
        ({"bias": 2.0}, False),
        ({"bias": 1.125}, True),
        ({"bias": 1.25}, False),  # no gain at all
        ({"smoothing": 0.5}, False),
    ],
)
def test_ca_fed_leaves_out_a_client_whose_loss_is_too_high(options, left_out):
    ca_fed, kept = make(CAFed, **options), {}
    # π̂_0 = 2/3, and the loss of both counts as 4.
    before = aggregate(ca_fed, 0, {0: 4.0}, kept=kept, loss={0: 4.0})
    assert before == 4 / (2 / 3) / 2
    assert aggregate(ca_fed, 1, {}, kept=kept) == before
    # Losses (4, 10), both λ̂ = 0: the error is 7 for both, 10 + κ·10/4 for client 1 alone, and
    # 4 + κ·10/4 for client 0. With smoothing: (4, 7), 5.5 and 4 + 7/4. π̂ = (2/5, 2/5).
    x = aggregate(ca_fed, 2, {1: 4.0}, kept=kept, loss={1: 10.0})
    assert x == (before if left_out else before + 4 / (2 / 5) / 2)


def test_ca_fed_begins_with_the_longest_spells():
    """By |λ̂|, not by number or availability; with this bias it pays to leave out one client."""
    ca_fed, kept, losses = make(CAFed, clients=4, bias=1.5), {}, (8.0, 8.0, 2.0, 2.0)
    # Both are up in 5 of 8 rounds, π̂ = 6/10. Client 0: P̂11 = 3/6, P̂00 = 2/5, λ̂ = −0.1.
    # Client 1: P̂11 = 5/6, P̂00 = 3/5, λ̂ = 0.43.
    spells = zip((1, 1, 0, 0, 1, 1, 0, 1), (0, 0, 0, 1, 1, 1, 1, 1), strict=True)
    for t, (zero, one) in enumerate(spells):
        active = [0] * zero + [1] * one + [2, 3]
        deltas = {i: (4.0, 8.0, 0.0, 0.0)[i] if t == 7 else 0.0 for i in active}
        x = aggregate(ca_fed, t, deltas, kept=kept, loss=losses)
    # The error is 5; without 1 it is 4 + 1.5·8/16, without 0 and 1 2 + 1.5·8·4/16.
    assert x == pytest.approx(4 / 0.6 / 4)


def test_ca_fed_leaves_no_one_out_without_losses():
    ca_fed, kept = make(CAFed), {}
    assert aggregate(ca_fed, 0, {0: 4.0, 1: 2.0}, kept=kept, loss=(0.0, 0.0)) == 6 * 1.5 / 2


def focus_round(focus, t, active, targets, kept, rate=0.25, steps=2):
    """A round on F_i(x) = (x − u_i)²/2; returns x."""
    updates = []
    round = a_round(t, active, rate=rate, steps=steps)
    for i in active:
        work = work_of(focus, i, focus.x, round, kept)
        result = focus.client_rule().local_steps(work, lambda model, k, i=i: model - targets[i])
        kept[i] = result.state
        updates.append(Update(i, focus.x, None, result.upload))
    focus.aggregate(round, updates)
    return focus.x.item()


def test_focus_tracks_every_clients_last_gradient():
    focus, kept, targets = make(Focus, clients=3), {}, (8.0, 16.0, 4.0)
    # g = −8, y = −8, x_0 = 2; g = −6, y = −6. Y = −6, x = −(−6)/4.
    assert focus_round(focus, 0, [0], targets, kept) == 1.5
    assert kept[0]["gradient"].item() == -6
    assert focus_round(focus, 1, [], targets, kept) == 1.5
    # Client 0: g = −6.5, y = −0.5, x_0 = 1.625; g = −6.375, y = −0.375.
    # Client 1: g = −14.5, y = −14.5, x_1 = 5.125; g = −10.875 = y.
    # Y = −6 − 0.375 − 10.875 = −17.25, x = 1.5 + 17.25/4.
    assert focus_round(focus, 2, [0, 1], targets, kept) == 5.8125
    assert [kept[i]["gradient"].item() for i in (0, 1)] == [-6.375, -10.875]
    # One step only: no local move. g = −2.1875, y = 4.1875. Y = −13.0625.
    assert focus_round(focus, 3, [0], targets, kept, steps=1) == 5.8125 + 13.0625 / 4


def test_focus_global_rate_is_the_servers():
    focus, kept = make(Focus, clients=3, global_lr=2.0), {}
    assert focus_round(focus, 0, [0], (8.0,), kept) == 2 * 1.5
    assert kept[0]["gradient"].item() == -6


# --- What holds in every round, whoever is heard --------------------------------------------------

clients = st.lists(st.booleans(), min_size=3, max_size=3)
links = given(
    rows=st.lists(st.tuples(clients, clients), min_size=1, max_size=9), lossy=st.booleans()
)


def after_each_round(name, rows, lossy, **options):
    """The simulation after each of its rounds; each row has the uplinks and the downlinks."""
    up, down = (np.array(table) for table in zip(*rows, strict=True))
    task = small.quadratic(3, 2)
    made = small.simulation(task, name, up, down=down if lossy else None, options=options)
    for _ in made.steps():
        yield made


def kept_by(made, name):
    """What each client keeps under that name."""
    return [made.server.client_state(i)[name] for i in range(3)]


invariant = settings(deadline=None, max_examples=30)


@invariant
@links
def test_focus_server_has_the_sum_of_the_last_gradients(rows, lossy):
    for made in after_each_round("focus", rows, lossy):
        difference = made.algorithm.tracker - sum(kept_by(made, "gradient"))
        assert difference.abs().max() < 1e-12


@invariant
@links
def test_area_is_the_mean_of_what_all_clients_delivered(rows, lossy):
    for made in after_each_round("area", rows, lossy):
        assert (made.algorithm.x - mean(kept_by(made, "delivered"))).abs().max() < 1e-12


@invariant
@links
def test_mifa_server_has_the_sum_of_the_clients_memories(rows, lossy):
    for made in after_each_round("mifa", rows, lossy, memory="client"):
        difference = made.algorithm.memory_total - sum(kept_by(made, "memory"))
        assert difference.abs().max() < 1e-12


@invariant
@links
def test_scaffold_control_is_the_mean_of_the_clients(rows, lossy):
    for made in after_each_round("scaffold", rows, lossy):
        control = made.algorithm.message(0)["control"]
        assert (control - mean(kept_by(made, "control"))).abs().max() < 1e-12


@invariant
@links
def test_amplified_scaffold_control_is_the_mean_of_the_clients_at_a_windows_end(rows, lossy):
    for made in after_each_round("amplified_scaffold", rows, lossy, window=2):
        if made.round % 2 == 0:
            latest = [
                state["gradients" if state["count"].any() else "control"]
                for state in (made.server.client_state(i) for i in range(3))
            ]
            control = made.algorithm.message(0)["control"]
            assert (control - mean(latest)).abs().max() < 1e-12


@invariant
@links
def test_client_state_is_that_of_the_last_counted_upload(rows, lossy):
    """Rounds without the client, and answers that are lost, leave it as it is."""
    for name in ("focus", "area", "scaffold"):
        before = [None] * 3
        for made in after_each_round(name, rows, lossy):
            states = [made.server.client_state(i) for i in range(3)]
            for i, active in enumerate(rows[made.round - 1][0]):
                if not active and made.round > 1:
                    assert states[i] is before[i]
            before = states


def test_mean_adds_up_in_double_precision_and_rounds_once():
    big, one = torch.tensor([2.0**24]), torch.tensor([1.0])
    # In single precision 2**24 + 1 would be 2**24.
    assert mean([big, one, one, one, one]).tolist() == [np.float32((2**24 + 4) / 5)]
    assert mean([big, one]).dtype == torch.float32
    assert torch.equal(big, torch.tensor([2.0**24]))


def test_advance_returns_the_bits_of_the_end_from_the_same_start():
    start, end = torch.tensor([0.1]), torch.tensor([0.3])
    assert advance(start.clone(), Update(0, start, end), 1.0).equal(end)
    assert advance(start, Update(0, start, end), 0.5).dtype == torch.float64


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_model_keeps_its_dtype_and_updates_are_not_modified(name):
    x0 = torch.tensor([1.0, 2.0])
    algorithm = ALGORITHMS[name](ServerInit(x0, 2))
    rule = algorithm.client_rule()
    names = ("model",) if rule is None else rule.uploads
    updates = [
        Update(
            i,
            x0,
            torch.tensor([0.5, i]) if "model" in names else None,
            {each: torch.tensor([0.25, i])[: 1 if each == "loss" else 2] for each in names},
        )
        for i in range(2)
    ]
    vectors = [v for u in updates for v in (u.end, *u.vectors.values()) if v is not None]
    copies = [vector.clone() for vector in vectors]
    for t in range(3):
        algorithm.aggregate(a_round(t, [0, 1], p=np.ones(2)), updates)
    assert algorithm.x.dtype == torch.float32
    assert x0.tolist() == [1.0, 2.0]
    assert all(torch.equal(*pair) for pair in zip(vectors, copies, strict=True))
