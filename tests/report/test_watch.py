from __future__ import annotations

import re
import shutil
import signal
import sys
import time

import pytest

from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.report.watch import watch
from tests.commandline import ran
from tests.processes import PATIENCE, child
from tests.synthetic_runs import metrics, write_run

pytestmark = pytest.mark.slow


def reload_seconds(path) -> int:
    return int(re.findall(r'"live":(\d+)', path.read_text(encoding="utf-8"))[0])


def test_a_page_follows_a_run_to_its_end(tmp_path):
    run, page = tmp_path / "run", tmp_path / "page.html"
    write_run(run, upto=10)
    seen = []

    def on_change(runs):
        done, state = runs[0].done, runs[0].state
        seen.append((done, state, reload_seconds(page)))
        if state == "finished":
            return
        if done < 40:
            line = metrics("fedavg", 0, 40, 10, True, 40)[done // 10]
            RunDirectory(run).append_metrics(line)
        else:
            shutil.rmtree(run)
            write_run(run)

    assert watch([run], page, "t", on_change=on_change, every=0.01)
    assert seen == [
        (10, "unfinished", 5),
        (20, "unfinished", 5),
        (30, "unfinished", 5),
        (40, "unfinished", 5),
        (40, "finished", 5),
    ]
    # A page of finished runs does not reload itself.
    assert reload_seconds(page) == 0


def test_watching_a_folder_ends_when_it_has_been_quiet(tmp_path):
    write_run(tmp_path / "grid" / "one")
    begun = []

    def on_change(runs):
        if not begun:
            begun.append(write_run(tmp_path / "grid" / "two", "fedpbc"))

    began = time.monotonic()
    page = tmp_path / "page.html"
    assert watch([tmp_path / "grid"], page, "t", on_change=on_change, every=0.01, quiet=0.3)
    assert time.monotonic() - began >= 0.3
    assert '"fedpbc"' in page.read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_watching_process_follows_and_can_be_interrupted(tmp_path):
    run, page = tmp_path / "run", tmp_path / "run" / "report.html"
    write_run(run, upto=10)
    with child([sys.executable, "-m", "fedpbc.cli.app", "report", run, "--watch"]) as watching:
        assert watching.stdout is not None
        # Its output shows how far it is; the page is written before.
        assert watching.stdout.readline() == f"{page}: 1 unfinished; round 10\n"
        assert reload_seconds(page) == 5
        RunDirectory(run).append_metrics(metrics("fedavg", 0, 40, 10, True, 40)[1])
        assert watching.stdout.readline() == f"{page}: 1 unfinished; round 20\n"
        assert "20 of 40" in page.read_text(encoding="utf-8")
        watching.send_signal(signal.SIGTERM)
        out, err = watching.communicate(timeout=PATIENCE)
    assert (watching.returncode, out) == (128 + signal.SIGTERM, "")
    assert err == f"fedpbc: interrupted; {page} shows the runs as they are now\n"
    assert reload_seconds(page) == 0
    assert not [p for p in run.iterdir() if p.name.startswith(".report")]


def test_watching_a_finished_comparison_ends_at_once(tmp_path):
    folder = tmp_path / "compared"
    write_run(folder / "fedpbc" / "seed-0", "fedpbc")
    (folder / "compare.toml").write_text("seeds = [0]\n[algorithms.fedpbc]\n")
    ended = ran("report", folder, "--watch")
    assert ended.out.splitlines()[-1] == f"written: {folder}/report.html (all runs have ended)"
