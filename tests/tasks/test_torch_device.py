"""Work on a device that is not the CPU: models come and go on the CPU, all the rest stays there."""

from __future__ import annotations

import pickle
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpbc.engines import Segment, SerialEngine, StackedEngine
from fedpbc.engines.engine import one_thread
from fedpbc.errors import InputError
from fedpbc.experiments.build import build_task
from fedpbc.experiments.configuration import Config
from fedpbc.tasks import (
    LocalTraining,
    Quadratic,
    Supervised,
    quadratic,
    stack_trainer,
    stacked_training,
    supervised,
)
from fedpbc.tasks.networks import build_model
from fedpbc.tasks.torch_device import find_device, refuse_double, repeatable, seeded
from tests import small_runs as small
from tests.commandline import DIGITS, content, fedpbc, refused, write_check
from tests.tasks.second_device import HERE, THERE, MixedError, SecondDevice, default_device

CUDA = torch.device("cuda", 0)
with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(autouse=True)
def _one_thread():
    """As in the engines; small tensors on many threads take many times as long."""
    with one_thread():
        yield


# Tasks of every kind, each made anew


def pictures():
    random = torch.Generator().manual_seed(2)
    x = torch.randint(0, 256, (120, 8, 8, 3), dtype=torch.uint8, generator=random)
    return x, torch.arange(120) % 3


def convolutional(name="cnn_svhn", device="cpu", **more):
    data, network = pictures(), build_model(name, (8, 8, 3), 3, seed=1)
    own = {"local_steps": 2, "batch_size": 8, "learning_rate": 0.01}
    return Supervised(
        network,
        data,
        data,
        clients=3,
        training=LocalTraining(**{**own, **more}),
        normalise=((100.0, 120.0, 130.0), (50.0, 60.0, 70.0)),
        crop_padding=2,
        flip=True,
        device=device,
    )


def dense(device="cpu", **more):
    own = {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1}
    data, training = small.samples(), LocalTraining(**{**own, **more})
    return Supervised(small.mlp(), data, data, clients=7, training=training, device=device)


def regression(device="cpu"):
    x, _ = small.samples()
    module = small.seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.GroupNorm(1, 5), nn.Tanh()))
    data, training = (x, x[:, :5]), LocalTraining(local_steps=2, batch_size=8)
    loss = functional.mse_loss
    return Supervised(module, data, data, clients=3, loss=loss, training=training, device=device)


def plain(device="cpu", **training):
    targets = torch.randn(7, 4, generator=torch.Generator().manual_seed(3)).numpy()
    return Quadratic(targets, training=LocalTraining(**training), device=device)


TASKS = {
    "dense": dense,
    "proximal": lambda device="cpu": dense(device, momentum=0.9, proximal=0.1),
    "convolutions": convolutional,
    "adam": lambda device="cpu": convolutional(device=device, optimizer="adam"),
    "regression": regression,
    "quadratic": plain,
    "quadratic adam": lambda device="cpu": plain(device, optimizer="adam", proximal=0.2),
}
STACKED = ("dense", "proximal", "quadratic", "quadratic adam")
tasks = pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
stacked_tasks = pytest.mark.parametrize("make", [TASKS[name] for name in STACKED], ids=STACKED)
# In this process: the second device is in no other.
engines = pytest.mark.parametrize("engine", [SerialEngine, StackedEngine])
corrections = pytest.mark.parametrize("corrected", [False, True], ids=["plain", "corrected"])


def shift(task):
    return torch.linspace(-0.5, 0.5, len(task.init()), dtype=task.init().dtype, device=HERE)


def local(task, corrected=False):
    """Two rounds of a client."""
    term = shift(task) if corrected else None
    steps = task.training.local_steps
    model = task.local_steps(1, task.init(), 4, 3, term)
    return task.local_steps(1, model, 5, 3 + steps, term)


ROWS = [5, 0, 2, 1, 6]


def stacked(task, corrected=False, clients=ROWS):
    """A round for rows in different rounds."""
    models = task.init().repeat(len(clients), 1).to(task.device)
    terms = shift(task).repeat(len(clients), 1).to(task.device) if corrected else None
    task.stacked_local_steps(clients, models, clients, [3 * i for i in clients], terms)
    return models.cpu()


# The second device is what it should be


def test_the_second_device_holds_values_and_refuses_mixtures():
    with SecondDevice() as device:
        far = torch.arange(6.0).to(THERE).view(2, 3)
        far[:, 1] += 10
        assert far.device == (far * 2).device == torch.ones(2, device=THERE).device == THERE
        assert (far.sum().item(), far[0].tolist()) == (35, [0, 11, 2])
        assert far.cpu().tolist() == [[0, 11, 2], [3, 14, 5]]
        assert torch.tensor([1, 2], device=THERE).cpu().tolist() == [1, 2]
        assert device.carried == 4
        for mixture in (
            lambda: far + torch.ones(3),
            lambda: far @ torch.ones(3, 1),
            lambda: far[torch.tensor([0])],
            lambda: torch.stack([far[0], torch.ones(3)]),
            lambda: far.mul_(torch.tensor(2.0)),
            lambda: torch._foreach_add([far], [torch.ones(2, 3)]),
        ):
            with pytest.raises(MixedError):
                mixture()


def test_the_second_device_has_gradients():
    with SecondDevice():
        module = nn.Linear(3, 1).to(THERE)
        loss = module(torch.ones(2, 3).to(THERE)).sum()
        weight, bias = torch.autograd.grad(loss, list(module.parameters()))
        assert (weight.tolist(), bias.tolist()) == ([[2.0] * 3], [2.0])


# Nothing but the models leaves it


@contextmanager
def elsewhere():
    """There is a second device, and tasks are put on it."""
    with pytest.MonkeyPatch.context() as patch, SecondDevice() as device:
        for module in (supervised, quadratic):
            patch.setattr(module, "find_device", lambda given: THERE)
        # Few, so that there are several lots of rows, and one that is not full.
        patch.setattr(stack_trainer, "GPU_ROWS", 3)
        yield device


@corrections
@tasks
def test_local_steps_elsewhere(make, corrected):
    with elsewhere() as far:
        task = make()
        start, term = task.init(), shift(task) if corrected else None
        far.left_here.clear()
        far.carried = 0
        end = task.local_steps(1, start, 4, 3, term)
        # The start, the indices of each batch, the correction, and the end.
        batches = task.training.local_steps if isinstance(task, Supervised) else 0
        assert far.carried == 2 + batches + corrected
        # Indices come from NumPy; nothing is computed on the CPU.
        assert set(far.left_here) <= {"aten.lift_fresh.default"}
        assert (type(end), end.device) == (torch.Tensor, HERE)
        found = local(task, corrected)
    wanted = local(make(), corrected)
    assert small.distance(found, wanted) < 1e-5
    assert (wanted - start).norm() > 1e-3


@corrections
@stacked_tasks
def test_stacked_steps_elsewhere(make, corrected):
    with elsewhere() as far:
        task = make()
        models = task.init().repeat(5, 1).to(THERE)
        terms = shift(task).repeat(5, 1).to(THERE) if corrected else None
        far.left_here.clear()
        task.stacked_local_steps(ROWS, models, ROWS, [3 * i for i in ROWS], terms)
        # Python's numbers (the rates) and NumPy's (the indices), before they are carried over.
        assert set(far.left_here) <= {"aten.lift_fresh.default"}
        found = models.cpu()
    wanted = stacked(make(), corrected)
    assert small.distance(found, wanted) < 1e-5


@tasks
def test_judging_elsewhere(make):
    near = make()
    model = near.init() + 0.1
    wanted = near.evaluate(model)
    with elsewhere():
        found = make().evaluate(model)
    assert found.per_class == wanted.per_class
    assert found.test_accuracy == wanted.test_accuracy
    assert found.train_accuracy == wanted.train_accuracy
    assert found.test_loss == pytest.approx(wanted.test_loss, rel=1e-5)
    assert found.train_loss == pytest.approx(wanted.train_loss, rel=1e-5)
    assert found.extra == pytest.approx(wanted.extra, rel=1e-5)


@tasks
def test_what_a_task_says_of_itself_is_the_same_elsewhere(make):
    near = make()
    with elsewhere():
        far = make()
        assert far.fingerprint() == near.fingerprint()
        assert type(far.init()) is torch.Tensor
        assert torch.equal(far.init(), near.init())
        assert (far.class_shares is None) == (near.class_shares is None)
        if near.class_shares is not None:
            assert (far.class_shares == near.class_shares).all()


@engines
@pytest.mark.parametrize("algorithm", ["fedpbc", "scaffold"])
@pytest.mark.parametrize("make", [dense, plain])
def test_a_run_elsewhere(make, algorithm, engine):
    """The server's arithmetic is the CPU's; scales and corrections find their rows."""
    up = small.random_table(rounds=8)
    run = {"engine": engine, "global_lr": 0.5, "evaluate_every": 8}
    with elsewhere():
        made, metrics = small.finished(make(), algorithm, up, **run)
        found = made.view_models()
    made, wanted_metrics = small.finished(make(), algorithm, up, **run)
    for view, wanted in made.view_models().items():
        assert type(found[view]) is torch.Tensor
        assert small.distance(found[view], wanted) < 1e-5
    for one, other in zip(metrics, wanted_metrics, strict=True):
        for view in other.views:
            assert one.views[view].test_loss == pytest.approx(other.views[view].test_loss, rel=1e-4)


def test_a_row_elsewhere_always_has_the_same_company():
    """How a GPU adds up may depend on how many rows there are: always as many."""
    seen = []
    watched = stacked_training.stacked_steps

    def stacked_steps(training, layout, models, *rest):
        seen.append(len(models))
        return watched(training, layout, models, *rest)

    with elsewhere(), pytest.MonkeyPatch.context() as patch:
        task = dense()
        for module in (stack_trainer, stacked_training):
            patch.setattr(module, "stacked_steps", stacked_steps)
        together = stacked(task)
        assert seen == [3, 2, 3]  # two rows become three
        for row, client in enumerate(ROWS):
            assert torch.equal(stacked(task, clients=[client])[0], together[row])


def test_the_written_out_step_is_the_cpus():
    assert dense()._backprop is not None
    with elsewhere():
        assert dense()._backprop is None


def test_a_module_that_stays_behind_is_refused():
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.shift = nn.Linear(6, 4), torch.ones(6)  # not a buffer

        def forward(self, x):
            return self.layer(x + self.shift)

    with elsewhere(), pytest.raises(InputError, match=r"module is 'Shifted'.*tensors of both"):
        Supervised(Shifted(), small.samples(), small.samples(), clients=2)


# Nothing relies on the default device


@corrections
@tasks
def test_the_default_device_does_not_matter(make, corrected):
    """Whatever were made without a word on where would have no values, and fail."""
    task = make()
    wanted, judged = local(task, corrected), task.evaluate(task.init())
    with default_device(THERE):
        assert torch.ones(1).device == THERE
        assert torch.equal(local(task, corrected), wanted)
        assert task.evaluate(task.init()) == judged


@corrections
@stacked_tasks
def test_the_default_device_does_not_matter_to_stacks(make, corrected):
    task = make()
    wanted = stacked(task, corrected)
    with default_device(THERE):
        assert torch.equal(stacked(task, corrected), wanted)


def test_the_default_device_does_not_matter_to_making_a_task():
    (x, y), modules, wanted = small.samples(), [small.mlp(), small.mlp()], dense()
    own = {"clients": 7, "training": wanted.training}
    with default_device(THERE):
        for data, module in zip([(x, y), (x.numpy(), y.numpy())], modules, strict=True):
            task = Supervised(module, data, data, **own)
            assert task.fingerprint() == wanted.fingerprint()
            assert torch.equal(local(task), local(wanted))
        assert Quadratic([[1.0]]).init().device == HERE


@pytest.mark.parametrize("augment", [{}, {"crop_padding": 1, "flip": True}])
def test_the_default_device_does_not_matter_to_pictures(augment):
    data, network = pictures(), build_model("softmax", (8, 8, 3), 3, seed=0)
    with default_device(THERE):
        task = Supervised(
            network, data, data, clients=3, normalise=([9.0] * 3, [2.0] * 3), **augment
        )
        assert task.evaluate(local(task)).test_loss > 0


@engines
def test_the_default_device_does_not_matter_to_a_run(engine):
    up, task = small.random_table(rounds=8), dense()
    wanted = small.views(task, "fedpbc", up, engine=engine)
    with default_device(THERE):
        assert small.same_bits(small.views(task, "fedpbc", up, engine=engine), wanted)


# Random numbers and precision


def test_a_devices_own_generator_is_seeded_and_put_back(monkeypatch):
    own, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    monkeypatch.setattr(torch.cuda, "default_generators", (other, own))
    everyone = torch.default_generator, own, other
    before = [generator.get_state() for generator in everyone]
    with seeded(7, torch.device("cuda", 1)):
        wanted = torch.Generator().manual_seed(7).get_state()
        for generator in (torch.default_generator, own):
            assert torch.equal(generator.get_state(), wanted)
        assert torch.equal(other.get_state(), before[2])
        torch.rand(3, generator=own)
    for generator, state in zip(everyone, before, strict=True):
        assert torch.equal(generator.get_state(), state)


def test_generators_are_put_back_after_an_error():
    state = torch.get_rng_state()
    with pytest.raises(KeyError), seeded(7, HERE):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), state)


def test_seeds_do_not_reach_other_devices(monkeypatch):
    """torch.manual_seed would seed every GPU of the machine, and nobody would put that back."""
    other = torch.Generator().manual_seed(2)
    monkeypatch.setattr(torch.cuda, "default_generators", (other,))
    before = other.get_state()
    for seed in (None, 7):
        with seeded(seed, HERE):
            torch.rand(1)
    assert torch.equal(other.get_state(), before)


def test_convolutions_are_exact_and_repeatable_on_cuda():
    cudnn = torch.backends.cudnn

    def now():
        return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32

    before = now()
    with repeatable(CUDA):
        assert now() == (before[0], False, True, False)
    with repeatable(HERE):
        assert now() == before
    assert now() == before


# Other processes


@pytest.mark.parametrize("make", [dense, convolutional, plain])
def test_a_copy_of_a_task_that_has_been_used_trains_as_well(make):
    task = make()
    wanted = local(task)
    copy = pickle.loads(pickle.dumps(task))
    assert copy.device == task.device
    assert torch.equal(local(copy), wanted)
    assert copy.evaluate(wanted) == task.evaluate(wanted)


# Refusals


def devices(patch, cuda=0, mps=False):
    """So many GPUs, as far as PyTorch says."""
    patch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    patch.setattr(torch.cuda, "device_count", lambda: cuda)
    patch.setattr(torch.cuda, "current_device", lambda: cuda - 1)
    patch.setattr(torch.backends.mps, "is_available", lambda: mps)


KINDS = "'cpu', or for a GPU 'cuda', 'cuda:1', … or 'mps'"


@pytest.mark.parametrize(
    ("given", "there", "right"),
    [
        ("cuda", {}, "'cpu': PyTorch sees no CUDA device here"),
        ("cuda:1", {}, "'cpu': PyTorch sees no CUDA device here"),
        ("mps", {"cuda": 1}, "'cpu': PyTorch sees no MPS device here"),
        ("cuda:3", {"cuda": 1}, "'cuda:0': PyTorch sees 1 CUDA device here"),
        ("cuda:2", {"cuda": 2}, "from 'cuda:0' to 'cuda:1': PyTorch sees 2 CUDA devices here"),
        ("cuda:300", {"cuda": 64}, "from 'cuda:0' to 'cuda:63': PyTorch sees 64 CUDA devices here"),
        ("mps:1", {"mps": True}, "'mps:0': PyTorch sees 1 MPS device here"),
        ("cdua", {"cuda": 1}, KINDS),
        ("gpu", {"cuda": 1}, KINDS),
        ("", {}, KINDS),
        ("cuda:", {"cuda": 1}, KINDS),
        ("cuda:-1", {"cuda": 1}, KINDS),
        ("cuda:one", {"cuda": 1}, KINDS),
        ("cuda:0:1", {"cuda": 1}, KINDS),
        ("meta", {}, KINDS),
        ("cpu:1", {}, "'cpu'"),
    ],
)
def test_a_device_that_is_not_there(monkeypatch, given, there, right):
    devices(monkeypatch, **there)
    for make in (find_device, dense, plain):
        with pytest.raises(InputError) as error:
            make(given)
        assert str(error.value) == f"device is {given!r}, but should be {right}"


def test_devices_that_are_there(monkeypatch):
    devices(monkeypatch, cuda=2, mps=True)
    named = {"cpu": "cpu", "cpu:0": "cpu", "cuda": "cuda:1", "cuda:0": "cuda:0", "mps": "mps:0"}
    for given, found in named.items():
        assert find_device(given) == find_device(torch.device(given)) == torch.device(found)


def doubles(device):
    x, y = small.samples()
    return Supervised(small.mlp().double(), (x.double(), y), (x, y), clients=2, device=device)


def test_double_precision_on_mps(monkeypatch):
    devices(monkeypatch, mps=True)
    for make in (plain, doubles):
        with pytest.raises(InputError, match=r"device is 'mps', .*'cpu': MPS has no double"):
            make("mps")
    refuse_double(torch.device("mps"), [torch.float32])
    refuse_double(CUDA, [torch.float64])


@pytest.mark.parametrize(
    ("device", "line"),
    [
        ("cuda", "device is 'cuda', but should be 'cpu': PyTorch sees no CUDA device here"),
        ("cuda:3", "device is 'cuda:3', but should be 'cpu': PyTorch sees no CUDA device here"),
        ("mps", "device is 'mps', but should be 'cpu': PyTorch sees no MPS device here"),
        ("cdua", f"device is 'cdua', but should be {KINDS}"),
    ],
    ids=["cuda", "cuda:3", "mps", "cdua"],
)
@pytest.mark.parametrize("how", [("--device", "{}"), ("--set", "device={}")], ids=["option", "set"])
def test_a_wrong_device_on_the_command_line(monkeypatch, tmp_path, how, device, line):
    devices(monkeypatch)
    check, named = write_check(tmp_path), [word.format(device) for word in how]
    before, out = content(tmp_path), ("--out", tmp_path / "out", *named)
    assert refused(fedpbc("run", *DIGITS, "--rounds", 3, *out)) == line
    assert refused(fedpbc("run", check, *out)) == line
    assert refused(fedpbc("compare", *DIGITS, "--algorithms", "fedavg", *out)) == line
    assert content(tmp_path) == before


def test_the_configuration_reaches_the_task(monkeypatch):
    given = []

    def noted(device):
        given.append(device)
        return HERE

    monkeypatch.setattr("fedpbc.experiments.build.find_device", noted)
    task = build_task(Config.from_dict({"data": "digits", "clients": 4, "device": "cuda:1"}))
    assert (given, task.device) == (["cuda:1"], HERE)  # type: ignore[attr-defined]


# On a GPU


@with_cuda
@corrections
@tasks
def test_local_steps_on_cuda(make, corrected):
    task = make("cuda")
    found = local(task, corrected)
    assert found.device == HERE
    assert small.distance(found, local(make(), corrected)) < 1e-4
    assert torch.equal(local(task, corrected), found)
    copy = pickle.loads(pickle.dumps(task))
    assert copy.device == task.device
    assert torch.equal(local(copy, corrected), found)


@with_cuda
@corrections
@stacked_tasks
def test_stacked_steps_on_cuda(make, corrected):
    task = make("cuda")
    found = stacked(task, corrected)
    assert small.distance(found, stacked(make(), corrected)) < 1e-4
    for row, client in enumerate(ROWS):
        assert torch.equal(stacked(task, corrected, [client])[0], found[row])


@with_cuda
@tasks
def test_judging_on_cuda(make):
    near, far = make(), make("cuda")
    model = near.init() + 0.1
    assert far.evaluate(model).test_loss == pytest.approx(near.evaluate(model).test_loss, rel=1e-4)
    assert far.evaluate(model) == far.evaluate(model)
    assert far.fingerprint() == near.fingerprint()


@with_cuda
@engines
@pytest.mark.parametrize("make", [dense, plain])
def test_a_run_on_cuda(make, engine):
    up = small.random_table(rounds=8)
    found, wanted = (
        small.views(make(device), "fedpbc", up, engine=engine, global_lr=0.5)
        for device in ("cuda", "cpu")
    )
    for view, model in found.items():
        assert model.device == HERE
        assert small.distance(model, wanted[view]) < 1e-4


@with_cuda
def test_dropout_on_cuda_is_a_function_of_client_and_batch():
    task = convolutional("cnn_cinic10", "cuda")
    state, first = torch.cuda.get_rng_state(), local(task)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.cuda.manual_seed(5)
    assert torch.equal(local(task), first)
    other = task.local_steps(1, task.init(), 4, 0, None)
    assert not torch.equal(other, task.local_steps(1, task.init(), 4, 3, None))


@with_cuda
def test_segments_on_cuda_come_back():
    task = dense("cuda")
    for engine in (SerialEngine(task), StackedEngine(task)):
        for client in range(3):
            engine.submit(Segment(client, task.init(), 0, 1 + client, 0))
        assert {engine.result(client).end.device for client in range(3)} == {HERE}
