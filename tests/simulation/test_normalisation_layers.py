"""Layers with running statistics: averaged, or kept on the client, against a transcription."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedpbc import InputError, LocalTraining, Result, Supervised, simulate
from fedpbc.engines.engine import one_thread
from tests.reference_normalisation import ALGORITHMS, Federation

X = torch.randn(240, 5, generator=torch.Generator().manual_seed(1))
Y = (X @ torch.randn(5, 3, generator=torch.Generator().manual_seed(2))).argmax(1)
UP = np.random.default_rng(3).random((7, 5)) < 0.5
UP[2] = False
ETA = 0.125
MODES = ("average", "client")


def network(momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6, momentum=momentum), nn.ReLU(), nn.Linear(6, 3)
    )


def make_task(mode: str, momentum: float | None = 0.1, **options: object) -> Supervised:
    training = LocalTraining(local_steps=3, batch_size=8, learning_rate=ETA, decay=False)
    settings = {"training": training, "seed": 4, "clients": 5, **options}
    return Supervised(network(momentum), (X, Y), (X, Y), running_statistics=mode, **settings)


def run(mode: str, algorithm: str, momentum: float | None = 0.1, **options: object) -> Result:
    return simulate(
        make_task(mode, momentum),
        algorithm,
        UP,
        evaluate_every=2,
        progress=False,
        **{"engine": "serial", **options},
    )


def expected(mode: str, algorithm: str, momentum: float | None = 0.1) -> dict[str, torch.Tensor]:
    task = make_task(mode, momentum)
    federation = Federation(
        network(momentum), UP, task.data.batch, s=3, eta=ETA, keep=mode == "client"
    )
    with one_thread():  # As in all engines: a sum's last bits depend on it.
        return ALGORITHMS[algorithm](federation)


def assert_equal(result: Result, reference: dict[str, torch.Tensor]) -> None:
    model = result.layout.named(result.models["server"])
    for name, tensor in reference.items():
        assert torch.equal(model[name], tensor), name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_averaged_statistics_equal_the_transcription(algorithm: str) -> None:
    assert_equal(run("average", algorithm), expected("average", algorithm))


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedavg", "mifa", "scaffold"])
def test_kept_layers_equal_the_transcription(algorithm: str) -> None:
    reference = expected("client", algorithm)
    assert sorted(reference) == ["0.bias", "0.weight", "3.bias", "3.weight"]
    assert_equal(run("client", algorithm), reference)


@pytest.mark.parametrize("mode", MODES)
def test_cumulative_statistics_count_the_clients_batches(mode: str) -> None:
    assert_equal(run(mode, "fedpbc", momentum=None), expected(mode, "fedpbc", momentum=None))


@pytest.mark.parametrize("mode", MODES)
def test_views_do_not_change_what_is_trained(mode: str) -> None:
    alone = run(mode, "fedpbc", views=["server"])
    assert torch.equal(alone.models["server"], run(mode, "fedpbc").models["server"])


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "algorithm"), [("average", "focus"), ("average", "fedpbc"), ("client", "fedpbc")]
)
def test_pool_has_the_same_bits(mode: str, algorithm: str) -> None:
    there, here = run(mode, algorithm, engine="pool", workers=2), run(mode, algorithm)
    assert all(torch.equal(there.models[view], here.models[view]) for view in here.models)
    assert there.cost == here.cost


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_ray_has_the_same_bits(mode: str) -> None:
    pytest.importorskip("ray")
    there, here = run(mode, "fedpbc", engine="ray", workers=2), run(mode, "fedpbc")
    assert all(torch.equal(there.models[view], here.models[view]) for view in here.models)


def test_bytes_are_those_of_what_travels() -> None:
    # Parameters: 5·6 + 6 and 6·3 + 3, those of the layer 2·6; statistics 2·6.
    contacts = int(UP.sum())
    averaged, kept = run("average", "fedavg"), run("client", "fedavg")
    assert averaged.cost["bytes_up"] == contacts * 4 * (57 + 12 + 12)
    assert kept.cost["bytes_up"] == contacts * 4 * 57
    # FOCUS uploads no model: the statistics travel by themselves.
    assert run("average", "focus").cost["bytes_up"] == contacts * 4 * (57 + 12 + 12)
    assert kept.cost["bytes_down"] == kept.cost["bytes_up"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("algorithm", ["fedpbc", "mifa"])
def test_resume_comes_to_the_same_bits(mode: str, algorithm: str, tmp_path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, metrics: object) -> None:
        if done == 5:
            raise Stop

    with pytest.raises(Stop):
        run(mode, algorithm, out=tmp_path / "run", on_round=stop)
    resumed = run(mode, algorithm, out=tmp_path / "run")
    whole = run(mode, algorithm)
    assert all(torch.equal(resumed.models[view], whole.models[view]) for view in whole.models)
    assert resumed.cost == whole.cost


@pytest.mark.parametrize("mode", MODES)
def test_the_final_model_gives_the_accuracy_that_was_reported(mode: str) -> None:
    result, module = run(mode, "fedpbc"), network()
    result.load_into(module, "reported")
    module.eval()
    accuracy = float((module(X).argmax(1) == Y).double().mean())
    assert accuracy == result.accuracy("reported")


def test_kept_layers_are_evaluated_as_their_mean() -> None:
    task = make_task("client")
    federation = Federation(network(), UP, task.data.batch, s=3, eta=ETA, keep=True)
    with one_thread():
        ALGORITHMS["fedavg"](federation)
    model = run("client", "fedavg")
    named = model.layout.named(model.models["server"])
    for name in ("1.weight", "1.bias", "1.running_mean", "1.running_var"):
        layers = [own[name].double() for own in federation.own]
        assert torch.equal(named[name], (sum(layers) / 5).float()), name


def test_lossy_downlinks_keep_statistics_with_the_model() -> None:
    down = np.ones_like(UP)
    down[3:] = False
    result = simulate(
        make_task("average"), "fedavg", UP, downlink=down, engine="serial", progress=False
    )
    assert torch.isfinite(result.models["server"]).all()
    assert (result.layout.named(result.models["averaged"])["1.running_var"] > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"running_statistics": "refuse"},
            "layer '1' (BatchNorm1d) keeps running statistics: use GroupNorm, "
            "track_running_stats=False, or running_statistics='average' or 'client'",
        ),
        (
            {"running_statistics": "keep"},
            "running_statistics is 'keep', but should be 'average', 'client' or 'refuse'",
        ),
        (
            {"partition": [np.arange(20), np.array([3])]},
            "client 1 trains on batches of 1: ValueError: Expected more than 1 value per channel "
            "when training, got input size torch.Size([1, 6]); use GroupNorm, or more samples",
        ),
    ],
)
def test_wrong_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Supervised(network(), (X, Y), (X, Y), **options)
    assert str(caught.value) == message


def test_an_algorithm_with_steps_of_its_own_cannot_train_kept_layers() -> None:
    with pytest.raises(InputError, match="focus takes the local steps itself"):
        run("client", "focus")
