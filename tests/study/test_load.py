"""A file, then options, then assignments; what is given takes effect."""

from __future__ import annotations

import pytest

from fedpbc.errors import InputError
from fedpbc.study.load import load
from fedpbc.study.spec import Spec


def write(folder, text):
    file = folder / "run.toml"
    file.write_text(text)
    return file


def test_each_overrides_the_one_before(tmp_path):
    file = write(tmp_path, "rounds = 5\nclients = 7\n[links]\nname = 'markov'\np = 0.5\n")
    values = load(file, {"rounds": 6, "links.p": 0.3}, ["rounds=8"])
    assert values == {"rounds": 8, "clients": 7, "links": {"name": "markov", "p": 0.3}}


def test_another_name_drops_the_options_of_the_first(tmp_path):
    file = write(tmp_path, "[links]\nname = 'markov'\np = 0.5\n")
    assert load(file, {"links": "cyclic"})["links"] == {"name": "cyclic"}
    assert load(None, {"links": "bernoulli:p=0.3"})["links"] == {"name": "bernoulli", "p": 0.3}
    assert load(None, {}, ["links.p=0.3", "links=markov"])["links"] == {"p": 0.3, "name": "markov"}


def test_files_lie_beside_the_configuration_or_here(tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "up.csv").write_text("1,1\n")
    (tmp_path / "up.csv").write_text("0,0\n")
    file = write(tmp_path / "conf", "links = 'table:file=up.csv'\n")
    monkeypatch.chdir(tmp_path)
    assert Spec.of(load(file)).links["file"] == str(tmp_path / "conf" / "up.csv")
    given = Spec.of(load(file, {}, ["links.file=up.csv"]))
    assert given.links["file"] == str(tmp_path / "up.csv")


def test_a_trace_is_short_for_links(tmp_path):
    trace = tmp_path / "log.csv"
    trace.write_text(
        "# round_seconds = 10.0\nclient,online_from_s,online_until_s\n0,0,20\n1,5,20\n"
    )
    values = load(None, {}, trace=trace)
    assert values == {"links": {"name": "trace", "file": str(trace)}, "clients": 2}
    assert Spec.of(values).links["round_seconds"] == 10


@pytest.mark.parametrize(
    ("assignments", "line"),
    [
        (["rounds"], "KEY=VALUE, such as links.gamma=0.2"),
        (["links.name=markov", "links.stay=0.1", "links=cyclic"], "a later 'links' replaces it"),
        (["rounds.x=3"], "rounds.x cannot be set: rounds is 5, and no table"),
        (["links..p=3"], "a key such as links.gamma"),
    ],
)
def test_what_has_no_effect_is_an_error(tmp_path, assignments, line):
    with pytest.raises(InputError) as error:
        load(write(tmp_path, "rounds = 5\n"), {}, assignments)
    assert line in str(error.value)
