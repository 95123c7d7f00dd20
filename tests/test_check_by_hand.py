"""An algorithm can be checked by hand: quadratic targets and a timetable, both from files."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from fedpbc import InputError, build_model, load, load_view
from fedpbc.data import channel_statistics
from tests.commandline import final, metrics, process, ran, write_check
from tests.reference import ALGORITHMS, OWN_MODELS, reference


def by_hand(folder, algorithm: str, *, decay: bool = False, rate: float = 0.1, steps: int = 5):
    """The reference's views after all rounds, computed from the two files alone."""
    targets = torch.from_numpy(np.load(folder / "targets.npy"))
    up = np.load(folder / "timetable.npy").astype(bool)

    def learning_rate(t: int) -> float:
        return rate / math.sqrt(t / 10 + 1) if decay else rate

    def local(client, start, round, first_batch, correction):
        x = start.clone()
        for _ in range(steps):
            gradient = x - targets[client]
            if correction is not None:
                gradient = gradient + correction
            x = x - learning_rate(round) * gradient
        return x

    return reference(
        algorithm,
        torch.zeros(targets.shape[1], dtype=torch.float64),
        up,
        local,
        local_steps=steps,
        learning_rate=learning_rate,
        probabilities=np.broadcast_to(up.mean(axis=0), up.shape),
        gradient=lambda client, model, batch: model - targets[client],
        loss=lambda client, model: float((model - targets[client]).square().sum() / 2),
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_matches_the_reference(tmp_path, monkeypatch, algorithm, decay):
    check = write_check(tmp_path / "given")
    text = check.read_text()
    text = text.replace('algorithm = "fedau"', f'algorithm = "{algorithm}"')
    check.write_text(text.replace("decay = false", f"decay = {str(decay).lower()}"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    ran("run", "../given/check.toml", "--out", "run")
    expected = by_hand(tmp_path / "given", algorithm, decay=decay)
    saved = load_file(elsewhere / "run" / "final.safetensors")
    own_model_views = {"mean", "reported", "corrected"} if algorithm in OWN_MODELS else set()
    assert saved.keys() == {"server", "averaged"} | own_model_views
    for view, model in expected.items():
        assert saved[view].dtype == torch.float64
        assert saved[view].shape == (3,)
        assert torch.allclose(saved[view], model, rtol=0, atol=1e-6), view


def test_the_averaged_view_starts_at_zero(tmp_path):
    check = write_check(tmp_path)
    up = np.zeros((2, 12), dtype=int)
    up[1, 3] = 1
    np.save(tmp_path / "timetable.npy", up)
    ran("run", check, "--rounds", 2, "--out", tmp_path / "run")
    saved = load_file(tmp_path / "run" / "final.safetensors")
    moved = (1 - 0.9**5) * np.load(tmp_path / "targets.npy")[3] / 12  # a first contact weighs 1
    assert np.allclose(saved["server"], moved, atol=1e-12)
    assert np.allclose(saved["averaged"], 0.05 * moved, atol=1e-12)


def test_the_command_in_a_separate_process(tmp_path):
    check = write_check(tmp_path / "given")
    work = tmp_path / "work"
    work.mkdir()
    ended = process("run", check, "--out", work / "run", cwd=work)
    assert (ended.code, ended.err) == (0, "")
    assert "fedau · quadratic · table" in ended.out
    assert str(work / "run") in ended.out
    server = load_file(work / "run" / "final.safetensors")["server"]
    assert torch.allclose(server, by_hand(tmp_path / "given", "fedau")["server"], atol=1e-6)
    assert sorted(p.name for p in work.iterdir()) == ["run"]


def test_the_timetable_as_csv_and_as_bools(tmp_path):
    check = write_check(tmp_path)
    ran("run", check, "--out", tmp_path / "npy")
    up = np.load(tmp_path / "timetable.npy")
    np.savetxt(tmp_path / "timetable.csv", up, fmt="%d", delimiter=",")
    np.save(tmp_path / "bools.npy", up.astype(bool))
    for name in ("timetable.csv", "bools.npy"):
        run = tmp_path / f"{name}-run"
        ran("run", check, "--set", f"links.file={tmp_path / name}", "--out", run)
        assert final(run) == final(tmp_path / "npy")


def test_names_and_shapes_are_in_the_file(tmp_path):
    check = write_check(tmp_path)
    ran("run", check, "--out", tmp_path / "run")
    with safe_open(tmp_path / "run" / "final.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["parameters"]) == [{"name": "x", "shape": [3]}]
    # One entry: the order of several would differ from file to file.
    assert list(metadata) == ["parameters"]
    view = load_view(tmp_path / "run", "averaged")
    assert list(view) == ["x"]
    stored = load_file(tmp_path / "run" / "final.safetensors")["averaged"]
    assert torch.equal(view["x"], stored)


def test_a_view_loaded_into_a_module_reproduces_the_metrics(tmp_path):
    run = tmp_path / "run"
    ran("run", "--data", "digits", "--clients", 8, "--rounds", 10, "--out", run)
    flat = load_file(run / "final.safetensors")
    network = build_model("mlp", (8, 8, 1), 10, seed=5)
    digits = load("digits")
    means, deviations = (
        torch.from_numpy(v).float() for v in channel_statistics(digits.train.inputs)
    )
    inputs = (torch.from_numpy(digits.test.inputs).float() - means) / deviations
    last = metrics(run)[-1]["views"]
    assert flat.keys() == last.keys() == {"server", "averaged", "mean", "reported", "corrected"}
    for view, evaluated in last.items():
        named = load_view(run, view)
        assert {k: v.shape for k, v in named.items()} == {
            k: v.shape for k, v in network.named_parameters()
        }
        missing, unexpected = network.load_state_dict(named, strict=True)
        assert not missing
        assert not unexpected
        assert torch.equal(nn.utils.parameters_to_vector(network.parameters()), flat[view])
        with torch.no_grad():
            correct = network(inputs.permute(0, 3, 1, 2)).argmax(1).numpy() == digits.test.labels
        assert correct.mean() == pytest.approx(evaluated["test_accuracy"], abs=1e-9)
        per_class = [correct[digits.test.labels == c].mean() for c in range(10)]
        assert evaluated["per_class"] == pytest.approx(per_class, abs=1e-9)


def test_a_missing_view(tmp_path):
    check = write_check(tmp_path)
    ran("run", check, "--out", tmp_path / "run")
    with pytest.raises(InputError, match="view is 'mean', but should be one of averaged, server"):
        load_view(tmp_path / "run", "mean")
    with pytest.raises(InputError, match=r"final\.safetensors"):
        load_view(tmp_path / "nowhere", "server")
    (tmp_path / "run" / "final.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="is damaged"):
        load_view(tmp_path / "run", "server")


def test_a_run_can_be_repeated_from_its_config(tmp_path):
    check = write_check(tmp_path / "given")
    ran("run", check, "--out", tmp_path / "one")
    shutil.rmtree(tmp_path / "given")
    ran("run", tmp_path / "one" / "config.toml", "--out", tmp_path / "two")
    assert final(tmp_path / "one") == final(tmp_path / "two")
