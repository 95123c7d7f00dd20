from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from commandline import DIGITS, ran
from fedpbc.report.watch import watch
from fedpbc.runs import RunFolder
from made_runs import metrics, write_run


def live(path) -> int:
    return int(re.findall(r'"live":(\d+)', path.read_text(encoding="utf-8"))[0])


def started(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedpbc.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_page_follows_a_run_to_its_end(tmp_path):
    run, page = tmp_path / "run", tmp_path / "page.html"
    write_run(run, upto=10)
    seen = []

    def on_change(runs):
        done, state = runs[0].done, runs[0].state
        seen.append((done, state, live(page)))
        if state == "finished":
            return
        if done < 40:
            line = metrics("fedavg", 0, 40, 10, True, 40)[done // 10]
            RunFolder(run).append_metrics(line)
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
    # A page of finished runs does not read itself again.
    assert live(page) == 0


def test_a_tree_of_runs_is_over_when_it_has_been_quiet(tmp_path):
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
def test_watching_a_process_that_runs_and_being_interrupted(tmp_path):
    run, page = tmp_path / "run", tmp_path / "run" / "report.html"
    given = [*DIGITS, "--evaluate-every", 5, "--engine", "serial", "--set", "links.p=0.5"]
    work = started("run", *given, "--rounds", 5_000, "--out", run)
    try:
        wait_for(lambda: (run / "metrics.jsonl").is_file() and RunFolder(run).metrics(), work)
        watching = started("report", run, "--watch")
        wait_for(page.is_file, watching)
        first = page.read_text(encoding="utf-8")
        wait_for(lambda: page.read_text(encoding="utf-8") != first, watching)
        assert live(page) == 5
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=30)
        assert (watching.returncode, err) == (0, "")
        assert out.splitlines()[-1] == f"written: {page} (no longer watching)"
        assert live(page) == 0
    finally:
        work.kill()
        work.communicate()
    # What was watched is as good as ever.
    summary = json.dumps(RunFolder(run).metrics()[-1])
    assert '"round"' in summary
    assert not [p for p in run.iterdir() if p.name.startswith(".report")]


def wait_for(happened, process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        if happened():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_a_finished_comparison_is_watched_but_for_a_moment(tmp_path):
    folder = tmp_path / "compared"
    write_run(folder / "fedpbc" / "seed-0", "fedpbc")
    (folder / "compare.toml").write_text("seeds = [0]\n[algorithms.fedpbc]\n")
    ended = ran("report", folder, "--watch")
    assert ended.out.splitlines()[-1] == f"written: {folder}/report.html (all runs have ended)"
