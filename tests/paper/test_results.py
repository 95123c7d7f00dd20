from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpbc.paper import ExperimentRequest
from fedpbc.paper.result_table import ResultTable
from fedpbc.paper.results import write_figure


@pytest.mark.parametrize(("quick", "title"), [(True, "quick: one seed"), (False, "")])
def test_quick_is_stated_on_the_figure_in_the_text_and_in_the_numbers(tmp_path, quick, title):
    figures = []
    result = write_figure(
        "fig2",
        ExperimentRequest(out=tmp_path / "new" / "folder", quick=quick),
        size=(2, 2),
        draw=figures.append,
        table=ResultTable("The numbers", ["found", "how"], [["7", "counted"]]),
        numbers={"found": 7},
        quick="one seed",
    )
    [figure] = figures
    assert figure.get_suptitle() == title
    lines = [" ".join(line.split()) for line in result.text.splitlines()]
    assert (lines[0], lines[1], lines[3]) == ("The numbers", "found how", "7 counted")
    assert lines[4:] == (["", title] if quick else [])
    assert [path.name for path in result.written] == [
        "report.html",
        "fig2.png",
        "fig2.svg",
        "fig2.pdf",
        "fig2.json",
    ]
    numbers = json.loads(result.written[-1].read_text())
    assert numbers == result.numbers
    assert numbers["quick"] == ("one seed" if quick else None)
    assert numbers["found"] == 7


def test_the_command_repeats_the_figure():
    settings = {"plugins": ["my file.py"], "engine": "serial", "links": {"gamma": 0.25}}
    request = ExperimentRequest(
        out=Path("x"), quick=True, links=["markov", "mine"], rounds=9, jobs=3, settings=settings
    )
    assert request.command("fig6") == (
        "fedpbc paper fig6 --quick --links markov,mine --rounds 9 --plugin 'my file.py' "
        "--set engine=serial --set links.gamma=0.25 --out x"
    )
