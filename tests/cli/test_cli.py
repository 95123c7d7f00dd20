from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedpbc import ALGORITHMS, SCHEMES
from fedpbc.data.sources import SOURCES
from fedpbc.errors import TryAgainError
from fedpbc.options import options_of
from fedpbc.paper.catalog import EXPERIMENTS
from fedpbc.tasks.networks import MODELS
from tests.commandline import (  # type: ignore[attr-defined]
    COMMAND,
    DIGITS,
    cli,
    content,
    fedpbc,
    metrics,
    process,
    ran,
    refused,
)

pytestmark = pytest.mark.slow

SMALL = ("run", *DIGITS, "--rounds", 4)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["compare", "-h"],
        ["resume", "-h"],
        ["theory", "-h"],
        ["list"],
    ],
)
def test_help_and_list_do_not_wait_for_torch(arguments):
    code = (
        "import sys\n"
        f"sys.argv = ['fedpbc', *{arguments}]\n"
        "from fedpbc.cli.app import main\n"
        "try:\n    main()\n"
        "except SystemExit as ending:\n    code = ending.code\n"
        "print('\\nENDED', code, [m for m in ('torch', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] in ("ENDED 0 []", "ENDED None []")
    assert ended.stderr == ""


@pytest.mark.parametrize("command", ["run", "compare", "resume", "theory", "list"])
def test_every_option_is_explained(command):
    ended = ran(command, "--help")
    assert f"fedpbc {command}" in ended.out
    from typer.main import get_command

    for parameter in get_command(cli.app).commands[command].params:  # type: ignore[attr-defined]
        if parameter.param_type_name == "option":
            assert parameter.help, parameter.name
        else:
            assert parameter.metavar or parameter.name.upper() in ended.out


def test_without_arguments_the_help_is_shown():
    ended = fedpbc()
    assert "Usage: fedpbc" in ended.out
    assert "compare" in ended.out
    assert ended.err == ""


def test_a_run_says_what_was_written_where_and_what_is_next(tmp_path):
    ended = ran(*SMALL, "--out", tmp_path / "run")
    assert "fedpbc · digits · bernoulli_varying" in ended.out
    for view in ("server", "averaged", "mean", "reported", "corrected"):
        [row] = [line for line in ended.out.splitlines() if line.startswith(f"│ {view} ")]
        accuracy = metrics(tmp_path / "run")[-1]["views"][view]["test_accuracy"]
        assert f" {100 * accuracy:.1f} " in row
    said = ended.out.splitlines()
    last = metrics(tmp_path / "run")[-1]
    sent = f"{last['bytes_up'] / 1000:.3g} kB"
    costs = (
        f"{last['local_steps']:,} local steps, {last['uploads']} uploads, {sent} up, {sent} down"
    )
    assert f"{costs}, 1 model on a client, " in ended.out
    assert any(line.startswith(f"written: {tmp_path / 'run'}") for line in said)
    assert said[-1].startswith("next: ")
    assert any("engine stacked: a small dense model" in line for line in said)


def test_a_run_for_machines(tmp_path):
    ended = ran(*SMALL, "--json", "--out", tmp_path / "run")
    found = json.loads(ended.out)
    assert found.pop("folder") == str(tmp_path / "run")
    assert found == json.loads((tmp_path / "run" / "summary.json").read_text())
    again = ran("resume", tmp_path / "run", "--json")
    assert json.loads(again.out) == json.loads(ended.out)


def test_a_process_of_its_own_is_quiet_where_nobody_looks(tmp_path):
    ended = process(*SMALL, "--json", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    folder = tmp_path / json.loads(ended.out)["folder"]
    assert folder == tmp_path / "runs" / "fedpbc-bernoulli_varying-seed0"
    assert (folder / "summary.json").is_file()


def test_folders_by_default_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        ran(*SMALL)
    ran(*SMALL, "--algorithm", "fedavg", "--links", "always", "--seed", 2)
    given = ["compare", *DIGITS, "--rounds", 2, "--algorithms", "fedavg", "--seeds", 0]
    for _ in range(2):
        ran(*given, "--jobs", 1)
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "compare",
        "compare-2",
        "fedavg-always-seed2",
        "fedpbc-bernoulli_varying-seed0",
        "fedpbc-bernoulli_varying-seed0-2",
        "fedpbc-bernoulli_varying-seed0-3",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_a_name_by_default_is_that_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = ran(*SMALL, "--json", "--set", "algorithm=mifa", "--set", "seed=7")
    assert json.loads(ended.out)["folder"] == "runs/mifa-bernoulli_varying-seed7"


def test_the_list_names_everything_with_its_options():
    said = ran("list").out
    lines: dict[str, str] = {}
    for line in said.splitlines():
        if line.startswith("  "):
            # A link scheme and a data set may have the same name.
            name = line.split()[0]
            lines[name] = f"{lines.get(name, '')}\n{line}"
    for name, kind in ALGORITHMS.items():
        assert kind.summary() in lines[name]
        for option in options_of(kind.__init__).values():
            assert str(option) in lines[name]
    for name, scheme in SCHEMES.items():
        assert scheme.summary in lines[name]
        for option in scheme.options.values():
            assert str(option) in lines[name]
    for name in (*SOURCES, *MODELS, "serial", "stacked", "auto", "quadratic"):
        assert name in lines


def test_whatever_can_be_set_is_listed_or_has_an_option():
    from fedpbc.experiments.settings import DataSection, General, TrainSection

    said = ran("list").out + ran("run", "--help").out.replace("-", "_").replace("plugin", "plugins")
    hidden = [
        option
        for section in (General, DataSection, TrainSection)
        for option in options_of(section)
        if not re.search(rf"(\b|_){option}\b", said)
    ]
    assert hidden == []


def test_the_list_for_machines():
    found = json.loads(ran("list", "--json").out)
    assert [entry["name"] for entry in found["algorithms"]] == list(ALGORITHMS)
    assert {entry["name"] for entry in found["links"]} == set(SCHEMES)
    fedau = next(entry for entry in found["algorithms"] if entry["name"] == "fedau")
    assert fedau["options"] == ["cutoff=50", "over=all"]
    assert all(entry["summary"] for kind in found.values() for entry in kind)


def in_a_terminal(*arguments: object, cwd: Path) -> tuple[int, str]:
    """The command with a terminal for standard error, and what that showed."""
    ours, theirs = pty.openpty()
    command = [COMMAND, *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    running = subprocess.Popen(
        command, cwd=cwd, stderr=theirs, stdout=subprocess.DEVNULL, env=environment
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux says so when nobody holds the other end any more.
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    return running.wait(), shown.decode()


def test_a_terminal_shows_how_it_goes(tmp_path):
    given = [*SMALL, "--rounds", 300, "--evaluate-every", 10, "--out", "run"]
    code, shown = in_a_terminal(*given, cwd=tmp_path)
    assert code == 0
    assert "engine stacked: a small dense model" in shown
    assert "running in run" in shown
    assert re.search(r"\d+/300", shown)
    assert re.search(r"mean \d+\.\d %", shown)
    assert "left" in shown


def test_for_machines_a_terminal_shows_nothing(tmp_path):
    assert in_a_terminal(*SMALL, "--json", "--out", "run", cwd=tmp_path) == (0, "")


def test_a_reader_that_goes_away_is_no_error():
    with subprocess.Popen(
        [COMMAND, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode in (0, 1)


def test_commas_and_spaces(tmp_path):
    ran(*SMALL, "--views", " server , mean,", "--out", tmp_path / "run")
    assert metrics(tmp_path / "run")[-1]["views"].keys() == {"server", "mean"}


@pytest.mark.parametrize(
    ("options", "where", "value"),
    [
        (["--links", "markov"], ("links", "name"), "markov"),
        (["--downlink", "cyclic"], ("downlink", "name"), "cyclic"),
        (["--model", "softmax"], ("model", "name"), "softmax"),
        (["--alpha", 0.7], ("data", "alpha"), 0.7),
        (["--clients", 9], ("clients",), 9),
        (["--seed", 5], ("seed",), 5),
        (["--learning-rate", 0.25], ("train", "learning_rate"), 0.25),
        (["--global-learning-rate", 2], ("train", "global_learning_rate"), 2.0),
        (["--local-steps", 2], ("train", "local_steps"), 2),
        (["--batch-size", 4], ("train", "batch_size"), 4),
        (["--engine", "serial"], ("engine",), "serial"),
        (["--evaluate-every", 3], ("evaluate_every",), 3),
        (["--set", "data.train_samples=0"], ("data", "train_samples"), 0),
        (["--set", "train.optimizer=adam"], ("train", "optimizer"), "adam"),
        (["--set", "checkpoint_every=2"], ("checkpoint_every",), 2),
    ],
)
def test_every_option_reaches_the_run(tmp_path, options, where, value):
    import tomllib

    ran(*SMALL, *options, "--out", tmp_path / "run")
    found = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    for key in where:
        found = found[key]
    assert found == value


def test_the_results_of_two_seeds_differ(tmp_path):
    for seed in (0, 1):
        ran(*SMALL, "--seed", seed, "--out", tmp_path / str(seed))
    one, other = (content(tmp_path / k)["final.safetensors"] for k in "01")
    assert one != other


def test_one_kind_of_names_is_listed():
    said = ran("list", "algorithms").out
    assert said.splitlines()[0] == "algorithms"
    assert [line.split()[0] for line in said.splitlines() if line.startswith("  ")] == list(
        ALGORITHMS
    )
    assert "bernoulli" not in ran("list", "algorithms", "--json").out
    assert list(json.loads(ran("list", "links", "--json").out)) == ["links"]
    assert refused(fedpbc("list", "algoritms")).startswith("KIND is 'algoritms', but should be ")


def test_the_papers_experiments_stand_before_the_options():
    said = ran("paper", "--help").out
    places = [said.index(f"{name}: ") for name in EXPERIMENTS]
    assert places == sorted(places)
    assert places[-1] < said.index("--quick")


def test_what_may_work_later_has_an_exit_code_of_its_own(monkeypatch):
    def full(*_: object) -> None:
        raise TryAgainError("the disk is full")

    monkeypatch.setattr("fedpbc.report.listing.list_choices", full)
    ended = fedpbc("list")
    assert (ended.code, ended.err) == (75, "fedpbc: the disk is full\n")
