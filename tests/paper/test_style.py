from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpbc.paper import ExperimentRequest
from fedpbc.paper.style import write_experiment
from fedpbc.report.page import PageTable


@pytest.mark.parametrize(("quick", "title"), [(True, "quick: one seed"), (False, "")])
def test_quick_is_said_on_the_picture_in_the_text_and_in_the_numbers(tmp_path, quick, title):
    figures = []
    made = write_experiment(
        "fig2",
        ExperimentRequest(out=tmp_path / "new" / "folder", quick=quick),
        size=(2, 2),
        draw=figures.append,
        table=PageTable("", ["found", "how"], [["7", "counted"]]),
        numbers={"found": 7},
        quick="one seed",
    )
    [figure] = figures
    assert figure.get_suptitle() == title
    assert made.text.startswith(title if quick else "found      how\n7      counted\n")
    assert [path.name for path in made.written] == [
        "report.html",
        "fig2.png",
        "fig2.pdf",
        "fig2.json",
    ]
    numbers = json.loads(made.written[3].read_text())
    assert numbers == made.numbers
    assert numbers["quick"] == ("one seed" if quick else None)
    assert numbers["found"] == 7


def test_the_command_makes_the_same_again():
    settings = {"plugins": ["my file.py"], "engine": "serial", "links": {"gamma": 0.25}}
    wanted = ExperimentRequest(
        out=Path("x"), quick=True, links=["markov", "mine"], rounds=9, jobs=3, settings=settings
    )
    assert wanted.command("fig6") == (
        "fedpbc paper fig6 --quick --links markov,mine --rounds 9 --plugin 'my file.py' "
        "--set engine=serial --set links.gamma=0.25 --out x"
    )
