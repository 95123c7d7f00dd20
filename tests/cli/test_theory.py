"""``fedpbc theory``."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from fedpbc import Quadratic, simulate, theory
from fedpbc.experiments.theory_query import TheoryQuery, analyze
from tests.commandline import content, fedpbc, ran, refused, write_check


def told(*arguments: object) -> dict:
    return json.loads(ran("theory", *arguments, "--json").out)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("targets.npy", np.array([0.0, 100.0]))
    np.save("three.npy", np.ones((3, 2)))
    np.save("table.npy", np.array([[1, 0], [1, 1], [0, 0], [0, 1]]))
    np.save("twos.npy", np.full((4, 2), 2))
    np.save("flat.npy", np.ones(4))
    np.save("p.npy", np.array([0.5, 0.25]))
    np.save("nan.npy", np.array([0.5, np.nan]))
    (tmp_path / "table.csv").write_text("1,0\n1,1\n0,0\n0,1\n")
    (tmp_path / "p.csv").write_text("0.5,0.25\n")
    (tmp_path / "junk.npy").write_text("junk")
    return tmp_path


HAND = ("--p", "0.5,0.25", "--targets", "targets.npy")


def test_json_of_a_case_worked_by_hand(files):
    found = told(*HAND, "--rounds", 2, "--local-steps", 2, "--step-size", 1e-5)
    assert found["clients"] == 2
    assert found["independent"] is found["constant"] is True
    assert found["weights"]["uniform"] == 0.5
    assert found["weights"]["expected"] == pytest.approx([0.7, 0.3], rel=1e-14)
    assert found["total_variation"] == {"expected": pytest.approx(0.2)}
    assert found["limit"] == {"expected": pytest.approx(30, rel=1e-14), "optimum": 50}
    # Both are up with probability 1/8, and then halve their distance: ρ = 7/8, and the bound is
    # 1 - (1/4)⁴(1 - (3/4)²)²/8.
    assert found["rho"]["value"] == pytest.approx(0.875, rel=1e-14)
    assert found["rho"]["kind"] == "exact"
    assert found["rho"]["bound"] == pytest.approx(1 - (7 / 16) ** 2 / 2048, rel=1e-15)
    assert found["rho"]["measured"] is None
    # Ages at t = 0, 1, 2: 1, 1.5, 1.75 and 1, 1.75, 2.3125.
    staleness = [line["staleness"] for line in found["per_client"]]
    assert staleness == pytest.approx([4.25 / 3, 5.0625 / 3])
    assert [line["staleness_limit"] for line in found["per_client"]] == [2, 4]
    assert found["staleness"]["bound"] == 4
    assert found["staleness"]["expected"] == pytest.approx((4.25 + 5.0625) / 6)
    # Quadratics tell the theorem's constants: F(0) - F* = 50²/2, and ζ = 50.
    theorem = found["theorem"]
    assert (theorem["gap"], theorem["zeta"], theorem["sigma"]) == (1250, 50, 0)
    assert theorem["assumed"] == []
    assert theorem["kappa"] == 1
    root = 0.875**0.5
    assert theorem["largest_step_size"] == pytest.approx((1 - root) / (108 * 8 * 2))
    assert theorem["within"] is True
    drift = 1 + 1 + 1 / (1 - root)
    assert theorem["bound"] == pytest.approx(7500 / 4e-5 + 54 * 2e-5 * drift * 2500)


@pytest.mark.parametrize("p", ["p.npy", "p.csv", "0.5, 0.25"])
def test_probabilities_from_anywhere(files, p):
    assert told("--p", p)["weights"] == told("--p", "0.5,0.25")["weights"]


def test_one_probability_for_all_clients(files):
    assert told("--p", 0.5)["clients"] == 100
    assert told("--p", 0.5, "--clients", 7)["weights"]["expected"] == pytest.approx([1 / 7] * 7)
    assert told("--p", 0.5, "--targets", "targets.npy")["clients"] == 2


@pytest.mark.parametrize("table", ["table.npy", "table.csv"])
def test_json_of_a_timetable_by_hand(files, table):
    found = told("--table", table, "--targets", "targets.npy")
    assert found["independent"] is False
    assert found["constant"] is None
    assert found["weights"] == {"uniform": 0.5, "measured": [0.5, 0.5]}
    assert found["limit"] == {"measured": 50, "optimum": 50}
    # Together in one round of four: off the diagonal of the mean W 1/8, ρ = 1 - 2/8.
    assert found["rho"] == {"value": 0.75, "kind": "measured", "bound": None, "measured": 0.75}
    # 1 1 1 2 3 and 1 2 1 2 1.
    assert [line["measured_staleness"] for line in found["per_client"]] == [1.6, 1.4]
    assert found["staleness"] == {
        "bound": None,
        "expected": None,
        "measured": 1.5,
        "measured_max": 3,
    }
    assert [line["share_of_rounds"] for line in found["per_client"]] == [0.5, 0.5]
    assert found["theorem"]["rounds"] == 4


def test_the_first_rounds_of_a_timetable(files):
    assert told("--table", "table.npy", "--rounds", 1)["weights"]["measured"] == [1, 0]


def test_the_links_of_a_scheme(files):
    found = told("--links", "bernoulli", "--p", "0.5,0.25", "--rounds", 400, "--seed", 3)
    assert found["weights"]["expected"] == pytest.approx([0.7, 0.3])
    measured = found["weights"]["measured"]
    # A share lies in [0, 1]: four standard errors over the rounds that were not empty.
    assert abs(measured[0] - 0.7) < 4 * 0.5 / (400 * 0.6) ** 0.5
    assert (
        measured != told(*("--links", "bernoulli", "--p", "0.5,0.25", "--rounds", 400))["weights"]
    )
    assert 1 < found["staleness"]["measured"] < 4


def test_links_that_depend_on_each_other_are_only_measured(files):
    found = told("--links", "markov", "--p", 0.5, "--clients", 5, "--rounds", 50)
    assert found["independent"] is False
    assert found["rho"]["bound"] is None
    assert "expected" not in found["weights"]
    assert any("not known to be independent" in note for note in found["notes"])


def test_changing_links(files):
    found = told("--p", "0.5,0.25", "--links", "bernoulli_varying", "--rounds", 80)
    assert found["independent"] is True
    assert found["constant"] is False
    # At the lowest both have a fifth of their p.
    assert found["rho"]["value"] == pytest.approx(1 - 0.1 * 0.05)
    assert found["staleness"]["bound"] == pytest.approx(20)


def test_links_that_depend_on_the_data(files):
    small = ("--data", "digits", "--clients", 4, "--rounds", 48)
    found = told("--links", "label_cyclic", "--set", "links.outside=0.25", *small)
    assert found["independent"] is True
    assert {line["share_of_rounds"] < 0.6 for line in found["per_client"]} == {True}
    # Equal volumes: always up.
    found = told("--links", "by_volume", *small)
    assert found["weights"]["expected"] == pytest.approx([0.25] * 4)
    # p alone does not replace the classes.
    grouped = ("--links", "group", "--set", "links.assign=class", "--p", 0.5)
    assert told(*grouped, *small)["independent"] is False


def test_links_that_are_certainly_down_in_some_rounds(files):
    # No bound holds then, and nothing fails.
    for links in (
        ("label_cyclic", "--data", "digits", "--clients", 4),
        ("interleaved_sine", "--p", "0.5,0.15"),
        ("interleaved_sine", "--p", "0.05,0.05"),
        ("staircase", "--p", "0.5,1", "--set", "links.low=0"),
    ):
        found = told("--links", *links, "--rounds", 40)
        assert found["rho"]["value"] == pytest.approx(1)


def test_a_configuration_and_a_runs_folder_have_the_same_links(tmp_path):
    file = write_check(tmp_path, rounds=60)
    ran("run", file, "--out", tmp_path / "run")
    found = told(file)
    assert told(tmp_path / "run") == found
    assert found["clients"] == 12
    assert found["theorem"]["rounds"] == 60
    assert found["theorem"]["step_size"] == 0.1
    assert len(found["limit"]["optimum"]) == 3
    rows = np.load(tmp_path / "timetable.npy").astype(bool)
    ages = theory.staleness(rows)
    assert found["staleness"]["measured"] == pytest.approx(ages.mean())


def test_the_default_is_what_a_run_would_draw():
    found = told("--data", "digits", "--clients", 10, "--rounds", 40)
    assert found["independent"] is True
    assert found["theorem"]["step_size"] == 0.05
    assert any("η_0 is taken" in note for note in found["notes"])
    assert min(line["p"] for line in found["per_client"]) > 0


def test_what_people_see(files):
    out = ran("theory", *HAND).out
    for text in ("0.7", "0.3", "30", "50", "ρ", "0.875", "exact", "bound", "Theorem 1", "κ"):
        assert text in out
    assert "note: links are independent" in out
    assert "not covered" in out
    many = ran("theory", "--p", ",".join(str(0.01 * k) for k in range(1, 51))).out
    assert "…" in many
    assert "least" in many
    assert "mean" in many


def test_every_client_in_a_file(files):
    out = ran("theory", *HAND, "--out", "clients.csv").out
    assert "written: clients.csv" in out
    with (files / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["weight"]) for row in rows] == pytest.approx([0.7, 0.3])
    assert rows[0]["measured_weight"] == ""
    assert [row["client"] for row in rows] == ["0", "1"]


WRONG = {
    "p above 1": (["--p", "1.5"], "p is 1.5 for client 0"),
    "p no number": (["--p", "a"], "--p is 'a'"),
    "p empty": (["--p", ","], "--p is ','"),
    "p nan": (["--p", "nan"], "p is not finite"),
    "p file missing": (["--p", "no.npy"], "--p is 'no.npy'"),
    "p file junk": (["--p", "junk.npy"], "--p: junk.npy is unreadable"),
    "p file nan": (["--p", "nan.npy"], "p is not finite"),
    "clients 0": (["--p", "0.5", "--clients", 0], "--clients is 0"),
    "clients other": (["--p", "0.5,0.1", "--clients", 3], "--clients is 3"),
    "seed with p": (["--p", "0.5", "--seed", 3], "--seed is 3"),
    "table missing": (["--table", "no.npy"], "--table is 'no.npy'"),
    "table of others": (["--table", "twos.npy"], "--table has other values than 0 and 1"),
    "table flat": (["--table", "flat.npy"], "--table has an array of shape (4,)"),
    "table and p": (["--table", "table.npy", "--p", "0.5"], "--table table.npy stands alone"),
    "table and links": (
        ["--table", "table.npy", "--links", "always"],
        "--table table.npy stands alone",
    ),
    "table and seed": (["--table", "table.npy", "--seed", 1], "--table table.npy stands alone"),
    "table clients": (["--table", "table.npy", "--clients", 3], "--clients is 3"),
    "table rounds": (["--table", "table.npy", "--rounds", 5], "--rounds is 5"),
    "table rounds 0": (["--table", "table.npy", "--rounds", 0], "--rounds is 0"),
    "targets missing": (["--p", "0.5", "--targets", "no.npy"], "--targets is 'no.npy'"),
    "targets other": (["--p", "0.5,0.5", "--targets", "three.npy"], "targets is of shape (3, 2)"),
    "targets nan": (["--p", "0.5,0.5", "--targets", "nan.npy"], "--targets is not finite"),
    "step size": ([*HAND, "--step-size", 0], "step_size is 0.0"),
    "local steps": ([*HAND, "--local-steps", 0], "--local-steps is 0"),
    "rounds": ([*HAND, "--rounds", 0], "rounds is 0"),
    "lipschitz": ([*HAND, "--lipschitz", 0.5], "lipschitz is 0.5"),
    "sigma": ([*HAND, "--sigma", -1], "sigma is -1.0"),
    "zeta": ([*HAND, "--zeta", -1], "zeta is -1.0"),
    "beta": ([*HAND, "--beta", -1], "beta is -1.0"),
    "gap": ([*HAND, "--gap", "nan"], "gap is nan"),
    "out": ([*HAND, "--out", "clients.txt"], "--out is 'clients.txt'"),
    "out folder": ([*HAND, "--out", "no/clients.csv"], "--out is 'no/clients.csv'"),
    "source": (["no.toml"], "configuration is 'no.toml'"),
    "source folder": (["."], "configuration is '.'"),
    "links": (["--links", "bernouli"], "links is 'bernouli'"),
    "links without p": (
        ["--links", "by_volume", "--p", "0.5", "--clients", 4],
        "links.p is 0.5, but links 'by_volume' does not use it",
    ),
    "links that need classes": (
        ["--links", "label_cyclic", "--set", "task.targets=three.npy"],
        "links is 'label_cyclic', but should be a scheme that needs no classes",
    ),
    "setting": (["--set", "links.gama=1"], "links.gama"),
    "setting no key": (["--set", "gamma"], "--set is 'gamma'"),
    "unknown": (["--probability", 0.5], "No such option"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_writes_nothing(files, case):
    arguments, words = WRONG[case]
    before = content(files)
    assert words in refused(fedpbc("theory", *arguments))
    assert content(files) == before


def test_a_run_begun_in_python_cannot_be_drawn_again(tmp_path):
    task = Quadratic([[1.0], [2.0]])
    simulate(task, "fedpbc", "always", rounds=2, out=tmp_path / "run")
    line = refused(fedpbc("theory", tmp_path / "run"))
    assert "started from Python" in line
    assert "--table" in line


def test_probabilities_do_not_wait_for_torch(tmp_path):
    code = (
        "import sys\n"
        "sys.argv = ['fedpbc', 'theory', '--p', '0.1,0.9']\n"
        "from fedpbc.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as ending:\n    code = ending.code\n"
        "print('ENDED', code, 'torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "ENDED 0 False"


def test_what_a_configuration_goes_beyond_is_said(tmp_path):
    more = ["--links", "always", "--clients", 3, "--rounds", 2, "--data", "digits"]
    notes = told(*more, "--set", "downlink.name=bernoulli", "--set", "downlink.p=0.5")["notes"]
    assert any("downlinks" in note for note in notes)
    assert any("plain SGD" in n for n in told(*more, "--set", "train.optimizer=adam")["notes"])


def test_a_thousand_clients_are_exact_and_more_are_bounded():
    assert analyze(TheoryQuery(p="0.3", clients=1000)).rho[1] == "exact"
    assert analyze(TheoryQuery(p="0.3", clients=1001)).rho[1] == "bound"
