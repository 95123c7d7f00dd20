"""Wrong input of every kind: one clear line, exit code 2, and nothing written."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpbc.engines.pool import PoolEngine
from fedpbc.storage.tensors import load_state
from tests.commandline import DIGITS, content, fedpbc, metrics, process, ran, refused, write_check

pytestmark = pytest.mark.slow


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def files(place: Path) -> None:
    """Good and bad files of every kind, under names that say what is wrong with them."""
    write_check(place, clients=4)
    targets = np.load(place / "targets.npy")
    arrays = {
        "targets_nan": np.full((4, 3), np.nan),
        "targets_infinite": np.where(targets > 0, np.inf, targets),
        "targets_text": np.array([["a", "b"]]),
        "targets_flat": np.ones(4),
        "targets_cube": np.ones((4, 3, 2)),
        "targets_none": np.ones((0, 3)),
        "targets_complex": np.ones((4, 3), dtype=complex),
        "links_wide": np.ones((60, 5)),
        "links_narrow": np.ones((60, 3)),
        "links_short": np.ones((59, 4)),
        "links_twos": np.full((60, 4), 2),
        "links_halves": np.full((60, 4), 0.5),
        "links_nan": np.full((60, 4), np.nan),
        "links_flat": np.ones(240),
        "p_few": np.array([0.5, 0.5]),
        "p_large": np.full(8, 1.5),
    }
    for name, array in arrays.items():
        np.save(place / f"{name}.npy", array)
    for name in ("targets", "timetable"):
        whole = (place / f"{name}.npy").read_bytes()
        (place / f"{name}_cut.npy").write_bytes(whole[:140])
        (place / f"{name}_empty.npy").write_bytes(b"")
        (place / f"{name}_noise.npy").write_bytes(bytes(range(256)))
    (place / "empty.csv").write_text("")
    (place / "noise.csv").write_bytes(bytes(range(128, 256)))
    (place / "words.csv").write_text("1,0,1,0\nup,down,up,up\n")
    (place / "ragged.csv").write_text("1,0,1,0\n1,0,1\n")
    head = "client,online_from_s,online_until_s\n"
    (place / "trace_header.csv").write_text("who,when\n1,2\n")
    (place / "trace_backwards.csv").write_text(head + "a,5,2\n")
    (place / "trace_words.csv").write_text(head + "a,early,late\n")
    (place / "trace_none.csv").write_text(head)
    (place / "broken.toml").write_text("rounds = = 3")
    (place / "noise.toml").write_bytes(b"\xff\xfe\x00")
    (place / "typo.toml").write_text("[trian]\nlocal_steps = 5\n")
    (place / "raises.py").write_text("raise RuntimeError('no\\nluck')\n")
    (place / "syntax.py").write_text("def (:\n")
    taken = "import fedpbc\nclass X(fedpbc.Algorithm):\n    name = 'fedavg'\n"
    (place / "taken.py").write_text(taken + "fedpbc.register_algorithm(X)\n")
    (place / "plain.txt").write_text("text")
    (place / "nothing").mkdir()
    damaged = place / "damaged" / "plain_text"
    damaged.mkdir(parents=True)
    for split in ("train", "test"):
        (damaged / f"{split}-00000-of-00001.parquet").write_bytes(b"PAR1 but not really PAR1")
    half = place / "half" / "plain_text"
    half.mkdir(parents=True)
    (half / "train-00000-of-00002.parquet").write_bytes(b"PAR1")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    place = tmp_path_factory.mktemp("files")
    files(place)
    return place


@pytest.fixture
def here(stored, monkeypatch):
    """A working folder with all the files, which no command may change."""
    before = content(stored)
    monkeypatch.chdir(stored)
    yield stored
    after = content(stored)
    shutil.rmtree(stored / "out", ignore_errors=True)
    assert after == before


OUT = ("--out", "out")
CHECK = ("run", "check.toml", *OUT)
RUN = ("run", *DIGITS, "--rounds", "3", *OUT)
COMPARE = ("compare", *DIGITS, "--rounds", "3", "--algorithms", "fedavg", "--seeds", "0", *OUT)

# What was typed, and how the line begins: the option and what was given.
NUMBERS = [
    ("rounds=0", "rounds is 0, but should be"),
    ("rounds=-5", "rounds is -5, but should be"),
    ("rounds=true", "rounds is True, but should be"),
    ("rounds=2.5", "rounds is 2.5, but should be"),
    ("rounds=ten", "rounds is 'ten', but should be"),
    ("rounds='10'", "rounds is '10', but should be"),
    ("rounds=[3]", "rounds is [3], but should be"),
    ("seed=-1", "seed is -1, but should be"),
    ("seed=0.5", "seed is 0.5, but should be"),
    ("clients=0", "clients is 0, but should be"),
    ("clients=true", "clients is True, but should be"),
    ("clients=eight", "clients is 'eight', but should be"),
    ("evaluate_every=0", "evaluate_every is 0, but should be"),
    ("checkpoint_every=-1", "checkpoint_every is -1, but should be"),
    ("engine=3", "engine is 3, but should be"),
    ("views=server", "views is 'server', but should be"),
    ("views=[3]", "views is [3], but should be"),
    ("plugins=mine.py", "plugins is 'mine.py', but should be"),
    ("train.learning_rate=0", "train.learning_rate is 0, but should be above 0"),
    ("train.learning_rate=-0.1", "train.learning_rate is -0.1, but should be above 0"),
    ("train.learning_rate=nan", "train.learning_rate is nan, but should be a finite number"),
    ("train.learning_rate=inf", "train.learning_rate is inf, but should be a finite number"),
    ("train.learning_rate=-inf", "train.learning_rate is -inf, but should be"),
    ("train.learning_rate='0.1'", "train.learning_rate is '0.1', but should be a valid number"),
    ("train.learning_rate=true", "train.learning_rate is True, but should be a valid number"),
    ("train.learning_rate=[0.1]", "train.learning_rate is [0.1], but should be a valid number"),
    ("train.local_steps=0", "train.local_steps is 0, but should be"),
    ("train.local_steps=5.0", "train.local_steps is 5.0, but should be a valid integer"),
    ("train.batch_size=0", "train.batch_size is 0, but should be"),
    ("train.decay=1", "train.decay is 1, but should be a valid boolean"),
    ("train.decay=yes", "train.decay is 'yes', but should be a valid boolean"),
    ("train.momentum=1", "train.momentum is 1, but should be below 1"),
    ("train.momentum=-0.1", "train.momentum is -0.1, but should be"),
    ("train.proximal=-1", "train.proximal is -1, but should be"),
    ("train.global_learning_rate=0", "train.global_learning_rate is 0, but should be"),
    ("train.optimizer=rmsprop", "train.optimizer is 'rmsprop', but should be one of sgd"),
    ("data.alpha=0", "data.alpha is 0, but should be above 0"),
    ("data.alpha=-1", "data.alpha is -1, but should be above 0"),
    ("data.train_samples=-1", "data.train_samples is -1, but should be"),
    ("links.gamma=2", "links.gamma is 2, but should be at most 1"),
    ("links.gamma=-0.1", "links.gamma is -0.1, but should be"),
    ("links.gamma=much", "links.gamma is 'much', but should be a valid number"),
    ("links.period=0", "links.period is 0, but should be at least 1"),
    ("links.sigma=-1", "links.sigma is -1, but should be"),
    ("links.delta=2", "links.delta is 2, but should be"),
    ("links.p=2", "links.p is 2, but should be a number from 0 to 1, a list of "),
    ("links.p=-0.5", "links.p is -0.5, but should be a number from 0 to 1, a list of "),
    ("links.p=true", "links.p is True, but should be"),
    ("links.p=[0.5, 0.5]", "links.p has 2 numbers, but should have one"),
    ("links.p=[]", "links.p has 0 numbers, but should have one"),
    ("links.p=[0.5, 'a']", "links.p is "),
    ("links.p=missing.npy", "links.p is 'missing.npy', but should be a file that exists"),
    ("links.p=p_few.npy", "links.p has 2 numbers, but should have one"),
    ("links.p=p_large.npy", "links.p is 1.5, but should be from 0 to 1"),
    ("downlink.p=2", "downlink.p is 2"),
    ("rounds=99999999999999", "rounds is 99999999999999, but should be"),
]
NAMES = [
    ("algorithm=fedavgg", "algorithm is 'fedavgg', but should be one of fedpbc, fedavg"),
    ("algorithm.name=fedpcb", "algorithm is 'fedpcb', but should be one of"),
    ("algorithm=3", "algorithm is 3, but should be a name"),
    ("algorithm.name=3", "algorithm.name is 3, but should be a name"),
    ("links=bernouli", "links is 'bernouli', but should be one of always, bernoulli"),
    ("downlink=nerver", "downlink is 'nerver', but should be one of always"),
    ("links=[1]", "links is [1], but should be a name"),
    ("data.name=digit", "data.name is 'digit', but should be one of fashion, digits"),
    ("model=mpl", "model is 'mpl', but should be one of "),
    ("engine=gpu", "engine is 'gpu', but should be one of auto, serial, stacked"),
    ("views=['servr']", "views is 'servr', but should be one of server"),
    ("views=[]", "views is "),
    ("task.name=regression", "task.name is 'regression', but should be 'classification'"),
    ("round=3", "round is unknown: use one of rounds"),
    ("trian.local_steps=3", "trian is unknown: use one of"),
    ("train.local_step=3", "train.local_step is unknown: use one of local_steps"),
    ("links.gama=1", "links.gama is unknown: use one of "),
    ("data.alfa=1", "data.alfa is unknown: use one of "),
    ("model.depth=3", "model.depth is unknown: "),
    ("task.target=a.npy", "task.target is unknown: "),
    ("algorithm.cutoff=3", "algorithm.cutoff is unknown: there are no options here"),
    ("rounds.more=3", "--set is 'rounds.more', but should be"),
]
SHAPES = ["rounds", "=3", "", "=="]


@pytest.mark.parametrize(("setting", "line"), NUMBERS + NAMES)
def test_a_wrong_setting(here, setting, line):
    assert refused(fedpbc(*RUN, "--set", setting)).startswith(line)


@pytest.mark.parametrize("setting", SHAPES)
def test_a_setting_that_is_none(here, setting):
    line = refused(fedpbc(*RUN, "--set", setting))
    assert line.startswith(f"--set is {setting!r}, but should be KEY=VALUE")


@pytest.mark.parametrize("setting", [".=3", "links.=3", "links..p=3", ".rounds=3", "links.p.=3"])
def test_a_setting_with_dots_in_wrong_places(here, setting):
    line = refused(fedpbc(*RUN, "--set", setting))
    assert setting.split("=")[0] in line


OPTIONS = [
    (("--algorithm", "fedavgg"), "algorithm is 'fedavgg', but should be one of"),
    (("--links", "bernouli"), "links is 'bernouli', but should be one of"),
    (("--downlink", "bernouli"), "downlink is 'bernouli', but should be one of"),
    (("--data", "digit"), "data.name is 'digit', but should be one of"),
    (("--model", "mpl"), "model is 'mpl', but should be one of"),
    (("--engine", "gpu"), "engine is 'gpu', but should be one of"),
    (("--views", "servr,mean"), "views is 'servr', but should be one of"),
    (("--views", "mean", "--algorithm", "fedavg"), "views is 'mean', but should be among server"),
    (("--deploy-view", "servr"), "deploy_view is 'servr', but should be among server"),
    (("--rounds", "0"), "rounds is 0, but should be"),
    (("--rounds", "ten"), "Invalid value for '--rounds': 'ten' is not"),
    (("--rounds", "2.5"), "Invalid value for '--rounds': '2.5' is not"),
    (("--rounds",), "Option '--rounds' requires an argument"),
    (("--seed", "-1"), "seed is -1, but should be"),
    (("--clients", "0"), "clients is 0, but should be"),
    (("--clients", "2000"), "clients is 2000, but should be at most 1437"),
    (("--learning-rate", "0"), "train.learning_rate is 0.0, but should be"),
    (("--learning-rate", "-1"), "train.learning_rate is -1.0, but should be"),
    (("--learning-rate", "nan"), "train.learning_rate is nan, but should be"),
    (("--learning-rate", "inf"), "train.learning_rate is inf, but should be"),
    (("--learning-rate", "fast"), "Invalid value for '--learning-rate': 'fast' is not"),
    (("--global-learning-rate", "0"), "train.global_learning_rate is 0.0, but should be"),
    (("--local-steps", "0"), "train.local_steps is 0, but should be"),
    (("--batch-size", "0"), "train.batch_size is 0, but should be"),
    (("--evaluate-every", "0"), "evaluate_every is 0, but should be"),
    (("--engine", "stacked", "--model", "cnn_cinic10"), "engine is 'stacked', but should be"),
    (("--engine", "stacked", *settings("train.optimizer=RMSprop")), "engine is 'stacked', but"),
    (("--algorithm", "fedau", *settings("algorithm.cutoff=0")), "algorithm.cutoff is 0"),
    (("--algorithm", "f3ast", *settings("algorithm.beta=2")), "algorithm.beta is 2"),
    (("--algorithm", "f3ast", *settings("algorithm.cap=0")), "algorithm.cap is 0"),
    (("--algorithm", "fedawe", *settings("algorithm.clip=-1")), "algorithm.clip is -1"),
    (("--algorithm", "mifa", *settings("algorithm.rescale=1")), "algorithm.rescale is 1"),
    (("--links", "cyclic", *settings("links.cycle=0")), "links.cycle is 0"),
    (("--links", "table"), "links.file is missing"),
    (("--links", "trace"), "links.file is missing"),
    (("--downlink", "table"), "downlink.file is missing"),
    (("--data-dir", "nothing"), "data.dir is 'nothing', but should be left out for digits"),
    (("--data", "cifar10", "--data-dir", "missing"), "data.dir is 'missing', but should be"),
    (("--data", "cifar10", "--data-dir", "nothing"), "data.dir: nothing has no train images"),
    (("--data", "cifar10", "--data-dir", "plain.txt"), "data.dir is 'plain.txt', but should be"),
    (("--data", "cifar10", "--data-dir", "half"), "data.dir: half/plain_text has train-00000"),
    (("--plugin", "missing.py"), "plugins is 'missing.py', but should be a Python file"),
    (("--plugin", "plain.txt"), "plugins is 'plain.txt', but should be a Python file"),
    (("--plugin", "."), "plugins is '.', but should be a Python file"),
    (("--plugin", "raises.py"), "plugins is 'raises.py', but should be importable (RuntimeError"),
    (("--plugin", "syntax.py"), "plugins is 'syntax.py', but should be importable (SyntaxError"),
    (("--plugin", "taken.py"), "X.name is 'fedavg', but should be a name that is not taken"),
    (("--jobs", "2"), "No such option '--jobs'"),
    (("--fast",), "No such option '--fast'"),
    (("one.toml", "two.toml"), "Got unexpected extra argument"),
    (settings("task.targets=targets.npy", "task.name=classification"), "task.targets is 'targets"),
    (settings("task.name=quadratic"), "task.targets is missing"),
]


@pytest.mark.parametrize(("options", "line"), OPTIONS)
def test_a_wrong_option(here, options, line):
    assert refused(fedpbc(*RUN, *options)).startswith(line)


def test_damaged_pictures(here):
    pytest.importorskip("pyarrow")
    line = refused(fedpbc(*RUN, "--data", "cifar10", "--data-dir", "damaged"))
    assert line.startswith(
        "data.dir: damaged/plain_text/train-00000-of-00001.parquet is unreadable ("
    )


TARGETS = {
    "missing.npy": "task.targets is 'missing.npy', but should be a file that exists",
    "nothing": "task.targets is 'nothing', but should be a file",
    "targets_nan.npy": "task.targets has infinite or NaN values, but should be finite",
    "targets_infinite.npy": "task.targets has infinite or NaN values, but should be finite",
    "targets_text.npy": "task.targets: targets_text.npy does not hold an array of numbers",
    "targets_complex.npy": "task.targets: targets_complex.npy does not hold an array of numbers",
    "targets_flat.npy": "task.targets is an array of float64 and shape (4,), but should be",
    "targets_cube.npy": "task.targets is an array of float64 and shape (4, 3, 2), but should be",
    "targets_none.npy": "task.targets is an array of float64 and shape (0, 3), but should be",
    "targets_cut.npy": "task.targets: targets_cut.npy is unreadable as a .npy or .csv file (",
    "targets_empty.npy": "task.targets: targets_empty.npy is unreadable as a .npy or .csv file (",
    "targets_noise.npy": "task.targets: targets_noise.npy is unreadable as a .npy or .csv file (",
    "noise.csv": "task.targets: noise.csv is unreadable as a .npy or .csv file (",
    "words.csv": "task.targets: words.csv is unreadable as a .npy or .csv file (",
    "ragged.csv": "task.targets: ragged.csv is unreadable as a .npy or .csv file (",
    "empty.csv": "task.targets: empty.csv is unreadable as a .npy or .csv file (",
    "5": "task.targets is 5, but should be",
}


@pytest.mark.parametrize("file", TARGETS)
def test_wrong_targets(here, file):
    assert refused(fedpbc(*CHECK, "--set", f"task.targets={file}")).startswith(TARGETS[file])


TIMETABLES = {
    "missing.npy": "a file that can be read",
    "missing.csv": "a file that can be read",
    "nothing": "a file that can be read",
    "links_wide.npy": "60 rows of 4 0s or 1s: row 0 has 5 columns",
    "links_narrow.npy": "60 rows of 4 0s or 1s: row 0 has 3 columns",
    "links_short.npy": "60 rows of 4 0s or 1s: it has 59 rows",
    "links_twos.npy": "60 rows of 4 0s or 1s: row 0 holds another value",
    "links_halves.npy": "60 rows of 4 0s or 1s: row 0 holds another value",
    "links_nan.npy": "60 rows of 4 0s or 1s: row 0 holds another value",
    "links_flat.npy": "60 rows of 4 0s or 1s",
    "timetable_cut.npy": "60 rows of 4 0s or 1s",
    "timetable_empty.npy": "60 rows of 4 0s or 1s",
    "timetable_noise.npy": "60 rows of 4 0s or 1s",
    "empty.csv": "60 rows of 4 0s or 1s: it has 0 rows",
    "words.csv": "60 rows of 4 0s or 1s",
    "ragged.csv": "60 rows of 4 0s or 1s: row 1 has 3 columns",
    "noise.csv": "60 rows of 4 0s or 1s",
}


@pytest.mark.parametrize("section", ["links", "downlink"])
@pytest.mark.parametrize("file", TIMETABLES)
def test_a_wrong_timetable(here, section, file):
    given = settings(f"{section}.name=table", f"{section}.file={file}")
    line = refused(fedpbc(*CHECK, *given))
    assert line.startswith(f"{section}.file is {file!r}, but should be {TIMETABLES[file]}")


@pytest.mark.parametrize(
    "file",
    ["missing.csv", "trace_header.csv", "trace_backwards.csv", "trace_words.csv", "trace_none.csv"],
)
def test_a_wrong_trace(here, file):
    line = refused(fedpbc(*RUN, "--links", "trace", "--set", f"links.file={file}"))
    assert line.startswith(f"links.file is {file!r}, but should be a ")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (("--links", "bernoulli"), "links.p is missing: set it"),
        (("--rounds", "61"), "links.file is '"),
        (("--clients", "5"), "clients is 5, but should be left out, or 4"),
        (settings("data.alpha=-1"), "data.alpha is -1, but should be"),
        (settings("data.alpha=0.3"), "data.alpha is 0.3, but a task of the kind 'quadratic' does"),
        (settings("data.dir=x"), "data.dir is 'x', but a task of the kind 'quadratic' does not"),
        (
            settings("data.train_samples=3"),
            "data.train_samples is 3, but a task of the kind 'quadr",
        ),
        (
            ("--data", "digits"),
            "data.name is 'digits', but a task of the kind 'quadratic' does not",
        ),
        (
            ("--model", "mlp"),
            "model.name is 'mlp', but a task of the kind 'quadratic' does not use",
        ),
    ],
)
def test_what_does_not_go_with_quadratics(here, given, line):
    assert refused(fedpbc(*CHECK, *given)).startswith(line)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("missing.toml", "configuration is 'missing.toml', but should be a file that exists"),
        ("broken.toml", "configuration: broken.toml is not valid TOML: Invalid value"),
        ("noise.toml", "configuration: noise.toml is not valid TOML: "),
        ("nothing", "configuration: nothing cannot be read: Is a directory"),
        ("typo.toml", "trian is unknown: use one of"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_wrong_configuration(here, command, file, line):
    assert refused(fedpbc(command, file, *OUT)).startswith(line)


COMPARISONS = [
    (("--jobs", "0"), "jobs is 0, but should be at least 1"),
    (("--jobs", "-2"), "jobs is -2, but should be at least 1"),
    (("--jobs", "two"), "Invalid value for '--jobs': 'two' is not"),
    (("--seeds", "a"), "seeds is 'a', but should be different whole numbers"),
    (("--seeds", "1,1"), "seeds is '1,1', but should be different whole numbers"),
    (("--seeds", "-1"), "seeds is '-1', but should be"),
    (("--seeds", "4-0"), "seeds is '4-0', but should be a range from low to high: 0-4"),
    (("--sweep", "data.alpha"), "sweep is 'data.alpha', but should be KEY=VALUE,VALUE"),
    (("--sweep", "data.alhpa=1"), "algorithms.fedavg:data.alhpa=1: data.alhpa is unknown: use"),
    (("--algorithms", "fedau:cutof=1"), "algorithms.fedau:cutof=1.cutof is unknown: use one of"),
    (("--seeds", ""), "seeds is "),
    (("--algorithms", ""), "algorithms is "),
    (("--algorithms", "fedavg,fedpcb"), "algorithms is 'fedpcb', but should be one of"),
    (("--algorithm", "fedavg"), "no such option: --algorithm: use --algorithms"),
    (settings("algorithm=fedpcb"), "algorithm is 'fedpcb', but should be one of"),
    (settings("seed=-1"), "seed is -1, but should be"),
    (settings("seed=0-1"), "seed is '0-1', but should be"),
    (settings("seeds=3"), "seeds is 3, but should be"),
    (settings("seeds=[true]"), "seeds is [True], but should be"),
    (settings("algorithms=3"), "algorithms is 3, but should be"),
    (settings("algorithms=fedavg"), "algorithms is 'fedavg', but should be"),
    (settings("algorithms=[3]"), "algorithm"),
    (settings("algorithms={fedau = 3}"), "algorithms"),
    (settings("algorithms={fedau = {cutof = 1}}"), "algorithm"),
    (("--links", "bernouli"), "links is 'bernouli', but should be one of"),
    (("--clients", "2000"), "clients is 2000, but should be at most 1437"),
    (("--rounds", "0"), "rounds is 0, but should be"),
    (("--algorithms", "fedpbc,fedavg", "--views", "mean"), "views is 'mean', but should be among"),
]


@pytest.mark.parametrize(("options", "line"), COMPARISONS)
def test_a_wrong_comparison(here, options, line):
    assert refused(fedpbc(*COMPARE, *options)).startswith(line)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (("fly",), "No such command 'fly'"),
        (("--fly",), "No such option '--fly'"),
        (("resume",), "Missing argument 'FOLDER'"),
        (("list", "algorithm"), "KIND is 'algorithm', but should be one of algorithms, links"),
        (("list", "links", "data"), "Got unexpected extra argument"),
        (("list", "--plugin", "missing.py"), "plugins is 'missing.py', but should be"),
    ],
)
def test_a_wrong_command(here, given, line):
    assert refused(fedpbc(*given)).startswith(line)


def test_a_file_in_the_place_of_the_folder(here):
    for command in (RUN[:-1], COMPARE[:-1]):
        line = refused(fedpbc(*command, "plain.txt"))
        assert line.startswith("out is 'plain.txt', but should be a folder")
        line = refused(fedpbc(*command, "plain.txt/deeper"))
        assert line.startswith("out: plain.txt/deeper cannot be made (")


@pytest.mark.parametrize("more", ["", "/deeper"])
def test_a_link_to_itself_in_the_place_of_the_folder(tmp_path, more):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for command in (RUN[:-1], COMPARE[:-1]):
        line = refused(fedpbc(*command, f"{loop}{more}"))
        assert line == f"{loop}{more}: Too many levels of symbolic links"


def test_a_link_to_itself_in_the_place_of_an_input(tmp_path):
    check, run = write_check(tmp_path), tmp_path / "run"
    ran("run", check, "--out", run)
    targets = run / "inputs" / "task-targets.npy"
    targets.unlink()
    targets.symlink_to(targets)
    damage = f"{targets} is damaged: it is a link, which is not followed"
    assert refused(fedpbc("resume", run)).startswith(damage)


def test_a_folder_with_other_files(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    before = content(tmp_path)
    for more in ([], ["--overwrite"]):
        for command in (RUN[:-1], COMPARE[:-1]):
            line = refused(fedpbc(*command, tmp_path, *more))
            assert line.startswith(f"out: {tmp_path} holds other files; choose")
    assert content(tmp_path) == before


def test_a_folder_with_a_run(tmp_path):
    ran(*RUN[:-1], tmp_path / "run")
    before = content(tmp_path)
    line = refused(fedpbc(*RUN[:-1], tmp_path / "run"))
    assert line.startswith(f"out: {tmp_path / 'run'} holds a run already; choose")
    assert "--overwrite" in line
    assert "resume" in line
    for wrong in ("--rounds=0", "--links=nothing", "--clients=5000"):
        refused(fedpbc(*RUN[:-1], tmp_path / "run", "--overwrite", wrong))
        assert content(tmp_path) == before
    line = refused(fedpbc(*COMPARE[:-1], tmp_path / "run", "--overwrite"))
    assert "holds" in line
    assert content(tmp_path) == before


def test_a_run_anew_from_its_own_files(tmp_path):
    # The configuration names files in the very folder that is to be overwritten.
    check = write_check(tmp_path)
    run = tmp_path / "run"
    ran("run", check, "--out", run)
    before = content(run)
    ended = fedpbc("run", run / "config.toml", "--out", run, "--overwrite")
    if ended.code:
        refused(ended)
        assert content(run) == before
    else:
        assert (run / "inputs" / "task-targets.npy").is_file()
        assert (run / "final.safetensors").is_file()


DIVERGED = re.compile(
    r"the run diverged in round (\d+): "
    r"(client (\d+)'s model|the server's model|the test loss in the view \w+) is not finite"
)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_a_network_that_diverges(tmp_path, engine):
    # Nobody is heard for three rounds, then clients 2 and 5 are.
    up = np.zeros((9, 8), dtype=int)
    up[3:, [2, 5]] = 1
    np.save(tmp_path / "up.npy", up)
    run = tmp_path / "run"
    given = ["run", *DIGITS, "--rounds", 9, "--engine", engine, "--algorithm", "fedavg"]
    given += ["--links", "table", "--set", f"links.file={tmp_path / 'up.npy'}"]
    given += ["--set", "checkpoint_every=2", "--evaluate-every", 1, "--out", run]
    line = refused(fedpbc(*given, "--learning-rate", "1e30"))
    said = DIVERGED.match(line)
    assert said is not None
    assert (said[1], said[3]) == ("3", "2")
    # The last good state is that after three rounds, although no checkpoint was due then.
    newest = max(run.glob("checkpoint-*"))
    assert newest.name == "checkpoint-0000003.safetensors"
    assert newest.name in line
    state = load_state(newest)["simulation"]
    assert state["server"]["round"] == 3
    assert state["server"]["algorithm"]["_x"].isfinite().all()
    assert [m["round"] for m in metrics(run)] == [1, 2, 3]
    assert not (run / "summary.json").exists()
    assert not (run / "final.safetensors").exists()
    # It is as wrong as it was.
    before = content(run)
    assert refused(fedpbc("resume", run)) == line
    assert content(run).keys() == before.keys()
    assert [m["round"] for m in metrics(run)] == [1, 2, 3]


def test_a_network_that_diverges_at_once(tmp_path):
    run = tmp_path / "run"
    line = refused(
        fedpbc("run", *DIGITS, "--out", run, "--learning-rate", "1e30", "--links", "always")
    )
    said = DIVERGED.match(line)
    assert said is not None
    assert (said[1], said[3]) == ("0", "0")
    assert [p.name for p in run.glob("checkpoint-*")] == ["checkpoint-0000000.safetensors"]
    assert metrics(run) == []


@pytest.mark.parametrize("evaluated", [1, 60])
@pytest.mark.parametrize("algorithm", ["fedpbc", "fedau", "fedawe", "mifa"])
def test_quadratics_that_diverge(tmp_path, algorithm, evaluated):
    check, run = write_check(tmp_path), tmp_path / "run"
    given = ["run", check, "--algorithm", algorithm, "--out", run, "--learning-rate", "1e10"]
    given += ["--set", "algorithm.clip=0"] if algorithm == "fedawe" else []
    given += ["--evaluate-every", evaluated, "--set", "checkpoint_every=1"]
    said = DIVERGED.match(refused(fedpbc(*given)))
    assert said is not None
    # The last good state is the one before the round that failed, or older.
    newest = max(run.glob("checkpoint-*"))
    state = load_state(newest)["simulation"]
    rounds = state["server"]["round"]
    assert 1 <= rounds <= int(said[1]) + (evaluated > 1)
    assert state["server"]["algorithm"]["_x"].isfinite().all()
    # Every round that it stands behind was evaluated, where it should have been.
    assert [m["round"] for m in metrics(run)] == list(range(1, rounds + 1)) * (evaluated == 1)
    again = DIVERGED.match(refused(fedpbc("resume", run)))
    assert again is not None
    assert again[1] == said[1]


def test_models_that_run_apart_without_end(tmp_path):
    # The mean of the two models stays at 0 while their distance overflows.
    np.save(tmp_path / "targets.npy", [[1.0], [-1.0]])
    np.save(tmp_path / "timetable.npy", np.zeros((200, 2), dtype=int))
    check = write_check(tmp_path / "other")
    for name in ("targets", "timetable"):
        shutil.copy(tmp_path / f"{name}.npy", check.parent)
    given = ["--algorithm", "fedpbc", "--rounds", 200, "--views", "mean", "--learning-rate", 3]
    line = refused(fedpbc("run", check, *given, "--out", tmp_path / "run"))
    assert line.startswith("the run diverged in round ")


def test_a_run_that_diverges_leaves_the_earlier_one_as_it_was(tmp_path):
    ran(*RUN[:-1], tmp_path / "good")
    before = content(tmp_path / "good")
    refused(fedpbc(*RUN[:-1], tmp_path / "bad", "--learning-rate", "1e30"))
    assert content(tmp_path / "good") == before


def test_a_process_of_its_own_says_one_line_too(stored):
    before = content(stored)
    given = [*RUN, "--set", "links.gamma=2"]
    line = refused(process(*given, cwd=stored))
    assert line == "links.gamma is 2, but should be at most 1"
    assert content(stored) == before


def test_a_process_of_its_own_that_diverges_says_one_line_too(tmp_path):
    given = [*RUN[:-1], tmp_path / "run", "--learning-rate", "1e30"]
    assert DIVERGED.match(refused(process(*given)))


HEAD = "client,online_from_s,online_until_s\n"
CONTENT = {
    "date.toml": "rounds = 2024-01-01\n",
    "time.toml": "[links]\np = 07:32:00\n",
    "brackets.toml": "rounds = " + "[" * 3000 + "]" * 3000,
    "digits.toml": "rounds = " + "9" * 5000,
    "nul.toml": '[task]\ntargets = "a\\u0000b"\n',
    "home.toml": '[task]\ntargets = "~nosuchuser/x.npy"\n',
    "short.csv": HEAD + "a,0,1e-310\nb,0,1e-310\n",
    "long.csv": HEAD + "a,0,1e308\n",
    "good.csv": HEAD + "a,0,90\nb,50,100\n",
    "dots.csv": "# round_seconds = 1.2.3\n" + HEAD + "a,0,9\n",
    "endless.csv": "# round_seconds = 1e999\n" + HEAD + "a,0,9\n",
}
ABSURD = [
    (("run", "date.toml"), "configuration: date.toml: rounds is '2024-01-01', but should be a"),
    (("run", "time.toml"), "configuration: time.toml: links.p is '07:32:00', but should be a"),
    (("run", "brackets.toml"), "configuration: brackets.toml is not valid TOML: it nests too"),
    (("run", "digits.toml"), "configuration: digits.toml is not valid TOML: "),
    (
        ("run", "nul.toml"),
        "configuration: nul.toml: task.targets is 'a\\x00b', but should be a text",
    ),
    (
        ("run", "home.toml"),
        "task.targets is '~nosuchuser/x.npy', but should be a path; there is no",
    ),
    ((*RUN, *settings("name=a", "name=b")), "name is unknown: use one of rounds"),
    ((*COMPARE, *settings("algorithms=3", "algorithms.fedau.cutoff=2")), "algorithms is 3, but"),
    ((*COMPARE, *settings("algorithms=x", "algorithms.fedau.cutoff=2")), "algorithms is 'x', but"),
    (
        (*RUN, *settings("links.p=~nosuchuser/x")),
        "links.p is '~nosuchuser/x', but should be a path",
    ),
    (
        (*RUN, "--data", "cifar10", "--data-dir", "~nosuchuser/x"),
        "data.dir is '~nosuchuser/x', but",
    ),
    ((*RUN, "--trace", "~nosuchuser/x"), "--trace is '~nosuchuser/x', but should be a path"),
    (
        (*RUN, "--links", "table", *settings("links.file=~nosuchuser/x")),
        "links.file is '~nosuchuser/x', but should be a path",
    ),
    (("theory", "--p", "~nosuchuser/x.npy"), "--p is '~nosuchuser/x.npy', but should be a path"),
    ((*RUN, *settings("links.p=a\0b")), "links.p is 'a\\x00b', but should be a text without NUL"),
    ((*RUN, *settings("rounds=" + "9" * 5000)), "rounds has 5,000 characters, but at most"),
    ((*RUN, *settings("rounds=" + "9" * 400)), "rounds is 'of 1329 bits', but should be a number"),
    ((*RUN, "--rounds", "9" * 5000), "Invalid value for '--rounds': '999"),
    ((*RUN, "--seed", "9" * 30), f"seed is {'9' * 30}, but should be a number from"),
    ((*COMPARE, "--seeds", "9" * 5000), "seeds has 5,000 characters"),
    ((*COMPARE, "--seeds", "0-" + "9" * 18), "seeds is '0-999"),
    ((*RUN, *settings("links.p=" + "[" * 3000 + "]" * 3000)), "links.p has 6,000 characters"),
    ((*RUN, *settings("links.p=" + "[" * 30 + "]" * 30)), "links.p nests deeper than 20 levels"),
    (
        (*RUN, *settings("a." * 1500 + "a=1")),
        "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a nests deeper",
    ),
    ((*RUN, *settings("rounds=3\nseed=4")), "rounds is '3\\nseed=4', but should be"),
    (
        (*RUN, "--trace", "good.csv", *settings("links.round_seconds=1e308")),
        "links.round_seconds is 1e+308, but should be at most",
    ),
    ((*RUN, "--trace", "short.csv"), "links.file is 'short.csv', but should be a CSV of client"),
    ((*RUN, "--trace", "long.csv"), "links.file is 'long.csv', but should be a CSV of client"),
    (
        (*RUN, "--trace", "dots.csv"),
        "--trace is 'dots.csv', but should be a log whose first line is",
    ),
    ((*RUN, "--trace", "endless.csv"), "links.round_seconds is inf, but should be a finite number"),
    ((*RUN, "--workers", 10**21), "workers is 1000000000000000000000, but should be"),
    ((*RUN, "--workers", 10**6, "--engine", "pool"), "workers is 1000000, but should be at most"),
    ((*RUN, "--clients", 10**12), "clients is 1000000000000, but should be at most"),
    (
        (*CHECK, *settings("clients=1000000000000")),
        "clients is 1000000000000, but should be at most",
    ),
    ((*RUN, "--rounds", 10**10), "rounds is 10000000000, but should be at most"),
    ((*RUN, "--local-steps", 10**10), "train.local_steps is 10000000000, but should be at most"),
    ((*RUN, "--learning-rate", "1e39"), "train.learning_rate is 1e+39, but should be at most"),
    (
        (*RUN, "--learning-rate", "1e39", *settings("train.optimizer=adam")),
        "train.learning_rate is 1e+39, but should be at most 3.40282e+38, the largest number in",
    ),
    ((*RUN, *settings("train.proximal=1e39")), "train.proximal is 1e+39, but should be at most"),
    (("run", "pipe", *OUT), "configuration: pipe cannot be read: it is not a regular file"),
    (
        (*RUN, "--trace", "pipe"),
        "links.file is 'pipe', but should be a file that can be read: it is",
    ),
    (
        (*CHECK, *settings("task.targets=pipe")),
        "task.targets: pipe is unreadable as a .npy or .csv",
    ),
    ((*CHECK, *settings("links.file=pipe")), "links.file is 'pipe', but should be a file that can"),
    (("theory", "--table", "empty.csv"), "--table: empty.csv is unreadable as a .npy or .csv file"),
    (("theory", "--table", "targets_none.npy"), "--table has an array of shape (0, 3), but should"),
    (("theory", "--p", 0.5, "--local-steps", "9" * 400), "--local-steps is "),
    (("theory", "--p", 0.5, "--rounds", 10**18), "--rounds is 1000000000000000000, but should be"),
    (("theory", "--p", 0.5, "--clients", 10**15), "--clients is 1000000000000000, but should be"),
    (
        ("theory", "--p", 0.5, "--targets", "targets_huge.npy"),
        "--targets has numbers whose squares",
    ),
]


@pytest.fixture
def absurd(tmp_path, monkeypatch):
    write_check(tmp_path, clients=4)
    for name, text in CONTENT.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "empty.csv").write_text("")
    np.save(tmp_path / "targets_none.npy", np.ones((0, 3)))
    np.save(tmp_path / "targets_huge.npy", np.full((4, 2), 1e308))
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("given", "line"), ABSURD)
def test_absurd_values(absurd, given, line):
    before = sorted(absurd.iterdir())
    assert refused(fedpbc(*given)).startswith(line)
    assert sorted(absurd.iterdir()) == before


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "given",
    [
        *(["--p", p] for p in ("5e-324", "1e-310", "0", "1", "5e-324,1")),
        *(["--p", 0.5, f"--{name}", 1e308] for name in ("step-size", "lipschitz", "beta", "gap")),
        ["--p", 0.5, "--local-steps", 10**6],
        ["--p", 0.5, "--gap", 1e308, "--step-size", 5e-324],
    ],
)
def test_theory_at_the_ends_of_the_numbers(given):
    clients = [] if "," in str(given[1]) else ["--clients", 3]
    assert json.loads(ran("theory", *given, *clients, "--json").out)["clients"] in (2, 3)


def test_a_probability_of_a_downlink_that_is_always_up(tmp_path):
    out = tmp_path / "out"
    line = refused(fedpbc("run", *DIGITS, "--set", "downlink.p=0.01", "--out", out))
    assert line.startswith("downlink.p is 0.01, but downlink 'always' does not use it")
    assert not out.exists()


def test_a_label_that_looks_like_markup(tmp_path):
    file = tmp_path / "compare.toml"
    text = (
        'data = "digits"\nclients = 4\nrounds = 1\nseeds = [0]\n[algorithms."{}"]\nname = "mifa"\n'
    )
    file.write_text(text.format("x[/b]"))
    line = refused(fedpbc("compare", file, "--out", tmp_path / "out"))
    assert line == "algorithms is 'x[/b]', but should be a label that a folder can have as its name"
    file.write_text(text.format("x[b]"))
    assert "x[b]" in ran("compare", file, "--jobs", 1, "--out", tmp_path / "out").out


def test_nothing_of_numpys_before_the_one_line(tmp_path):
    np.save(tmp_path / "huge.npy", np.full((4, 2), 1e308))
    ended = process("theory", "--p", 0.5, "--targets", tmp_path / "huge.npy")
    assert refused(ended) == "--targets has numbers whose squares are too large for a number"


def test_no_more_processes_than_clients(tmp_path, monkeypatch):
    stop, counts = PoolEngine._stop_workers, []

    def counted(engine):
        counts.append(len(engine._processes))
        stop(engine)

    monkeypatch.setattr(PoolEngine, "_stop_workers", counted)
    given = ("--data", "digits", "--clients", 2, "--rounds", 1, "--engine", "pool")
    ran("run", *given, "--workers", 12, "--out", tmp_path / "out")
    assert counts == [2]
