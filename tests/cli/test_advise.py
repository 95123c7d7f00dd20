from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from importlib.metadata import version

import pytest

from fedpbc import parallel
from fedpbc.errors import FedpbcError
from fedpbc.experiments.advice import advise as steps
from fedpbc.experiments.advice.directory import AdviceDirectory
from fedpbc.experiments.advice.schedule import Schedule
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.parallel import usable_cores
from tests.commandline import content, fedpbc, ran, refused

SMALL = ("--data", "digits", "--clients", 8, "--rounds", 12, "--jobs", 1)
LINKS = ("--links", "bernoulli", "--set", "links.p=0.4")


@pytest.fixture
def small_schedule(monkeypatch):
    """A budget that does not depend on how busy the machine is."""
    plan = Schedule(
        12, ("fedavg", "mifa", "fedpbc"), 2, 2, 2, True, 9.0, False, ceiling_candidates=2
    )
    monkeypatch.setattr(steps, "choose_schedule", lambda *_, **options: plan)
    monkeypatch.setattr(steps, "MOST_SEEDS", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("small_schedule")
def test_advice_ends_with_a_recommendation_and_files_to_go_on_with(tmp_path):
    out = tmp_path / "advice"
    ended = ran("advise", *SMALL, *LINKS, "--minutes", 5, "--out", out)
    advice = json.loads((out / "advice.json").read_text())
    found = advice["recommendation"]
    assert f"Run {found['algorithm']} and deploy its view '{found['view']}'" in ended.out
    assert set(advice["settings"]) == {"fedavg", "mifa", "fedpbc", "ceiling"}
    assert advice["comparison"]["seeds"] == [1, 2]
    labels = {row["label"] for row in advice["comparison"]["rows"]}
    assert {"fedavg", "ceiling"} <= labels
    notes = ended.out.splitlines()
    assert notes[1].startswith("3 algorithms, up to 2 settings each; then up to 2 of the best and ")
    assert notes[1].endswith(", with the ceiling: about 9 s of 5 minutes on 1 core")
    assert "tuning, scored on training samples that are held out" in notes
    assert any(n.startswith("comparing fedavg") and "left" in n for n in notes)
    page = (out / "advice.html").read_text()
    assert "What to run on" in page
    assert "The answer" in page
    # A page as all others: made by the same layout, with its script and where it comes from.
    assert '<script type="application/json" id="data">' in page
    assert f"Made by fedpbc {version('fedpbc')}" in page
    assert 'data-chart="curve"' in page
    assert 'src="data:image/svg+xml;base64,' in page
    # Its configuration is one that 'run' takes, with the tuned step size.
    run = json.loads(ran("run", out / "recommended.toml", "--out", tmp_path / "run", "--json").out)
    assert run["algorithm"] == found["algorithm"]
    tuned = json.loads((out / "tune/tuning.json").read_text())["algorithms"]
    chosen = tuned[found["algorithm"]]["chosen"]["settings"]
    assert found["settings"] == chosen
    # The view, too, was chosen on the held-out samples.
    assert found["view"] == tuned[found["algorithm"]]["chosen"]["score"]["view"]
    recommended = tomllib.loads((out / "recommended.toml").read_text())
    assert recommended["deploy_view"] == found["view"]
    # Candidates that were not promoted are not resumed.
    assert not list(out.rglob("checkpoint-*"))
    # The ceiling is tuned for itself, and compared with the settings that were chosen for it.
    assert len(tuned["ceiling"]["candidates"]) == 2
    own = tuned["ceiling"]["chosen"]["settings"]
    assert advice["settings"]["ceiling"] == own
    config = tomllib.loads((out / "compare/ceiling/seed-1/config.toml").read_text())
    assert config["train"]["learning_rate"] == own["train.learning_rate"]
    assert config["links"]["name"] == "always"

    # The same again is not done again: it says what it came to, and changes nothing.
    before = content(out)
    command = " ".join(map(str, ("fedpbc advise", *SMALL, *LINKS, "--minutes", 5, "--out", out)))
    assert advice["command"] == command
    for again in (("resume", out), ("advise", *SMALL, *LINKS, "--minutes", 5, "--out", out)):
        notes = ran(*again).out.splitlines()
        assert notes[0] == f"{out} was already finished"
        assert f"Run {found['algorithm']} and deploy its view '{found['view']}'" in notes[1]
        assert f"written: {out / 'advice.html'}" in "\n".join(notes)
        assert not any(note.startswith("comparing") for note in notes)
    assert json.loads(ran("resume", out, "--json").out) == advice
    assert content(out) == before
    # What is damaged is made again, with the same answer, within what was left of the budget.
    (out / "recommended.toml").write_text("")
    ran("resume", out)
    assert (out / "recommended.toml").read_bytes() == before["recommended.toml"]
    made = json.loads((out / "advice.json").read_text())
    assert (made["recommendation"], made["command"]) == (found, command)
    assert made["seconds"] > advice["seconds"]


def test_limits_that_nothing_keeps_leave_no_folder(tmp_path):
    out = tmp_path / "advice"
    line = refused(fedpbc("advise", *SMALL, *LINKS, "--max-local-steps", 1, "--out", out))
    assert "no algorithm keeps the limits: at most 1 local step; FedAvg has" in line
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("small_schedule")
def test_settings_are_chosen_for_a_view_that_the_server_can_afford(tmp_path):
    out = tmp_path / "advice"
    limit = ("--max-server-models", 2)
    ran("advise", *SMALL, *LINKS, *limit, "--minutes", 5, "--out", out)
    tuned = json.loads((out / "tune/tuning.json").read_text())["algorithms"]
    for candidate in tuned["fedpbc"]["candidates"]:
        assert candidate["score"]["view"] in ("server", "averaged")
    run = RunDirectory(out / "tune/fedpbc/candidate-0/seed-0")
    assert set(run.metrics()[-1]["views"]) == {"server", "averaged"}
    settings = json.loads((out / "advice.json").read_text())["settings"]["fedpbc"]
    assert settings == tuned["fedpbc"]["chosen"]["settings"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_speed_is_that_of_as_many_cores_as_a_run_will_have(tmp_path, monkeypatch, jobs):
    monkeypatch.setattr(parallel, "_core_limit", 5)
    cores = []

    def measured(*_):
        cores.append(usable_cores())
        raise FedpbcError("enough")

    monkeypatch.setattr(steps, "measure_speeds", measured)
    given = ("--data", "digits", "--clients", 8, "--jobs", jobs, "--out", tmp_path / "advice")
    assert fedpbc("advise", *given).code != 0
    assert cores == [5 if jobs == 1 else 1]


@pytest.mark.slow
@pytest.mark.usefixtures("small_schedule")
def test_advice_that_was_stopped_reports_the_whole_when_resumed(tmp_path, monkeypatch):
    out = tmp_path / "advice"
    command = ("advise", *SMALL, *LINKS, "--minutes", 5, "--out", out)
    search = steps._tuned

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "_tuned", stop)
    assert fedpbc(*command).code != 0
    assert not (out / "advice.json").exists()
    # It had taken nearly all of its five minutes.
    plan = AdviceDirectory(out)
    session = plan.session()
    assert session is not None
    assert session.command == " ".join(map(str, ("fedpbc", *command)))
    assert 0 < session.seconds < 60
    plan.keep_session(replace(session, seconds=297.0))
    monkeypatch.setattr(steps, "_tuned", search)
    monkeypatch.setattr(steps, "MOST_SEEDS", 10)
    ended = ran("resume", out)
    advice = json.loads((out / "advice.json").read_text())
    assert advice["command"] == session.command
    assert advice["seconds"] > 297
    assert "; the budget is used up" in ended.out
    assert advice["comparison"]["seeds"] == [1, 2]
    page = (out / "advice.html").read_text()
    assert re.search(r"Found in (4\.9|5\.\d) minutes, with a budget of 5", page)
    assert f"fedpbc {' '.join(map(str, command))}" in page
    assert "fedpbc resume" not in page


@pytest.mark.slow
@pytest.mark.long
def test_a_search_that_is_slower_than_expected_tries_less(tmp_path, monkeypatch):
    plan = Schedule(12, ("fedavg", "mifa"), 9, 1, 2, False, 9.0, False, tuning_seconds=0.05)
    monkeypatch.setattr(steps, "choose_schedule", lambda *_, **options: plan)
    monkeypatch.setattr(steps, "MOST_SEEDS", 2)
    out = tmp_path / "advice"
    ended = ran("advise", *SMALL, *LINKS, "--minutes", 5, "--out", out)
    assert "2 algorithms with 1 setting each, and to compare 2 of them over 2 seeds" in ended.out
    # The number is kept, however fast the machine is now.
    before = (out / "tune/tune.toml").read_bytes()
    (out / "recommended.toml").unlink()
    assert "with 1 setting each" in ran("resume", out).out
    assert (out / "tune/tune.toml").read_bytes() == before


@pytest.mark.slow
def test_limits_that_nothing_keeps(tmp_path):
    ended = fedpbc(
        "advise", *SMALL, *LINKS, "--max-local-steps", 1, "--minutes", 5, "--out", tmp_path / "a"
    )
    assert ended.code == 2
    assert ended.err.startswith("fedpbc: no algorithm keeps the limits: at most 1 local step; ")
    assert ended.err.endswith(" local steps in 12 rounds\n")
    # Before anything is trained for nothing.
    assert not (tmp_path / "a/tune").exists()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--minutes", 0], "minutes is 0.0, but should be above 0"),
        (["--max-server-models", 0], "--max-server-models is 0, but should be at least 1"),
        (["--max-server-models", 10**21], "--max-server-models is 1000000000000000000000, but"),
        (["--jobs", 0], "jobs is 0, but should be at least 1"),
        (["--links", "nowhere"], "links is 'nowhere'"),
        (["--trace", "missing.csv"], "missing.csv"),
        (["--data", "nothing"], "data.name is 'nothing'"),
        (["--set", "aggregation.trim=0.2"], "the aggregation 'mean' does not use it"),
    ],
)
def test_wrong_options_are_one_line_and_nothing_is_written(tmp_path, options, line):
    out = tmp_path / "advice"
    assert line in refused(fedpbc("advise", "--data", "digits", *options, "--out", out))
    assert not out.exists()


def test_the_help_has_the_defaults_of_this_command():
    words = " ".join(ran("advise", "--help").out.replace("│", " ").split())
    assert "Number of rounds T (default: 300;" in words
    assert "the devices of a trace, at most 300" in words


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    line = refused(fedpbc("advise", *SMALL, *LINKS, "--out", tmp_path))
    assert line.endswith("holds other files; choose a new or empty folder")
    assert content(tmp_path) == {"notes.txt": b"mine"}


def test_settings_of_an_algorithm_are_checked_before_anything_is_written(tmp_path):
    out = tmp_path / "advice"
    given = ("--set", "algorithms.mifa.rescale=perhaps")
    line = refused(fedpbc("advise", *SMALL, *LINKS, *given, "--out", out))
    assert "algorithms.mifa: algorithm.rescale is 'perhaps', but should be" in line
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("small_schedule")
@pytest.mark.long
def test_a_run_that_failed_does_not_decide(tmp_path):
    out = tmp_path / "advice"
    ran("advise", *SMALL, *LINKS, "--minutes", 0.001, "--out", out)
    found = (out / "advice.json").read_bytes()
    config = out / "compare/fedavg/seed-2/config.toml"
    config.write_text(config.read_text().replace("rounds = 12", "rounds = 13"))
    ended = fedpbc("resume", out, "--jobs", 1)
    assert ended.code == 2
    assert f"fedavg with seed 2 failed: {config.parent} holds another run" in ended.err
    assert ended.err.endswith("resume the advice when that is fixed\n")
    assert (out / "advice.json").read_bytes() == found
