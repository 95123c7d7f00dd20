from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpbc.tasks import Gradients, LocalTraining, Quadratic, Supervised, WithGradients
from tests import small_runs as small


def test_noiseless_gradients_of_all_clients_are_exact() -> None:
    own = np.random.default_rng(0).normal(size=(5, 3))
    exact = [torch.from_numpy(g) for g in own]
    found = Gradients.from_pairs([(g, g) for g in exact], clients=5)
    centre = own.mean(axis=0)
    assert found.slope == pytest.approx(np.square(centre).sum())
    assert found.spread == pytest.approx(np.square(own - centre).sum(axis=1).mean())
    assert found.noise == 0


def test_noisy_gradients_of_some_clients_are_right_in_the_mean() -> None:
    rng = np.random.default_rng(1)
    own, noise, repeats = rng.normal(size=(8, 4)) + 0.5, 2.0, 1000
    sums = np.zeros((repeats, 3))
    for k in range(repeats):
        asked = rng.choice(8, 3, replace=False)
        noisy = [own[i] + noise * rng.normal(size=(2, 4)) for i in asked]
        pairs = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in noisy]
        # Not cut off at 0, which only the last line of the function does: by its own sums.
        inner = np.mean([float(a @ b) for a, b in pairs])
        middles = np.array([((a + b) / 2).numpy() for a, b in pairs])
        across = (np.square(middles.sum(axis=0)).sum() - np.square(middles).sum()) / 6
        slope = inner / 8 + across * 7 / 8
        found = Gradients.from_pairs(pairs, clients=8)
        assert found.slope == pytest.approx(max(slope, 0), abs=1e-12)
        assert found.spread == pytest.approx(max(inner - slope, 0), abs=1e-12)
        sums[k] = slope, found.noise, inner - slope
    centre = own.mean(axis=0)
    exact = np.square(centre).sum(), 4 * noise**2, np.square(own - centre).sum(axis=1).mean()
    error = sums.std(axis=0) / np.sqrt(repeats)
    assert (np.abs(sums.mean(axis=0) - exact) < 4 * error).all()


def test_one_client_has_no_spread() -> None:
    pair = torch.tensor([3.0]), torch.tensor([1.0])
    assert Gradients.from_pairs([pair], clients=1) == Gradients(slope=3, noise=2, spread=0)


def test_quadratics_are_exact() -> None:
    task = Quadratic([[0.0, 2.0], [4.0, 2.0]])
    found = task.gradients(torch.tensor([5.0, 6.0], dtype=torch.float64), draw=0)
    assert found == Gradients(slope=3**2 + 4**2, noise=0, spread=4)
    assert isinstance(task, WithGradients)


def linear(batch_size: int, clients: int = 6) -> Supervised:
    """Least squares, whose gradients are known; all of a client's samples may be one batch."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(clients * 20, 3, generator=random, dtype=torch.float64)
    y = torch.randn(clients * 20, 1, generator=random, dtype=torch.float64)
    module = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    return Supervised(
        module,
        (x, y),
        (x, y),
        clients=clients,
        loss=torch.nn.functional.mse_loss,
        training=LocalTraining(batch_size=batch_size),
    )


def exact_of(task: Supervised, model: torch.Tensor) -> tuple[np.ndarray, Gradients]:
    own = []
    for part in task.parts:
        x, y = task.data.inputs[part].numpy(), task.data.labels[part].numpy()
        own.append(2 * x.T @ (x @ model.numpy()[:, None] - y) / len(part))
    gradients = np.array(own)[:, :, 0]
    centre = gradients.mean(axis=0)
    spread = np.square(gradients - centre).sum(axis=1).mean()
    return gradients, Gradients(float(np.square(centre).sum()), 0.0, float(spread))


def test_whole_batches_give_the_exact_gradients() -> None:
    task = linear(batch_size=100)
    model = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    found, (_, exact) = task.gradients(model, draw=3), exact_of(task, model)
    assert found.slope == pytest.approx(exact.slope)
    assert found.spread == pytest.approx(exact.spread)
    assert found.noise == pytest.approx(0, abs=1e-25)


def test_small_batches_estimate_them_without_bias() -> None:
    task, repeats = linear(batch_size=4), 200
    model = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    own, exact = exact_of(task, model)
    found = [task.gradients(model, draw) for draw in range(repeats)]
    slopes = np.array([(g.slope, g.noise, g.spread) for g in found])
    noise = []
    for gradient, part in zip(own, task.parts, strict=True):
        x, y = task.data.inputs[part].numpy(), task.data.labels[part].numpy()
        each = 2 * x * (x @ model.numpy()[:, None] - y)
        # Four of twenty without putting back.
        variance = np.square(each - gradient).sum() / (len(part) - 1)
        noise.append(variance / 4 * (1 - 4 / len(part)))
    wanted = exact.slope, np.mean(noise), exact.spread
    error = slopes.std(axis=0) / np.sqrt(repeats)
    assert (np.abs(slopes.mean(axis=0) - wanted) < 4 * error + 1e-12).all()


def test_estimating_changes_nothing_and_can_be_made_again() -> None:
    dropout = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4)
    )
    for task in (small.network(), small.network(module=dropout)):
        x, state = task.init(), torch.get_rng_state()
        trained = task.local_steps(0, x, 0, 0, None)
        found = task.gradients(x, 5)
        assert torch.equal(task.local_steps(0, x, 0, 0, None), trained)
        assert torch.equal(torch.get_rng_state(), state)
        assert task.gradients(x, 5) == found
        assert task.gradients(x, 6) != found


def test_at_most_ten_clients_are_asked(monkeypatch) -> None:
    task, asked = small.network(clients=40), []
    gradients = task._gradients

    def watched(inputs, labels):
        asked.append(len(labels))
        return gradients(inputs, labels)

    monkeypatch.setattr(task, "_gradients", watched)
    task.gradients(task.init(), 0)
    assert len(asked) == 20
