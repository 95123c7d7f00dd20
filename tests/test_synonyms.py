"""Names of other libraries are answered with ours, in Python, on the command line and in files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from torch import nn

from fedpbc import Config, InputError, LocalTraining, Quadratic, Supervised, compare, simulate
from fedpbc.experiments.settings import SECTIONS, General
from fedpbc.options import options_of
from fedpbc.synonyms import SYNONYMS
from tests.commandline import fedpbc, refused


def supervised(**options: object) -> Supervised:
    samples = np.zeros((8, 3), dtype=np.float32), np.arange(8) % 2
    return Supervised(nn.Linear(3, 2), samples, samples, **options)


TASK = Quadratic([[1.0], [2.0]])
IN_PYTHON: dict[str, tuple[Callable[..., object], dict[str, object], str]] = {
    "lr of the training": (LocalTraining, {"lr": 0.1}, "learning_rate"),
    "epochs": (LocalTraining, {"epochs": 5}, "local_steps, a number of batches"),
    "batch": (LocalTraining, {"batch": 5}, "batch_size"),
    "rounds": (simulate, {"task": TASK, "num_rounds": 5}, "rounds"),
    "server_lr": (simulate, {"task": TASK, "server_lr": 5}, "global_lr"),
    "lr of a run": (
        simulate,
        {"task": TASK, "lr": 5},
        r"LocalTraining\(learning_rate=…\), the task",
    ),
    "clients of a run": (simulate, {"task": TASK, "num_clients": 5}, "clients of the task"),
    "rounds of a comparison": (
        compare,
        {"make_task": lambda seed: TASK, "n_rounds": 5},
        "rounds",
    ),
    "clients": (supervised, {"num_clients": 5}, "clients"),
    "lr of a task": (supervised, {"lr": 5}, r"LocalTraining\(learning_rate=…\), the task's"),
    "eta": (Quadratic, {"targets": [[1.0]], "eta": 0.1}, r"LocalTraining\(learning_rate=…\)"),
}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_in_python(name: str) -> None:
    function, options, remedy = IN_PYTHON[name]
    with pytest.raises(InputError, match=rf"^\w+\(\) has no \w+: use {remedy}"):
        function(**options)


def test_an_unknown_keyword_is_answered_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"^LocalTraining\(\) has no momentun: .*'momentum'\?$"):
        LocalTraining(momentun=0.9)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"lr": 0.1}, "lr is unknown: use train.learning_rate"),
        ({"train": {"lr": 0.1}}, "train.lr is unknown: use learning_rate"),
        ({"links": {"eta": 0.1}}, "links.eta is unknown: use train.learning_rate"),
        ({"num_rounds": 5}, "num_rounds is unknown: use rounds"),
        ({"n_clients": 5}, "n_clients is unknown: use clients"),
        ({"momentum": 0.9}, "momentum is unknown: use train.momentum"),
        ({"dataset": "digits"}, "dataset is unknown: use data"),
    ],
)
def test_in_configurations(values: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as caught:
        Config.from_dict(values)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["run", "--lr", "0.1"], "no such option: --lr: use --learning-rate"),
        (["run", "--num-rounds", "5"], "no such option: --num-rounds: use --rounds"),
        (["run", "--momentum", "0.9"], "no such option: --momentum: use --set train.momentum=…"),
        (["run", "--seeds", "0"], "no such option: --seeds: use --seed"),
        (["compare", "--strategy", "fedavg"], "no such option: --strategy: use --algorithms"),
        (["tune", "--space", "lr=0.1"], "--space is 'lr', but should be learning_rate"),
        (["run", "--set", "num_clients=5"], "num_clients is unknown: use clients"),
    ],
)
def test_on_the_command_line(words: list[str], remedy: str) -> None:
    assert refused(fedpbc(*words)) == remedy


def test_every_synonym_means_a_setting_and_none_means_two() -> None:
    words = [word for others in SYNONYMS.values() for word in others.split()]
    assert len({*words}) == len(words)
    for key in SYNONYMS:
        section, _, option = key.rpartition(".")
        assert option in options_of(SECTIONS[section] if section else General), key
    assert not {*words} & {name for part in SECTIONS.values() for name in options_of(part)}
