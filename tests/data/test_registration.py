"""Data sets and models that are registered: from the command line, in comparisons, and resumed."""

import json

import numpy as np
import pytest

from fedpbc import DataSet, Split, build_model, load, register_dataset, register_model
from fedpbc.data import SOURCES
from fedpbc.data.sources import RESERVED
from fedpbc.errors import InputError
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.settings import DataSection
from fedpbc.options import options_of
from fedpbc.tasks.networks import MODELS
from tests.commandline import fedpbc, refused

PLUGIN = '''
import numpy as np
from torch import nn
from fedpbc import DataSet, Split, register_dataset, register_model

@register_dataset(model="own_net", settings={"rounds": 4, "train": {"learning_rate": 0.2}})
def own_rows(*, scale: float = 1.0):
    """Rows of three clients."""
    random = np.random.default_rng(0)
    inputs = (scale * random.normal(size=(30, 4))).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(np.int64)
    clients = np.repeat([0, 1, 2], [15, 10, 5])
    split = Split(inputs, labels, clients)
    return DataSet("own_rows", split, split, ("low", "high"), client_names=("a", "b", "c"))

@register_model
def own_net(shape, classes, *, width: int = 3):
    """Two layers."""
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, classes))
'''


@pytest.fixture
def plugin(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(PLUGIN)
    yield file
    SOURCES.pop("own_rows", None)
    MODELS.pop("own_net", None)


def test_the_reserved_names_are_the_settings_of_every_data_set():
    assert list(RESERVED) == list(options_of(DataSection))


def test_from_the_command_line_and_resumed(tmp_path, plugin):
    words = ("--plugin", plugin, "--data", "own_rows", "--set", "model.width=5")
    out = tmp_path / "run"
    ended = fedpbc("run", *words, "--set", "data.scale=2.0", "--out", out, "--json")
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert (summary["rounds"], summary["clients"]) == (4, 3)
    assert summary["parameters"] == 4 * 5 + 5 + 5 * 2 + 2
    assert summary["test_data"]["weigh"] == "volume"
    written = (out / "config.toml").read_text()
    assert "scale = 2.0" in written
    assert "width = 5" in written
    assert "learning_rate = 0.2" in written
    assert "alpha" not in written or "data" in written
    SOURCES.pop("own_rows")
    MODELS.pop("own_net")
    ended = fedpbc("resume", out)
    assert ended.code == 0, ended.err


def test_in_a_comparison_with_options_of_the_entries(tmp_path, plugin):
    words = ("--plugin", plugin, "--data", "own_rows", "--jobs", "1", "--seeds", "0")
    entries = "fedavg,fedavg:model.width=2,fedpbc:data.scale=3.0"
    out = tmp_path / "out"
    ended = fedpbc("compare", *words, "--algorithms", entries, "--out", out)
    assert ended.code == 0, ended.err
    assert "held-out samples of 3 clients' own" in ended.out
    assert "its own model" in ended.out
    assert "most frequent class" in (out / "table.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "data.scael=1"), "data.scael is unknown"),
        (("--set", "model.width=wide"), "model.width is 'wide'"),
        (("--clients", "4"), "clients is 4, but should be at most 3"),
        (("--alpha", "0.5"), "data.alpha is 0.5, but should be left out"),
        (("--data-dir", "."), "data.dir is '.', but should be left out"),
        (("--model", "lstm"), "model is 'lstm', but should be another"),
        (("--model", "mpl"), "did you mean 'mlp'"),
        (("--data", "own_row"), "did you mean 'own_rows'"),
        (("--data", "digits", "--set", "data.weigh=clients"), "data.weigh is 'clients'"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(tmp_path, plugin, words, message):
    out = tmp_path / "out"
    given = ("--plugin", plugin, "--data", "own_rows", *words, "--out", out)
    assert message in refused(fedpbc("run", *given))
    assert not out.exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return 3", "the data set own_rows returns a int, but should be a DataSet"),
        ("raise OSError('no disk')", "the data set own_rows fails: OSError: no disk"),
    ],
)
def test_data_sets_that_fail(tmp_path, plugin, code, message):
    plugin.write_text(PLUGIN.replace("random = np.random.default_rng(0)", code))
    given = ("--plugin", plugin, "--data", "own_rows", "--out", tmp_path / "out")
    assert message in refused(fedpbc("run", *given))


def test_names_and_signatures_are_checked():
    with pytest.raises(InputError, match="data set is 'digits', but should be a new name"):

        @register_dataset
        def digits(): ...

    with pytest.raises(InputError, match=r"may take folder, and options .*: other is neither"):

        @register_dataset
        def fine(other): ...

    with pytest.raises(InputError, match="an option of the data set fine is 'alpha'"):

        @register_dataset
        def fine(*, alpha=1): ...

    with pytest.raises(InputError, match="model is 'mlp', but should be a new name"):

        @register_model
        def mlp(shape, classes): ...

    with pytest.raises(InputError, match=r"may take shape, classes, .*: depth is neither"):

        @register_model
        def fine(shape, depth): ...

    with pytest.raises(InputError, match="data set is 3, but should be a function"):
        register_dataset(3)
    assert "fine" not in SOURCES
    assert "fine" not in MODELS


def test_a_model_takes_what_it_names():
    taken = {}

    @register_model
    def recording(vocabulary, classes, *, depth: int = 2):
        taken.update(vocabulary=vocabulary, classes=classes, depth=depth)
        return 3

    try:
        with pytest.raises(InputError, match="the model recording returns a int"):
            build_model("recording", (8,), 5, seed=0, vocabulary=7, depth=4)
    finally:
        del MODELS["recording"]
    assert taken == {"vocabulary": 7, "classes": 5, "depth": 4}


def test_settings_that_suit_a_data_set_are_outranked_by_those_given():
    config = Config.from_dict({"data": "shakespeare"})
    assert (config.general.rounds, config.train.optimizer, config.model.name) == (
        60,
        "adam",
        "lstm",
    )
    given = {"data": {"name": "shakespeare", "length": 20}, "rounds": 7, "model": "transformer"}
    config = Config.from_dict({**given, "train": {"optimizer": "sgd"}})
    assert (config.general.rounds, config.train.optimizer) == (7, "sgd")
    assert config.to_dict()["data"] == {"name": "shakespeare", "train_samples": 1000, "length": 20}
    assert config.to_dict()["model"] == {
        **{"name": "transformer", "width": 64, "heads": 4, "layers": 2}
    }
    again = Config.from_dict(config.to_dict())
    assert again == config
    plain = Config.from_dict({"data": "digits"}).to_dict()
    assert plain["data"] == {"name": "digits", "alpha": 0.1, "train_samples": 5000}
    assert plain["model"] == {"name": "mlp"}


def test_a_folder_is_passed_on(tmp_path):
    @register_dataset
    def from_folder(folder=None):
        assert folder == tmp_path
        split = Split(np.zeros((2, 1)), np.array([0, 1]))
        return DataSet("from_folder", split, split, ("a", "b"))

    try:
        assert load("from_folder", tmp_path).name == "from_folder"
    finally:
        del SOURCES["from_folder"]
