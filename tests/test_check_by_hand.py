"""Anyone can check an algorithm by hand: the file of the issue, to the letter."""

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
    """The views after all rounds, from nothing but the two files."""
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
    )


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_gives_what_it_should(tmp_path, monkeypatch, algorithm, decay):
    check = write_check(tmp_path / "given")
    text = check.read_text()
    text = text.replace('algorithm = "fedau"', f'algorithm = "{algorithm}"')
    check.write_text(text.replace("decay = false", f"decay = {str(decay).lower()}"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    ran("run", "../given/check.toml", "--out", "run")
    expected = by_hand(tmp_path / "given", algorithm, decay=decay)
    found = load_file(elsewhere / "run" / "final.safetensors")
    own = {"mean", "reported"} if algorithm in OWN_MODELS else set()
    assert found.keys() == {"server", "averaged"} | own
    for view, model in expected.items():
        assert found[view].dtype == torch.float64
        assert found[view].shape == (3,)
        assert torch.allclose(found[view], model, rtol=0, atol=1e-6), view


def test_the_averaged_view_starts_at_zero(tmp_path):
    check = write_check(tmp_path)
    up = np.zeros((2, 12), dtype=int)
    up[1, 3] = 1
    np.save(tmp_path / "timetable.npy", up)
    ran("run", check, "--rounds", 2, "--out", tmp_path / "run")
    found = load_file(tmp_path / "run" / "final.safetensors")
    moved = (1 - 0.9**5) * np.load(tmp_path / "targets.npy")[3] / 12  # a first contact weighs 1
    assert np.allclose(found["server"], moved, atol=1e-12)
    assert np.allclose(found["averaged"], 0.05 * moved, atol=1e-12)


def test_the_file_as_a_command_in_a_process_of_its_own(tmp_path):
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


def test_the_file_with_a_timetable_of_words_and_of_csv(tmp_path):
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
    # One entry: several would stand in another order in every file, which would then differ.
    assert list(metadata) == ["parameters"]
    view = load_view(tmp_path / "run", "averaged")
    assert list(view) == ["x"]
    stored = load_file(tmp_path / "run" / "final.safetensors")["averaged"]
    assert torch.equal(view["x"], stored)


def test_a_view_goes_into_a_module_and_does_what_was_measured(tmp_path):
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
    assert flat.keys() == last.keys() == {"server", "averaged", "mean", "reported"}
    for view, judged in last.items():
        named = load_view(run, view)
        assert {k: v.shape for k, v in named.items()} == {
            k: v.shape for k, v in network.named_parameters()
        }
        missing, unexpected = network.load_state_dict(named, strict=True)
        assert not missing
        assert not unexpected
        assert torch.equal(nn.utils.parameters_to_vector(network.parameters()), flat[view])
        with torch.no_grad():
            right = network(inputs.permute(0, 3, 1, 2)).argmax(1).numpy() == digits.test.labels
        assert right.mean() == pytest.approx(judged["test_accuracy"], abs=1e-9)
        per_class = [right[digits.test.labels == c].mean() for c in range(10)]
        assert judged["per_class"] == pytest.approx(per_class, abs=1e-9)


def test_a_view_that_is_not_there(tmp_path):
    check = write_check(tmp_path)
    ran("run", check, "--out", tmp_path / "run")
    with pytest.raises(InputError, match="view is 'mean', but should be one of averaged, server"):
        load_view(tmp_path / "run", "mean")
    with pytest.raises(InputError, match=r"final\.safetensors"):
        load_view(tmp_path / "nowhere", "server")
    (tmp_path / "run" / "final.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="unreadable"):
        load_view(tmp_path / "run", "server")


def test_the_run_can_be_made_again_from_its_folder(tmp_path):
    check = write_check(tmp_path / "given")
    ran("run", check, "--out", tmp_path / "one")
    shutil.rmtree(tmp_path / "given")
    ran("run", tmp_path / "one" / "config.toml", "--out", tmp_path / "two")
    assert final(tmp_path / "one") == final(tmp_path / "two")
