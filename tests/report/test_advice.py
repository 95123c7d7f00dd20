from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from fedpbc.experiments.advice.directory import AdviceDirectory
from fedpbc.experiments.advice.link_facts import examine_links
from fedpbc.experiments.advice.request import AdviceRequest
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.intervals import Interval
from fedpbc.experiments.link_query import report_links
from fedpbc.report.advice import (
    _expected,
    answer_lines,
    commands_after,
    remarks,
    scope_of_links,
    write_advice,
)
from tests.synthetic_advice import synthetic_advice, write_synthetic_advice


@pytest.mark.parametrize(
    ("has_classes", "mean", "interval", "text"),
    [
        (
            True,
            0.82,
            Interval(0.81, 0.83),
            "Expected test accuracy: 82.0 % (mean over 2 seeds, 95 % interval 81.0 to 83.0).",
        ),
        (
            False,
            -6.0,
            Interval(-7.5, -4.5),
            "Expected test loss: 6 (mean over 2 seeds, 95 % interval 4.5 to 7.5).",
        ),
        (False, -6.0, None, "Expected test loss: 6 (one seed)."),
    ],
)
def test_what_to_expect(has_classes, mean, interval, text):
    found = SimpleNamespace(
        has_classes=has_classes,
        mean=mean,
        interval=interval,
        verdict=SimpleNamespace(seeds=(1, 2)),
        over_baseline=None,
        recovered=None,
    )
    assert _expected(found, baseline_tuned=True) == text


@pytest.mark.parametrize(
    ("settings", "baseline_tuned", "end"),
    [
        ({"train.learning_rate": 0.2}, True, "against FedAvg tuned in the same way."),
        ({"train.learning_rate": 0.2}, False, "against FedAvg, whose step size was not tuned."),
        ({}, False, "against FedAvg."),
    ],
)
def test_whether_fedavg_was_tuned_is_said(settings, baseline_tuned, end):
    found = SimpleNamespace(
        has_classes=True,
        mean=0.8,
        interval=None,
        verdict=SimpleNamespace(seeds=(1,)),
        over_baseline=SimpleNamespace(mean=0.02),
        recovered=None,
        settings=settings,
    )
    assert (
        _expected(found, baseline_tuned)
        == f"Expected test accuracy: 80.0 % (one seed), +2.0 points {end}"
    )


def test_what_a_short_budget_left_out_is_said(tmp_path):
    advice = synthetic_advice(tmp_path)
    advice = replace(advice, schedule=replace(advice.schedule, ceiling=False))
    assert any(line.startswith("There was no time to tune") for line in answer_lines(advice))
    tuned = replace(advice, request=replace(advice.request, tuned={"fedavg": {}}))
    assert not any("no time to tune" in line for line in answer_lines(tuned))
    lines = remarks(advice)
    assert (
        "A larger budget: within 5 minutes there was time to compare 3 algorithms with their "
        "default settings over 3 seeds."
    ) in lines
    assert any("no time to train with every link up" in line for line in lines)


def test_links_are_named_as_the_user_did_and_their_scope_is_said(tmp_path):
    """Three devices over a day of rounds of ten minutes; the first two are simulated."""
    log = tmp_path / "links-file.csv"
    rows = [f"{client},{start},{start + 3600}" for client in range(3) for start in (0, 82_800)]
    log.write_text("client,online_from_s,online_until_s\n" + "\n".join(rows) + "\n")
    advice = synthetic_advice(tmp_path / "advice")
    links = {"name": "trace", "file": str(log), "round_seconds": 600.0}
    values = {"links": links, "clients": 2, "rounds": 144, "data": "digits"}
    request = AdviceRequest(values, minutes=5.0, links_name="plant.csv")
    advice = replace(advice, request=request, links=examine_links(request))
    assert scope_of_links(advice) == (
        "The log is described for the first 2 of its 3 devices, which are simulated, over 143 "
        "rounds; runs replay its first 40 rounds."
    )
    longer = replace(advice, schedule=replace(advice.schedule, rounds=300))
    assert scope_of_links(longer).endswith(
        "over 143 rounds; runs have 300: then it starts again from its beginning."
    )
    # What is asked for changes nothing of what is described.
    asked = replace(request, values={**values, "rounds": 300})
    for described in (advice.links.report, examine_links(asked).report):
        assert described.statistics.rounds == 143
        assert described.sentences == advice.links.report.sentences
    directory = AdviceDirectory(tmp_path / "advice")
    write_advice(advice, directory, "fedpbc advise --trace plant.csv")
    page = directory.page_path.read_text(encoding="utf-8")
    assert "<title>What to run on plant.csv, 600 s per round</title>" in page
    assert "links-file.csv" not in page
    assert directory.answer()["links"]["links"] == "plant.csv, 600 s per round"


@pytest.mark.parametrize(
    ("links", "told"), [({"name": "always"}, False), ({"name": "bernoulli", "p": 0.5}, True)]
)
def test_links_that_never_change_are_not_too_few_rounds_to_tell(tmp_path, links, told):
    advice = synthetic_advice(tmp_path)
    config = Config.from_dict({"links": links, "clients": 3, "rounds": 6})
    advice = replace(advice, links=replace(advice.links, report=report_links(config)))
    line = "Other links: these rounds are too few to tell whether the links change."
    assert (line in remarks(advice)) == told


def test_nothing_is_offered_that_was_not_written(tmp_path):
    directory = AdviceDirectory(tmp_path)
    advice = synthetic_advice(tmp_path)
    assert len(commands_after(advice, directory)) == 3
    [(command, _)] = commands_after(replace(advice, recommendation=None), directory)
    assert command.startswith("fedpbc report ")


def test_the_page_has_the_answer_its_chart_and_where_it_comes_from(tmp_path):
    page = write_synthetic_advice(tmp_path / "advice").read_text(encoding="utf-8")
    assert "Run fedpbc and deploy its view &#39;reported&#39;, with η_0 0.1." in page
    assert page.count('data-chart="curve"') == 1
    # Whoever never heard of all this finds each term explained.
    for word in ("η_0, η_g", "seed", "95 % interval", "p", "ρ", "†", "view", "ceiling"):
        assert f"<dt>{word}</dt>" in page
    assert '<a href="#words">' in page
    assert (
        "Found in 1.5 minutes, with a budget of 5: 3 algorithms compared on the test data" in page
    )
    assert f"Made by fedpbc {version('fedpbc')}" in page
    assert page.count('<span class="tag best">recommended</span>') == 1
    assert "scaffold (devices keep nothing)." in page
