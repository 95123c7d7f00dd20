"""Any module on any tensors: which batches it sees, what it refuses, and that it is pure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpbc.data import Augmentation, Batches
from fedpbc.engines import SerialEngine, StackedEngine, choose_engine
from fedpbc.errors import InputError
from fedpbc.tasks import LocalTraining, Supervised
from tests import small_runs as small


class Spy(nn.Module):
    """Remembers the batches it has seen in training."""

    def __init__(self, inputs: int = 6, outputs: int = 4) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(inputs, outputs), []

    def forward(self, x):
        if self.training:
            self.seen.append(x.clone())
        return self.layer(x.flatten(1))


def supervised(module=None, train=None, test=None, **more):
    data = small.samples()
    if more.get("partition") is None:
        more.setdefault("clients", 4)
    return Supervised(module or small.mlp(), train or data, test or data, **more)


STEPS = LocalTraining(local_steps=3, batch_size=8, learning_rate=0.1)

# Batches


@pytest.mark.parametrize(("client", "first"), [(0, 0), (3, 0), (1, 21)])
def test_the_batches_are_the_clients_from_the_first_one_on(client, first):
    spy, (x, y) = Spy(), small.samples()
    task = supervised(spy, training=STEPS, seed=9)
    assert [len(part) for part in task.parts] == [70] * 4
    task.local_steps(client, task.init(), 0, first, None)
    batches = Batches(9, [70] * 4, 8)
    for k, seen in zip(range(first, first + 3), spy.seen, strict=True):
        index = task.parts[client][batches.positions(client, k)]
        assert torch.equal(seen, x[index])
        assert torch.equal(task.data.batch(client, k)[1], y[index])


def test_local_steps_are_plain_sgd_on_those_batches():
    task, own = supervised(training=STEPS), small.mlp()
    found = task.local_steps(2, task.init(), 30, 5, None)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.05)  # η_30 = η_0/2
    for k in range(5, 8):
        x, y = task.data.batch(2, k)
        optimizer.zero_grad()
        functional.cross_entropy(own(x), y).backward()
        optimizer.step()
    wanted = nn.utils.parameters_to_vector(own.parameters())
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-6, atol=1e-7)


def test_a_correction_is_added():
    task = supervised(training=LocalTraining(local_steps=1, learning_rate=0.5))
    plain = task.local_steps(0, task.init(), 0, 0, None)
    shift = torch.linspace(-1, 1, len(plain))
    corrected = task.local_steps(0, task.init(), 0, 0, shift)
    torch.testing.assert_close(corrected, plain - 0.5 * shift, rtol=0, atol=1e-6)


def pictures(count=120):
    random = torch.Generator().manual_seed(2)
    x = torch.randint(0, 256, (count, 6, 5, 2), dtype=torch.uint8, generator=random)
    return x, torch.arange(count) % 3


@pytest.mark.parametrize("augment", [{}, {"crop_padding": 2}, {"flip": True, "crop_padding": 1}])
def test_pictures_are_normalised_and_augmented(augment):
    spy, (x, y) = Spy(60, 3), pictures()
    means, deviations = (100.0, 120.0), (50.0, 60.0)
    task = Supervised(
        spy, (x, y), (x, y), clients=3, normalise=(means, deviations), training=STEPS, **augment
    )
    task.local_steps(1, task.init(), 0, 4, None)
    own = Augmentation(0, augment.get("crop_padding", 0), augment.get("flip", False))
    changed = False
    for k, seen in zip(range(4, 7), spy.seen, strict=True):
        batch = x[task.parts[1][task.data.batches.positions(1, k)]]
        normal = (batch.float() - torch.tensor(means)) / torch.tensor(deviations)
        wanted = own.apply(normal, 1, k)
        changed |= not torch.equal(wanted, normal)
        assert torch.equal(seen, wanted.permute(0, 3, 1, 2))
    assert changed == bool(augment)


def test_a_crop_is_padded_with_the_mean_colour():
    """Not with black, which after normalising is an edge at a random place of every picture."""
    x, y = torch.full((90, 6, 5, 2), 200, dtype=torch.uint8), torch.arange(90) % 3
    network = small.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 3)))
    more = {"normalise": ((100.0, 120.0), (50.0, 40.0)), "crop_padding": 2, "flip": True}
    data = Supervised(network, (x, y), (x, y), clients=3, training=STEPS, **more).data
    stacked = [inputs for inputs, _ in data.stacked_batches([1, 2], [0, 3], 8)]
    padded = 0
    for place, (client, first) in enumerate([(1, 0), (2, 3)]):
        for step in range(8):
            alone, _ = data.batch(client, first + step)
            # Exactly: either the picture's one colour, (200 - mean) / deviation = 2, or the mean.
            assert set(alone.unique().tolist()) <= {0.0, 2.0}
            padded += int((alone == 0).any())
            assert torch.equal(stacked[step][place], alone.flatten(1))
    assert padded > 8


def test_augmentation_is_the_same_stacked():
    x, y = pictures()
    network = small.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 3)))
    more = {"normalise": ((100.0, 120.0), (50.0, 60.0)), "crop_padding": 2, "flip": True}
    task = Supervised(network, (x, y), (x, y), clients=3, training=STEPS, **more)
    stack = task.init().repeat(3, 1)
    task.stacked_local_steps([2, 0, 1], stack, [0, 1, 2], [0, 3, 8], None)
    for row, (client, round, first) in enumerate([(2, 0, 0), (0, 1, 3), (1, 2, 8)]):
        alone = task.local_steps(client, task.init(), round, first, None)
        assert small.distance(stack[row], alone) < 1e-5


def test_test_pictures_are_never_augmented():
    x, y = pictures()
    made = [
        Supervised(
            small.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 3))),
            (x, y),
            (x, y),
            clients=3,
            normalise=((100.0,) * 2, (50.0,) * 2),
            **augment,
        )
        for augment in ({}, {"crop_padding": 3, "flip": True})
    ]
    plain, augmented = (task.evaluate(task.init()) for task in made)
    assert plain == augmented


# Purity


class Dropping(nn.Module):
    """Remembers which inputs dropout left."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.layer, self.masks = nn.Dropout(0.5), nn.Linear(6, 4), []

    def forward(self, x):
        x = self.dropout(x)
        self.masks.append(x != 0)
        return self.layer(x)


@pytest.mark.parametrize("module", [small.mlp, Dropping])
def test_local_steps_are_pure(module):
    task = supervised(module(), training=STEPS)
    torch.manual_seed(1)
    start, state, threads = task.init(), torch.get_rng_state(), torch.get_num_threads()
    first = task.local_steps(1, start, 2, 6, None)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert torch.equal(start, task.init())
    torch.manual_seed(2)
    task.evaluate(first)
    task.local_steps(0, first, 7, 0, None)
    assert torch.equal(task.local_steps(1, start, 2, 6, None), first)
    assert not torch.equal(task.local_steps(1, start, 2, 7, None), first)
    assert not torch.equal(task.local_steps(0, start, 2, 6, None), first)


def test_dropout_is_a_function_of_client_and_batch():
    module = Dropping()
    task = supervised(module, training=STEPS)

    def masks(client, first):
        module.masks = []
        task.local_steps(client, task.init(), 0, first, None)
        return torch.stack(module.masks)

    assert torch.equal(masks(0, 0), masks(0, 0))
    assert not torch.equal(masks(0, 0), masks(1, 0))
    assert not torch.equal(masks(0, 0), masks(0, 3))
    assert not torch.equal(*masks(0, 0)[:2])  # anew in each step
    module.masks = []
    task.evaluate(task.init())
    assert all(mask.all() for mask in module.masks)  # none where a model is judged


def test_a_seed_decides_over_dropout():
    tasks = [supervised(Dropping(), training=STEPS, seed=seed) for seed in (0, 0, 1)]
    ends = [task.local_steps(0, torch.zeros(28), 0, 0, None) for task in tasks]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_frozen_parameters_stay():
    module = small.mlp()
    module[0].weight.requires_grad_(False)
    kept = module[0].weight.clone()
    task = supervised(module, training=STEPS)
    assert len(task.init()) == 12 + 48 + 4
    model = small.views(task, "fedpbc", np.ones((3, 4)), engine=SerialEngine)["server"]
    assert not torch.equal(model, task.init())
    assert torch.equal(module[0].weight, kept)


def test_the_first_model_is_what_the_module_held():
    module = small.mlp()
    wanted = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    task = supervised(module)
    task.local_steps(0, wanted, 0, 0, None)
    assert torch.equal(task.init(), wanted)
    task.init().zero_()
    assert torch.equal(task.init(), wanted)


def test_a_parameter_that_is_not_used_stays():
    class Spare(Spy):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.ones(3))

    task = supervised(Spare(), training=STEPS)
    [spare] = [task.layout.named(task.local_steps(0, task.init(), 0, 0, None))["spare"]]
    assert spare.tolist() == [1, 1, 1]


# Partitions


def test_a_partition_of_ones_own_with_unequal_sizes(engine):
    own = [np.arange(0, 20), np.arange(20, 120), np.arange(120, 137)]
    task = supervised(partition=own, training=STEPS)
    assert task.clients == 3
    for client, part in enumerate(own):
        seen = {tuple(row) for k in range(30) for row in task.data.batch(client, k)[0].tolist()}
        assert seen == {tuple(row) for row in task.data.inputs[part].tolist()}
    np.testing.assert_allclose(task.class_shares[0], [0.25] * 4)
    up = np.ones((30, 3), dtype=bool)
    _, metrics = small.finished(task, "fedavg", up, engine=engine, evaluate_every=30)
    assert metrics[-1].views["server"].test_accuracy > 0.8


def test_what_a_partition_contradicts():
    own = [[0, 1], [2, 3]]
    with pytest.raises(InputError, match=r"^clients is 10, but partition has 2 arrays"):
        supervised(partition=own, clients=10)
    with pytest.raises(InputError, match=r"^alpha is 0.1, but partition says which samples"):
        supervised(partition=own, alpha=0.1)
    assert supervised(partition=own, clients=2).clients == 2
    # Neither are samples split by α whose labels are numbers.
    data = small.samples()[0], torch.rand(len(small.samples()[0]))
    with pytest.raises(InputError, match=r"^alpha is 0.5, but these labels are not one class"):
        supervised(small.mlp(), data, data, loss="squared", alpha=0.5)


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_one_hot_labels_are_named(kind):
    x, y = small.samples()
    one_hot = torch.nn.functional.one_hot(torch.as_tensor(y)).to(kind)
    with pytest.raises(InputError, match=r"^one-hot labels; give class numbers: labels.argmax"):
        supervised(train=(x, one_hot), test=(x, one_hot))
    column = torch.as_tensor(y)[:, None]
    with pytest.raises(InputError, match=r"^labels of a sample have shape \(1,\) for outputs of"):
        supervised(train=(x, column), test=(x, column))


def test_fewer_samples_than_a_batch():
    task = supervised(partition=[[0, 1, 2], range(20, 60)], training=STEPS)
    assert sorted(task.data.batch(0, 0)[1].tolist()) == [0, 1, 2]
    assert len(task.data.batch(1, 0)[1]) == 8
    model = small.views(task, "fedpbc", np.ones((4, 2)))["server"]
    assert not torch.equal(model, task.init())
    assert isinstance(choose_engine("auto", task, client_rounds=8)[0], StackedEngine)


def test_class_shares_of_the_drawn_partition():
    task = supervised(alpha=0.1)
    counts = [np.bincount(task.data.labels[part].numpy(), minlength=4) for part in task.parts]
    np.testing.assert_array_equal(task.class_shares, np.array(counts) / 70)
    assert len(np.unique(np.concatenate(task.parts))) == 280


# Regression and judging


def test_regression():
    x, _ = small.samples()
    y = x @ torch.arange(6.0)[:, None]
    task = Supervised(
        small.seeded(lambda: nn.Linear(6, 1)),
        (x, y),
        (x, y),
        clients=4,
        loss=functional.mse_loss,
        training=LocalTraining(learning_rate=0.05),
    )
    assert task.class_shares is None
    assert sorted(np.concatenate(task.parts)) == list(range(280))
    _, [metrics] = small.finished(
        task, "fedpbc", np.ones((40, 4)), engine=SerialEngine, evaluate_every=40
    )
    found = metrics.views["server"]
    assert found.test_loss < 0.1 < task.evaluate(task.init()).test_loss
    assert found.test_accuracy is found.per_class is found.train_accuracy is None


def test_judging_by_hand():
    """A model that always says class 1, with a probability of 1/2."""
    module, x = nn.Linear(6, 4), torch.zeros(8, 6)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.copy_(torch.tensor([1 / 6, 1 / 2, 1 / 6, 1 / 6]).log())
    labels = torch.tensor([0, 1, 1, 1, 0, 0, 0, 0])
    test = x[:4], torch.tensor([0, 1, 1, 3])
    task = Supervised(module, (x, labels), test, clients=1)
    found = task.evaluate(task.init())
    assert found.per_class == [0.0, 1.0, None, 0.0]  # the test samples have no class 2
    assert found.test_accuracy == 0.5
    assert found.train_accuracy == 3 / 8
    assert found.test_loss == pytest.approx((2 * np.log(2) + 2 * np.log(6)) / 4)
    assert found.train_loss == pytest.approx((3 * np.log(2) + 5 * np.log(6)) / 8)
    assert task.class_shares.tolist() == [[5 / 8, 3 / 8, 0, 0]]


def test_many_samples_are_judged_as_one():
    x, y = small.samples(1203)
    task = supervised(train=(x, y), test=(x, y), train_samples=0)
    found = task.evaluate(task.init())
    logits = small.mlp()(x)
    assert found.test_loss == pytest.approx(functional.cross_entropy(logits, y).item(), rel=1e-5)
    assert found.test_accuracy == pytest.approx((logits.argmax(1) == y).double().mean().item())
    # 1203 = 4·300 + 3: three samples belong to nobody, and are not among the training samples.
    used = np.concatenate(task.parts)
    assert len(used) == 1200
    hits = (logits.argmax(1) == y)[used].double().mean().item()
    assert found.train_accuracy == pytest.approx(hits)


def test_a_part_of_the_training_samples_is_judged():
    tasks = [supervised(train_samples=n) for n in (0, 50)]
    whole, part = (task.evaluate(task.init()) for task in tasks)
    assert whole.test_loss == part.test_loss
    assert whole.train_loss != part.train_loss
    assert part.train_accuracy * 50 == pytest.approx(round(part.train_accuracy * 50))


# Refusals

X, Y = small.samples(40)
NAN = X.clone()
NAN[3, 2] = float("nan")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"train": (X, Y[:-1])}, "train has 40 inputs and 39 labels"),
        ({"test": (X[:5], Y[:6])}, "test has 5 inputs and 6 labels"),
        ({"train": (X[:0], Y[:0])}, "train is empty"),
        ({"test": (X[:0], Y[:0])}, "test is empty"),
        ({"train": (NAN, Y)}, "train has infinite or NaN values"),
        ({"test": (NAN, Y)}, "test has infinite or NaN values"),
        ({"test": (NAN / 0, Y)}, "test has infinite or NaN values"),
        ({"train": (X, Y - 1)}, "train has the label -1"),
        ({"test": (X, Y - 2)}, "test has the label -2"),
        ({"train": (X, Y.float())}, "labels are torch.float32"),
        ({"clients": 0}, "clients is 0"),
        ({"clients": 41}, "clients is 41"),
        ({"alpha": 0.0}, "alpha is 0"),
        ({"partition": []}, "partition is empty"),
        ({"partition": [[0], []]}, "partition of client 1 has shape"),
        (
            {"partition": [[0, 40]]},
            "partition of client 0 has the index 40, but should be from 0 to 39",
        ),
        ({"partition": [[-1, 3]]}, "partition of client 0 has the index -1"),
        ({"partition": [[[1]]]}, "partition of client 0 has shape"),
        ({"module": nn.ReLU()}, "module has no parameters"),
        (
            {
                "module": nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)),
                "running_statistics": "refuse",
            },
            "layer '1' (BatchNorm1d) keeps running statistics: use GroupNorm, ",
        ),
        (
            {"module": nn.BatchNorm1d(6), "running_statistics": "refuse"},
            "layer 'BatchNorm1d' (BatchNorm1d) keeps running statistics",
        ),
        ({"crop_padding": -1}, "crop_padding is -1"),
        (
            {"loss": functional.mse_loss, "train": (X, NAN[:, :1] * 0 + NAN[:, 2:3])},
            "infinite or NaN",
        ),
        ({"loss": functional.mse_loss, "train": (X, X / 0)}, "infinite or NaN"),
    ],
)
def test_refusals(change, says):
    arguments = {"module": small.mlp(), "train": (X, Y), "test": (X, Y), "clients": 2, **change}
    with pytest.raises(InputError) as error:
        Supervised(
            arguments.pop("module"), arguments.pop("train"), arguments.pop("test"), **arguments
        )
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_norms_without_running_statistics_are_fine():
    for norm in (nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.BatchNorm1d(4, track_running_stats=False)):
        supervised(nn.Sequential(nn.Linear(6, 4), norm))


def test_numpy_arrays_are_taken():
    data = X.numpy(), Y.numpy().astype(np.int32)
    task = Supervised(small.mlp(), data, data, clients=2)
    assert torch.equal(task.data.labels, Y)
    assert task.evaluate(task.init()).test_loss > 0


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        (lambda outputs, labels: "x", "loss returns a str, but should return the mean"),
        (lambda outputs, labels: outputs, r"loss returns a tensor of shape \(2, 4\), but"),
        (
            lambda outputs, labels: outputs.detach().sum(),
            r"loss returns a tensor of shape \(\) without a gradient",
        ),
        (lambda outputs: outputs.sum(), "one that takes outputs and labels"),
        (nn.NLLLoss(reduction="none"), r"loss returns a tensor of shape \(2,\)"),
        (lambda outputs, labels: (outputs[:, :2] * labels).sum(), "takes outputs and labels"),
    ],
)
def test_a_loss_that_cannot_be_minimised_is_refused(loss, line):
    with pytest.raises(InputError, match=line):
        supervised(loss=loss)


def test_a_module_that_returns_more_than_a_tensor_is_refused():
    with pytest.raises(InputError, match="module returns a tuple, but should return a tensor"):
        supervised(nn.Sequential(nn.Flatten(), nn.LSTM(6, 4)))


def test_sparse_samples_are_refused():
    inputs, labels = small.samples()
    with pytest.raises(InputError, match=r"train has sparse tensors.*use to_dense\(\)"):
        supervised(train=(torch.as_tensor(inputs).to_sparse(), labels))


def test_test_samples_that_the_module_does_not_accept_are_refused():
    other = torch.zeros(2, 9), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(InputError, match=r"one that takes test inputs of shape \(9,\)"):
        supervised(nn.Linear(6, 4), test=other)


def test_client_accuracies_are_those_of_the_model_as_it_is_now():
    task = supervised()
    model = task.init()
    before = task.client_accuracies(model)
    task.evaluate(model)
    assert task.client_accuracies(model) == before
    changed = torch.linspace(-1, 1, len(model))
    model.copy_(changed)
    assert task.client_accuracies(model) == task.client_accuracies(changed) != before
