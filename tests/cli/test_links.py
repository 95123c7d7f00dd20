"""``fedpbc links``."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.commandline import fedpbc, ran, refused

PHONES = Path(__file__).parents[3] / "shared" / "data" / "traces" / "phones.csv"
TRACE = "client,online_from_s,online_until_s\na,0,1200\na,3000,6000\nb,600,1800\nc,0,0\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(TRACE)
    return tmp_path


def told(*arguments: object) -> dict:
    return json.loads(ran("links", *arguments, "--json").out)


def test_a_trace_is_taken_whole(here):
    links = told("--trace", "log.csv")
    # Nine rounds of 600 s end before 6,000 s; three devices, up if they are at a round's end.
    assert (links["rounds"], links["clients"], links["round_seconds"]) == (9, 3, 600)
    # a: at 600 s and from 3,000 to 5,400 s, but not at 1,200 s; b: at 600 and 1,200 s.
    assert links["shares"] == pytest.approx([6 / 9, 2 / 9, 0])
    assert links["never"] == 1
    assert links["data"] is None
    assert told("--trace", "log.csv", "--rounds", 5)["rounds"] == 5
    assert "one was never heard" in links["sentences"]["availability"]


def test_only_what_was_recorded_is_described(here):
    links, longer = told("--trace", "log.csv"), told("--trace", "log.csv", "--rounds", 30)
    sentences = longer.pop("sentences")
    said = (
        "the trace ends after 9 of 30 rounds (600 s each): then it starts again from its beginning"
    )
    assert sentences.pop("log") == f"{said}."
    assert sentences == links.pop("sentences")
    assert longer == links
    assert said in " ".join(ran("links", "--trace", "log.csv", "--rounds", 30).out.split())
    ran("links", "--trace", "log.csv", "--rounds", 30, "--out", "links.html")
    assert said in Path("links.html").read_text()


def test_the_log_says_how_long_a_round_is_wherever_it_is_named(here):
    (here / "log.csv").write_text(f"# round_seconds = 300\n{TRACE}")
    given = ("--links", "trace", "--set", "links.file=log.csv")
    for links in (told("--trace", "log.csv"), told(*given)):
        assert (links["round_seconds"], links["rounds"], links["clients"]) == (300, 19, 3)


def test_a_run_longer_than_its_trace_says_so_in_every_place(here):
    said = (
        "the trace ends after 9 of 12 rounds (600 s each): then it starts again from its beginning"
    )
    few = ("--trace", "log.csv", "--data", "digits", "--clients", 3, "--rounds", 12)
    one = fedpbc("run", *few, "--algorithm", "fedavg", "--out", "run")
    assert (one.code, one.err) == (0, f"fedpbc: note: {said}\n")
    two = ("--algorithms", "fedavg,mifa", "--seeds", "0-1")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        several = fedpbc("compare", *few, *two, "--out", "runs")
    assert (several.code, several.err.count(said)) == (0, 1)
    ran("report", "run")
    for page in ("run/report.html", "runs/report.html"):
        assert said in Path(page).read_text()
    assert said in " ".join(ran("theory", "run").out.split())
    # Which says nothing on standard error.
    ran("run", *few[:-1], 9, "--algorithm", "fedavg", "--out", "short")


def test_schemes_and_configurations(here):
    assert (
        told("--links", "bernoulli", "--set", "links.p=0.5", "--clients", 4, "--rounds", 60)[
            "theory"
        ]["rho_kind"]
        == "exact"
    )
    ran("run", "--data", "digits", "--clients", 4, "--rounds", 30, "--out", "run")
    links = told("run")
    assert links["links"] == "bernoulli_varying, seed 0"
    assert links["rounds"] == 30
    # p is drawn from classes.
    assert links["data"] is not None
    np.save("targets.npy", np.zeros((3, 1)))
    assert told("--set", "task.targets=targets.npy", "--links", "always")["clients"] == 3


def test_files(here):
    from fedpbc.experiments.run_directory import is_report

    out = ran("links", "--trace", "log.csv", "--out", "links.html").out
    assert "links.html" in out
    assert "outages" in out
    page = Path("links.html").read_text()
    assert is_report(Path("links.html"))
    assert "data:image/svg+xml;base64," in page
    assert "one was never heard" in page
    ran("links", "--trace", "log.csv", "--out", "links.png")
    assert Path("links.png").read_bytes().startswith(b"\x89PNG")
    ran("links", "--trace", "log.csv", "--out", "links.svg")
    assert "<svg" in Path("links.svg").read_text()
    ran("links", "--trace", "log.csv", "--out", "links.json")
    assert json.loads(Path("links.json").read_text())["clients"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--trace", "log.csv", "--out", "a.txt"), "ends in .html, .png, .svg or .json"),
        (("--trace", "log.csv", "--out", "no/a.png"), "a folder that exists"),
        (("--trace", "log.csv", "--out", "mine.html"), "not a report"),
        (("--trace", "none.csv"), "a file that can be read"),
        (("--links", "nope"), "nope"),
        (("--trace", "log.csv", "--set", "links.round_seconds=x"), "round_seconds"),
    ],
)
def test_wrong_input(here, options, message):
    Path("mine.html").write_text("mine")
    assert message in refused(fedpbc("links", *options))


@pytest.mark.skipif(not PHONES.exists(), reason="needs the recorded traces")
@pytest.mark.slow
def test_real_devices(here):
    links = told("--trace", PHONES)
    assert (links["rounds"], links["clients"], links["never"]) == (863, 297, 0)
    # People charge their phones at night.
    assert links["day"]["p"] < 0.05
    assert links["round_dependence"]["lag1"] > 0.8
