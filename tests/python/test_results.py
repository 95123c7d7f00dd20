"""Results from Python show themselves: as text, HTML, data frames, figures and pages."""

from __future__ import annotations

import json
import math
import pickle
import stat
import subprocess
import sys
import tempfile
import threading

import pytest
import torch
from torch import nn

from fedpbc import (
    FedpbcError,
    InputError,
    MissingExtraError,
    Quadratic,
    Supervised,
    compare,
    simulate,
)
from fedpbc.python import compared_runs
from fedpbc.report.comparison_table import TRAIN_NOTE, footnotes

X = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()


def largest(outputs, labels):
    return outputs.abs().max()


def make_task(seed=0):
    torch.manual_seed(seed)
    train, test = (X[:90], Y[:90]), (X[90:], Y[90:])
    return Supervised(
        nn.Linear(4, 3), train, test, clients=4, seed=seed, metrics={"largest": largest}
    )


@pytest.fixture(scope="module")
def result():
    return simulate(make_task(), "fedpbc", "markov", rounds=4, evaluate_every=2)


@pytest.fixture(scope="module")
def comparison():
    return compare(make_task, ["fedavg", "fedpbc"], "0-1", links="markov", rounds=4)


def test_a_result_is_one_short_line(result):
    accuracy = f"{100 * result.accuracy('server'):.1f}"
    begins = "<Result: fedpbc over markov, 4 rounds, 4 clients: test % "
    assert repr(result).startswith(f"{begins}server {accuracy}, averaged ")
    assert len(repr(result)) < 200


def test_a_result_as_html(result):
    html = result._repr_html_()
    assert html.count("<tr>") == 1 + len(result.models)
    assert "largest" in html
    assert f"{100 * result.accuracy('server'):.1f}" in html


def test_a_result_as_a_data_frame(result):
    frame = result.to_pandas()
    assert len(frame) == 2 * len(result.models)
    last = frame[(frame["round"] == 4) & (frame["view"] == "mean")].iloc[0]
    assert last["test_accuracy"] == result.accuracy("mean")
    assert last["largest"] == result.metrics[-1].views["mean"].extra["largest"]
    assert "per_class" not in frame
    assert last["local_steps"] == result.cost["local_steps"]


def test_a_result_as_a_figure(result):
    axes = result.plot().axes[0]
    assert axes.get_ylabel() == "test accuracy, %"
    assert len(axes.lines) == len(result.models)
    assert list(axes.lines[0].get_ydata())[-1] == pytest.approx(100 * result.accuracy("server"))
    assert result.plot("largest", views=["server"])._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"key is 'larges', but should be .* mean 'largest'"):
        result.plot("larges")


def charts_of(page):
    text = page.read_text(encoding="utf-8")
    _, _, rest = text.partition('<script type="application/json" id="data">')
    return json.loads(rest.partition("</script>")[0])["groups"][0]


def test_a_metric_that_is_missing_at_the_end_can_be_drawn():
    given = iter([0.0, 3.0])
    sets = (X[:90], Y[:90]), (X[90:], Y[90:])
    metrics = {"odd_accuracy": lambda *_: next(given, math.nan)}
    task = Supervised(nn.Linear(4, 3), *sets, clients=4, metrics=metrics)
    found = simulate(task, "fedavg", "markov", rounds=4, evaluate_every=2, views=["server"])
    axes = found.plot("odd_accuracy").axes[0]
    # As it is, not in percent.
    assert axes.get_ylabel() == "odd accuracy"
    assert axes.lines[0].get_xydata().tolist() == [[2.0, 3.0]]


def test_a_report_of_what_was_not_stored(result, comparison, tmp_path):
    for each, name, runs in (
        (result, "simulate", "one run"),
        (comparison, "compare", "4 runs, all"),
    ):
        page = each.report(tmp_path / f"{name}.html")
        text, charts = page.read_text(encoding="utf-8"), charts_of(page)
        assert runs in text
        assert "largest" in text
        # As much as of a stored run.
        assert set(charts["per_client"]["fedpbc"]) == {*result.models, "own"}
        assert "Clients, each on samples like its own" in text
        assert set(charts["memory"]) == set(charts["curves"])
        # All samples were evaluated, and no folder is left.
        assert TRAIN_NOTE not in text
        assert tempfile.gettempdir() not in text.replace(str(tmp_path), "")
        assert '<button type="button">folder</button>' not in text
        assert f"# made from Python by {name}(…), and not stored" in text
    with pytest.raises(InputError, match="a file in a folder that exists"):
        comparison.report(tmp_path / "nowhere" / "page.html")


def test_the_samples_of_a_stored_comparison_are_known_too(tmp_path):
    def few(seed):
        torch.manual_seed(seed)
        sets = (X[:90], Y[:90]), (X[90:], Y[90:])
        return Supervised(nn.Linear(4, 3), *sets, clients=4, seed=seed, train_samples=9)

    for _ in ("run", "kept"):
        found = compare(few, ["fedavg"], [0], links="markov", rounds=2, out=tmp_path / "runs")
        assert found.runs[0].train_samples["evaluated"] == 9
        assert TRAIN_NOTE in footnotes(found)
    found.report(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"# made from Python: compare(…, out=&#39;{tmp_path / 'runs'}&#39;)" in text


def test_labels_of_ones_own_are_on_the_page(tmp_path):
    entries = {"mine": {"name": "fedavg"}, "huge": {"name": "fedavg", "global_lr": 1e300}}
    found = compare(make_task, entries, [0], links="always", rounds=2)
    page = found.report(tmp_path / "page.html", baseline="mine")
    assert list(charts_of(page)["curves"]) == ["mine"]
    assert "huge, seed 0, failed: " in page.read_text(encoding="utf-8")


def test_a_comparison_shows_itself(comparison):
    assert repr(comparison) == "<Comparison: fedavg and fedpbc, seeds 0, 1, 4 rounds; 4 runs>"
    html = comparison._repr_html_()
    assert html.count("<tr>") == 1 + len(comparison.rows())
    assert html.count("font-weight:bold") == len(comparison.rows()[0].metrics) + 10
    assert "Verdict: " in html
    frame = comparison.to_pandas()
    assert frame["label"].tolist() == [row.label for row in comparison.rows()]
    assert frame["test_accuracy"].tolist() == [row.test.mean for row in comparison.rows()]
    assert frame["largest"].tolist() == [row.metrics["largest"].mean for row in comparison.rows()]
    everything = comparison.to_pandas(evaluations=True)
    assert set(everything["seed"]) == {0, 1}
    assert len(comparison.plot().axes) == 2


def test_metrics_are_in_the_rows_and_in_json(comparison):
    for row in comparison.as_dict()["rows"]:
        assert row["metrics"]["largest"]["mean"] > 0


def test_without_pandas_the_extra_is_named(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedpbc\[pandas\]'"):
        result.to_pandas()


@pytest.mark.slow
def test_side_by_side_is_the_same_to_the_bit(comparison, tmp_path):
    again = compare(make_task, ["fedavg", "fedpbc"], "0-1", links="markov", rounds=4, jobs=2)

    def without_times(compared):
        lines = [line for run in compared.runs for line in run.metrics]
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert without_times(again) == without_times(comparison)
    assert len(again.records) == 4


SCRIPT = """\
import torch
from torch import nn
from fedpbc import Algorithm, Quadratic, compare, link_scheme, mean, register_algorithm

@register_algorithm
class Mine(Algorithm):
    name = "mine"
    def aggregate(self, round, updates):
        if updates:
            self.x = mean(u.model for u in updates).to(self.x.dtype)

@link_scheme
def odd(setting):
    for t in range(setting.rounds):
        yield setting.uniform(t) < 0.5

make_task = lambda seed: Quadratic([[0.0], [8.0]], seed=seed)
print(compare(make_task, ["mine", "fedavg"], "0-1", links="odd", rounds=4, jobs=2))
"""


@pytest.mark.slow
def test_a_script_without_a_guard_and_with_its_own_classes(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "<Comparison: mine and fedavg, seeds 0, 1, 4 rounds; 4 runs>\n"


def test_wrong_jobs_are_one_line():
    def make(seed):
        return Quadratic([[0.0]], seed=seed)

    with pytest.raises(InputError, match="jobs is 0, but should be"):
        compare(make, ["fedavg"], [0], links="always", rounds=1, jobs=0)
    with pytest.raises(InputError, match="jobs is 2, but should be left out: on_round"):
        compare(make, ["fedavg"], [0], links="always", rounds=1, jobs=2, on_round=print)
    lock = threading.Lock()
    with pytest.raises(InputError, match="make_task is 'a function', but should be one that other"):
        compare(lambda s: (lock, make(s))[1], ["fedavg"], "0-1", links="always", rounds=1, jobs=2)


def test_what_other_processes_are_handed_only_this_user_can_write(tmp_path):
    with compared_runs._in_a_file(b"runs") as file:
        assert file.read_bytes() == b"runs"
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not file.parent.exists()
    for folder in (tmp_path / "open", tmp_path / "link"):
        (tmp_path / "open").mkdir(exist_ok=True)
        (tmp_path / "open").chmod(0o777 if folder.name == "open" else 0o700)
        if folder.name == "link":
            folder.symlink_to(tmp_path / "open")
        (folder / "runs.pickle").write_bytes(pickle.dumps(0))
        with pytest.raises(FedpbcError, match="can be written by others"):
            compared_runs._loaded(str(folder / "runs.pickle"))
