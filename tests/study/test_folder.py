"""A study's folder lists its runs: begun, widened, set aside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.study.run_folder import RunFolder
from fedpbc.study.study import Study
from fedpbc.study.study_folder import StudyFolder, set_aside

SMALL = {"data": "digits", "clients": 5, "rounds": 2, "seeds": [0]}


def of(algorithms: object, **more: object) -> Study:
    return Study.of({**SMALL, "algorithms": algorithms, **more})


def begun(folder: Path, study: Study) -> list[str]:
    """Begin a study and its runs; returns where they are."""
    with StudyFolder(folder).opened(study) as places:
        for run, path in places:
            if not RunFolder(path).holds_run:
                RunFolder(path).begin(run)
    return [path.relative_to(folder).as_posix() for _, path in places]


def test_a_study_is_read_back_as_it_was(tmp_path):
    study = of(["fedpbc", "fedau:cutoff=5"], sweep={"data.alpha": [0.1, 1]}, ceiling=True)
    begun(tmp_path, study)
    folder = StudyFolder(tmp_path)
    for again in (folder.study(), Study.of(folder.values())):
        assert again.runs() == study.runs()
    listed = [(run.label, run.role, run.condition) for run in folder.listed()]
    assert listed == [(run.label, run.role, run.condition) for run in study.runs()]
    assert (folder.kind, folder.holds_study) == ("comparison", True)


def test_it_is_the_same_study_when_it_is_moved_and_the_files_are_gone(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    np.savetxt(files / "up.csv", np.ones((2, 5)), fmt="%d", delimiter=",")
    np.savetxt(files / "p.csv", np.full(5, 0.5), delimiter=",")
    study = of(["fedpbc", f"fedavg:links.p={files / 'p.csv'}:links.name=bernoulli"],
               links={"name": "table", "file": str(files / "up.csv")})  # fmt: skip
    ids = [run.id for run in study.runs()]
    begun(tmp_path / "study", study)
    (files / "up.csv").unlink()
    (files / "p.csv").unlink()
    (tmp_path / "study").rename(tmp_path / "moved")
    assert [run.id for run in StudyFolder(tmp_path / "moved").study().runs()] == ids


def test_widening_adds_entries_and_seeds_and_keeps_what_is_there(tmp_path):
    begun(tmp_path, of(["fedpbc"]))
    places = begun(tmp_path, of(["fedavg:learning_rate=0.2"], seeds=[1]))
    assert places == [
        *("fedpbc/seed-0", "fedpbc/seed-1"),
        *("fedavg-learning_rate=0.2/seed-0", "fedavg-learning_rate=0.2/seed-1"),
    ]
    assert begun(tmp_path, of(["fedpbc"], engine="serial")) == places
    runs = StudyFolder(tmp_path).study().runs()
    assert {run.execution.engine.name for run in runs} == {"serial"}


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"rounds": 3}, "holds another study (rounds is 2 there, 3 here)"),
        ({"links": "markov"}, "links.name is bernoulli_varying there, markov here"),
        ({"algorithms": {"fedpbc": {"rounds": 9}}}, "holds another 'fedpbc' (rounds is 2 there"),
    ],
)
def test_another_study_is_refused(tmp_path, more, line):
    begun(tmp_path, of(["fedpbc"]))
    before = (tmp_path / "study.json").read_bytes()
    with pytest.raises(InputError) as error:
        begun(tmp_path, Study.of({**SMALL, "algorithms": ["fedpbc"], **more}))
    assert line in str(error.value)
    assert (tmp_path / "study.json").read_bytes() == before


def test_labels_that_look_alike_as_folders_have_folders_of_their_own(tmp_path):
    places = begun(tmp_path, of({"a:b": {"name": "fedpbc"}, "a/b": {"name": "fedavg"}}))
    assert places[0] == "a-b/seed-0"
    assert places[1].startswith("a-b/seed-0-")
    assert begun(tmp_path, of({"a/b": {"name": "fedavg"}})) == places


def test_what_is_set_aside_keeps_its_content(tmp_path):
    begun(tmp_path / "study", of(["fedpbc"]))
    assert set_aside(tmp_path / "study") == tmp_path / "study.before-1"
    begun(tmp_path / "study", of(["fedavg"]))
    assert set_aside(tmp_path / "study") == tmp_path / "study.before-2"
    assert StudyFolder(tmp_path / "study.before-1").listed()[0].label == "fedpbc"
    assert set_aside(tmp_path / "study") is None


def test_other_files_are_never_set_aside(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for write in (set_aside, lambda folder: begun(folder, of(["fedpbc"]))):
        with pytest.raises(InputError, match="holds other files"):
            write(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_study_that_lists_runs_elsewhere_is_refused(tmp_path):
    begun(tmp_path / "study", of(["fedpbc"]))
    file = tmp_path / "study" / "study.json"
    content = json.loads(file.read_text())
    content["runs"][0]["folder"] = "../other"
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="which is elsewhere"):
        StudyFolder(tmp_path / "study").records()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"base": 3}', "\x00"])
def test_a_damaged_list_is_one_line(tmp_path, text):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(InputError, match=r"study\.json"):
        StudyFolder(tmp_path).study()
