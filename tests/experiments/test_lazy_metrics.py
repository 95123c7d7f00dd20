from __future__ import annotations

import json

import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.lazy_metrics import LazyMetrics
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.start import start_run
from fedpbc.report.load import load_run
from tests.synthetic_runs import config, metrics

CONFIG = config("fedavg", 0, 40, 10)


def content(lines: list) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def test_lines_are_those_of_the_file_from_both_ends():
    lines = metrics("fedavg", 0, 40, 10, True, 40)
    lazy = LazyMetrics(content(lines), CONFIG)
    assert len(lazy) == 4
    assert lazy[-1] == lines[-1]
    assert lazy[1:3] == lines[1:3]
    assert list(lazy) == lines
    assert list(reversed(lazy)) == lines[::-1]
    with pytest.raises(IndexError):
        lazy[4]


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"round": 20}', b"\xff"])
def test_a_wrong_line_is_named_when_it_is_looked_at(line):
    lines = content(metrics("fedavg", 0, 40, 10, True, 40)).split(b"\n")
    lines[1] = line
    lazy = LazyMetrics(b"\n".join(lines), CONFIG)
    assert lazy[0]["round"] == 10
    with pytest.raises(InputError, match=r"metrics\.jsonl line 2"):
        lazy[1]


def test_a_finished_run_is_loaded_lazily_and_its_damage_found_at_once(tmp_path):
    run = tmp_path / "run"
    options = {"data": "digits", "clients": 5, "rounds": 4, "evaluate_every": 2}
    start_run(Config.from_dict(options), run)
    loaded = load_run(run)
    assert isinstance(loaded.metrics, LazyMetrics)
    assert list(loaded.metrics) == RunDirectory(run).metrics()
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace('"round": 2', '"round": 3'))
    assert load_run(run).state == "damaged"
