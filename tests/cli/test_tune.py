from __future__ import annotations

import json

import pytest

from fedpbc.cli.tune import comparing
from fedpbc.experiments.tuning.directory import TuningDirectory
from tests.commandline import content, fedpbc, ran, refused

SMALL = ("--data", "digits", "--clients", 8, "--rounds", 9, "--jobs", 1)
LINKS = ("--links", "bernoulli", "--set", "links.p=0.4")


@pytest.mark.slow
def test_a_search_ends_with_a_choice_that_other_commands_take(tmp_path):
    out = tmp_path / "tune"
    tuned = ("--algorithms", "fedavg,fedau", "--ceiling", "--space", "ceiling.learning_rate=0.3")
    ended = ran("tune", *SMALL, *LINKS, *tuned, "--candidates", 3, "--out", out)
    assert "the test data was not used" in ended.out
    result = json.loads((out / "tuning.json").read_text())
    assert set(result["algorithms"]) == {"fedavg", "fedau", "ceiling"}
    chosen = result["algorithms"]["fedau"]["chosen"]["settings"]
    run = tmp_path / "run"
    shown = ran("run", out / "tuned-fedau.toml", "--out", run).out
    assert f"{result['algorithms']['fedau']['chosen']['score']['view']}*" in shown
    assert "* the view to deploy, chosen beforehand (deploy_view)" in shown
    import tomllib

    config = tomllib.loads((run / "config.toml").read_text())
    assert config["train"]["learning_rate"] == chosen["train.learning_rate"]
    assert config["algorithm"]["cutoff"] == chosen["algorithm.cutoff"]
    assert "validation" not in config["task"]
    compared = ran(
        "compare", out / "tuned.toml", "--seeds", 0, "--jobs", 1, "--out", tmp_path / "c", "--json"
    )
    rows = json.loads(compared.out)["rows"]
    assert {row["label"] for row in rows} == {"fedavg", "fedau", "ceiling"}
    # The view to deploy is chosen on the held-out samples, too.
    views = {label: each["chosen"]["score"]["view"] for label, each in result["algorithms"].items()}
    assert {row["label"]: row["view"] for row in rows if row["best_deployable"]} == views
    ran("report", tmp_path / "c", "--out", tmp_path / "compared.html")
    assert "the view to deploy, chosen beforehand" in (tmp_path / "compared.html").read_text()
    ceiling = tomllib.loads((tmp_path / "c/ceiling/seed-0/config.toml").read_text())
    assert (ceiling["links"]["name"], ceiling["train"]["learning_rate"]) == ("always", 0.3)
    # Done is done.
    before = content(out)
    assert "was already finished" in ran("resume", out).out
    assert json.loads(ran("resume", out, "--json").out)["algorithms"] == result["algorithms"]
    assert content(out) == before
    # The report shows candidates as runs, finished and not.
    ran("report", out, "--out", tmp_path / "page.html")


@pytest.mark.parametrize(
    ("labels", "ceiling"), [(["fedau"], " --ceiling"), (["fedau", "ceiling"], "")]
)
def test_the_next_step_has_one_ceiling(labels, ceiling):
    line = comparing(TuningDirectory("runs/tuned"), labels)
    assert line == f"'fedpbc compare runs/tuned/tuned.toml{ceiling}'"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--space", "learning_rate"], "--space is 'learning_rate', but should be KEY=VALUE,VALUE"),
        (["--space", "learning_rate="], "KEY=VALUE,VALUE"),
        (["--space", "cutof=1"], "--space is 'cutof'"),
        (["--space", "learning_rate=0.1", "--space", "learning_rate=1"], "given once"),
        (["--candidates", 0], "candidates is 0, but should be at least 1"),
        (["--budget", 3], "budget is 3, but should be at least"),
        (["--budget", 3, "--minutes", 1], "give one of --candidates, --budget and --minutes"),
        (["--validation", 2], "validation is 2.0"),
        (["--seeds", ""], "seeds is ''"),
        (["--jobs", 0], "jobs is 0, but should be at least 1"),
        (["--algorithms", "nobody"], "algorithms is 'nobody'"),
    ],
)
def test_wrong_options_are_one_line_and_nothing_is_written(tmp_path, options, line):
    out = tmp_path / "tune"
    assert line in refused(fedpbc("tune", *SMALL, *LINKS, *options, "--out", out))
    assert not out.exists()
