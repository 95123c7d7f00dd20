from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.run_result import RunResult
from fedpbc.paper.plan import PaperCondition
from fedpbc.paper.result_table import TableEntry
from fedpbc.paper.table1 import accuracy_table, differs_from_paper
from tests.commandline import COMMAND, fedpbc, ran, refused, timeless
from tests.processes import PATIENCE, child, group_is_alive, wait_until
from tests.small_grids import SMALL, line, numbers

pytestmark = pytest.mark.slow

GRID = (*SMALL, "--links", "bernoulli,cyclic", "--algorithms", "fedpbc,fedavg,mifa")
GRID += ("--seeds", "0,1")
PLACES = [
    f"digits/{links}/{name}/seed-{seed}"
    for links in ("bernoulli", "cyclic")
    for name in ("fedpbc", "fedavg", "mifa")
    for seed in (0, 1)
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("table1") / "whole"
    return ran("paper", "table1", *GRID, "--jobs", 1, "--out", out), out


def test_every_cell_is_a_run_and_every_number_is_shown(whole):
    ended, out = whole
    for place in PLACES:
        assert (out / place / "summary.json").is_file()
        assert not list((out / place).glob("checkpoint-*"))
    found = numbers(out, "table1")
    rows = {(r["links"], r["algorithm"], r["view"]): r for r in found["rows"]}
    assert len(rows) == 2 * (5 + 2 + 2)
    # Shown are the paper's view and the best deployable one, in one line each.
    assert (out / "table1.md").read_text().count("| fedpbc ") == 2
    # By hand: six rounds have one evaluation, so a mean over seeds is of two numbers.
    ends = [timeless(out / f"digits/cyclic/mifa/seed-{k}")[-1] for k in (0, 1)]
    tests = [end["views"]["server"]["test_accuracy"] for end in ends]
    shown = rows["cyclic", "mifa", "server"]["test"]
    assert shown["mean"] == pytest.approx(sum(tests) / 2)
    assert shown["deviation"] == pytest.approx(abs(tests[0] - tests[1]) / 2**0.5)
    text = f"{100 * shown['mean']:.1f} ± {100 * shown['deviation']:.1f}"
    assert text in ended.out
    assert text in (out / "table1.md").read_text()
    assert text in (out / "report.html").read_text()
    for name in ("table1-digits.png", "table1-digits.pdf"):
        assert (out / name).stat().st_size > 10_000


def test_the_notes_are_in_every_output(whole):
    ended, out = whole
    for text in (ended.out, (out / "table1.md").read_text(), (out / "report.html").read_text()):
        assert "The paper has no figures for digits." in text
        assert "default step sizes" in text
        assert "± one standard deviation over 2 seeds." in text
        assert "best and ² second best among the algorithms without memory" in text
        assert "which no server has" in text
    assert "fedpbc paper table1 --data digits" in (out / "table1.md").read_text()


@pytest.mark.parametrize(("given", "gamma"), [((), "0.4"), (("--set", "links.gamma=0.0"), "0")])
def test_it_is_said_that_cyclic_reset_is_not_that_of_the_text(tmp_path, given, gamma):
    options = (*SMALL, "--links", "cyclic_reset", "--algorithms", "fedavg", "--seeds", 0)
    ended = ran("paper", "table1", *options, *given, "--out", tmp_path / "out")
    config = (tmp_path / "out/digits/cyclic_reset/fedavg/seed-0/config.toml").read_text()
    assert f"gamma = {float(gamma)}" in config
    page, markdown = ((tmp_path / "out" / f).read_text() for f in ("report.html", "table1.md"))
    for text in (ended.out, page, markdown):
        assert f"cyclic_reset has γ = {gamma} here" in " ".join(text.split())


def test_the_same_command_runs_nothing_again(whole):
    ended, out = whole
    before = {p: (out / p / "summary.json").stat().st_mtime_ns for p in PLACES}
    again = ran("paper", "table1", *GRID, "--out", out)
    assert again.out == ended.out
    assert {p: (out / p / "summary.json").stat().st_mtime_ns for p in PLACES} == before


def test_a_grid_is_narrowed_and_widened_without_running_anything_twice(whole):
    _, out = whole
    before = {p: (out / p / "summary.json").stat().st_mtime_ns for p in PLACES}
    narrow = (*SMALL, "--links", "cyclic", "--algorithms", "fedavg", "--seeds", "1")
    assert "fedpbc" not in json.loads(ran("paper", "table1", *narrow, "--out", out, "--json").out)
    wide = (*SMALL, "--links", "cyclic", "--algorithms", "fedavg,fedau", "--seeds", "1,0")
    ran("paper", "table1", *wide, "--jobs", 1, "--out", out)
    assert (out / "digits/cyclic/fedau/seed-0/summary.json").is_file()
    assert {p: (out / p / "summary.json").stat().st_mtime_ns for p in PLACES} == before
    ran("paper", "table1", *GRID, "--out", out)


def test_other_options_are_refused_and_nothing_is_lost(whole):
    _, out = whole
    for changed in (("--rounds", 7), ("--set", "train.learning_rate=0.1")):
        line = refused(fedpbc("paper", "table1", *GRID, *changed, "--out", out))
        assert "digits/bernoulli/fedpbc/seed-0 was begun with other options" in line
        assert "--overwrite" in line
    assert "experiment table1" in refused(fedpbc("paper", "table2", *SMALL, "--out", out))
    assert "fedpbc paper table1" in refused(fedpbc("resume", out))
    assert (out / PLACES[0] / "summary.json").is_file()


@pytest.mark.long
def test_after_a_kill_the_same_command_ends_with_the_same_tables(whole, tmp_path):
    ended, first = whole
    out = tmp_path / "killed"
    command = [COMMAND, "paper", "table1", *map(str, GRID), "--jobs", "2", "--out", str(out)]
    with child(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while len(list(out.rglob("summary.json"))) < 3:
            assert running.poll() is None
            time.sleep(0.01)
        running.kill()
        running.wait()
        # Workers that are still alive hold the locks of their runs.
        wait_until(lambda: not group_is_alive(running.pid))
    assert len(list(out.rglob("summary.json"))) < len(PLACES)
    again = ran("paper", "table1", *GRID, "--jobs", 1, "--out", out)
    assert again.out.replace(str(tmp_path), "") == (
        ended.out.replace(str(first.parent), "").replace("whole", "killed")
    )
    assert numbers(out, "table1")["rows"] == numbers(first, "table1")["rows"]


def test_ctrl_c_says_how_to_resume(tmp_path):
    out = tmp_path / "stopped"
    command = [COMMAND, "paper", "table1", *map(str, GRID[:-2]), "--jobs", "1", "--out", str(out)]
    command[command.index("6")] = "20000"
    with child(command) as running:
        while not list(out.rglob("metrics.jsonl")):
            assert running.poll() is None
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)
        output, error = running.communicate(timeout=PATIENCE)
    assert (running.returncode, output) == (130, "")
    assert error.endswith("fedpbc: interrupted; run the same command again to resume\n")


@pytest.fixture
def registry():
    """Restore the registry: other tests must not see the plugins' algorithms."""
    kept = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(kept)


@pytest.mark.usefixtures("registry")
def test_a_failed_run_is_shown_while_the_others_finish(tmp_path):
    out = tmp_path / "out"
    broken = ("--set", "algorithms.fedau.cutoff=5", "--plugin", tmp_path / "wild.py")
    (tmp_path / "wild.py").write_text(
        "from fedpbc import Algorithm, register_algorithm\n"
        "@register_algorithm\n"
        "class Wild(Algorithm):\n"
        "    '''Breaks.'''\n"
        "    name = 'wild'\n"
        "    def aggregate(self, round, updates):\n"
        "        raise KeyError('no such thing')\n"
    )
    few = (*SMALL, "--links", "bernoulli", "--algorithms", "fedau,wild", "--seeds", "0")
    ended = fedpbc("paper", "table1", *few, *broken, "--jobs", 1, "--out", out)
    assert ended.code == 2
    [last] = ended.err.splitlines()
    # With the plugin's file and line.
    assert last.startswith("fedpbc: 1 failed, such as digits · bernoulli · wild seed 0: ")
    assert last.endswith("line 7: KeyError: 'no such thing'")
    table = (out / "table1.md").read_text()
    assert "| bernoulli | wild |  | failed |" in table
    assert "FAILED: digits · bernoulli · wild seed 0: " in table
    assert "KeyError: 'no such thing'" in table
    found = numbers(out, "table1")
    assert {row["algorithm"] for row in found["rows"]} == {"fedau"}
    assert len(found["failed"]) == 1
    config = (out / "digits/bernoulli/fedau/seed-0/config.toml").read_text()
    assert "cutoff = 5" in config
    # The plugin is copied into the folder, for runs that start later.
    assert (out / "inputs/plugin-0.py").read_text() == (tmp_path / "wild.py").read_text()


@pytest.mark.usefixtures("registry")
def test_a_plugin_algorithm_is_shown_among_the_papers(tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from fedpbc import register_algorithm\n"
        "from fedpbc.algorithms import FedAvg\n"
        "@register_algorithm\n"
        "class Mine(FedAvg):\n"
        "    '''FedAvg under another name.'''\n"
        "    name = 'mine'\n"
    )
    few = (*SMALL, "--links", "markov", "--algorithms", "fedavg,mine", "--seeds", "0")
    out = tmp_path / "out"
    ran("paper", "table1", *few, "--plugin", plugin, "--jobs", 1, "--out", out)
    rows = numbers(out, "table1")["rows"]
    tests = {(r["algorithm"], r["view"]): r["test"]["mean"] for r in rows}
    assert tests["mine", "server"] == tests["fedavg", "server"]


CELLS = [
    RunResult("fedpbc", 0, 9, [line(10, server=0.3, mean=0.65)]),
    RunResult("fedavg", 0, 9, [line(10, server=0.6)]),
    RunResult("mifa", 0, 9, [line(10, server=0.7)]),
    RunResult("fedau", 0, failure="it diverged"),
]


def table_of(links: str, rounds: int, cells=CELLS, settings=None, **options):
    condition = PaperCondition(("cifar10", links), "cifar10", links, rounds)
    other = differs_from_paper(condition, settings or {})
    sections = {condition.key: {"name": links, **options}}
    return accuracy_table("cifar10", [(condition, Comparison(cells))], sections, other)


def test_the_papers_numbers_are_shown_beside_the_measured_ones():
    step = {"train": {"learning_rate": 0.1}, "workers": 2, "data": {"dir": "x"}, "clients": 100}
    for settings in ({}, step):
        table = table_of("bernoulli", 10_000, settings=settings)
        assert table.head[:6] == ["links", "algorithm", "view", "test %", "paper", "differs by"]
        first, second, third, fourth = table.rows
        assert first[1:6] == ["fedpbc", "mean", TableEntry("65.0", 1), "66.3 ± 1.3", "-1.3"]
        assert first[-2:] == ["server", "30.0"]
        assert second[3] == TableEntry("60.0", 2)
        assert third[1:4] == ["mifa†", "server", TableEntry("70.0")]
        assert fourth[1:4] == ["fedau", "", "failed"]
        assert table.notes == ["differs by: the mean over 1 seed minus the paper's over three."]


@pytest.mark.parametrize(
    ("rounds", "settings", "why"),
    [
        (100, {}, "1 % of the paper's rounds"),
        (20_000, {}, "200 % of the paper's rounds"),
        (10_000, {"clients": 8}, "other settings than the paper (clients)"),
        (10_000, {"data": {"alpha": 1.0}}, "other settings than the paper (data.alpha)"),
    ],
)
def test_another_experiment_has_no_difference_to_the_paper(rounds, settings, why):
    table = table_of("bernoulli", rounds, settings=settings)
    assert list(table.head) == [
        *("links", "algorithm", "view", "test %", "paper", "train %", "paper"),
        *("deployable view", "its test %"),
    ]
    beside = [TableEntry("65.0", 1), "66.3 ± 1.3", TableEntry("65.0", 1), "68.4 ± 1.1"]
    assert table.rows[0][3:7] == beside
    assert all(len(row) == len(table.head) for row in table.rows)
    assert f"this is {why}, over 1 seed" in table.notes[0]
    assert not any("differs by" in note for note in table.notes)


def marked(table):
    return [str(row[1]) for row in table.rows if str(row[4]).endswith("§")]


def test_numbers_for_which_the_released_code_computed_something_else_are_marked():
    cells = [
        RunResult(name, 0, 9, [line(10, server=0.3)])
        for name in ("fedavg", "fedavg_known", "f3ast", "mifa")
    ]
    everyone = ["fedavg", "fedavg_known†", "f3ast", "mifa†"]
    for links in ("bernoulli", "bernoulli_varying", "markov", "cyclic"):
        table = table_of(links, 10_000, cells)
        assert marked(table) == ["fedavg_known†", "f3ast"]
        assert sum(note.startswith("§ ") for note in table.notes) == 2
    assert marked(table_of("markov_varying", 10_000, cells)) == everyone
    assert marked(table_of("cyclic_reset", 10_000, cells)) == everyone
    # With the up times of the released code it is like for like.
    assert marked(table_of("cyclic_reset", 10_000, cells, gamma=0.4)) == ["fedavg_known†", "f3ast"]
