from __future__ import annotations

import errno
import json
import random
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedpbc.cli.compare import progress_rows
from fedpbc.experiments import plan_files
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.comparison_plan import plan_comparison
from fedpbc.experiments.run_directory import RunDirectory
from tests.commandline import (
    DIGITS,
    assert_same_run,
    content,
    fedpbc,
    metrics,
    process,
    ran,
    refused,
    write_check,
)

pytestmark = pytest.mark.slow

SMALL = ("compare", *DIGITS, "--rounds", 20, "--set", "links.p=0.5")
TWO = (*SMALL, "--algorithms", "fedpbc,fedavg,mifa", "--seeds", "0,5", "--evaluate-every", 2)
CELLS = [f"{a}/seed-{s}" for a in ("fedpbc", "fedavg", "mifa") for s in (0, 5)]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A small comparison, and what it said."""
    folder = tmp_path_factory.mktemp("comparisons") / "small"
    ended = ran(*TWO, "--jobs", 1, "--out", folder)
    return folder, ended.out


def assert_same_comparison(one: Path, other: Path) -> None:
    for cell in CELLS:
        assert_same_run(one / cell, other / cell)
    for name in ("comparison.json", "table.md", "compare.toml"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_it_leaves_a_table_a_plot_and_every_run(compared):
    folder, said = compared
    names = {p.name for p in folder.iterdir()}
    assert names == {
        ".lock",
        "fedpbc-manifest.json",
        "compare.toml",
        "comparison.json",
        "table.md",
        "accuracy.png",
        "report.html",
        "fedpbc",
        "fedavg",
        "mifa",
    }
    for cell in CELLS:
        assert (folder / cell / "summary.json").is_file()
        # Nobody resumes a finished cell.
        assert list((folder / cell).glob("checkpoint-*")) == []
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    for name in ("table.md", "accuracy.png", "comparison.json", "report.html"):
        assert str(folder / name) in said
    assert "next:" in said


def test_the_table_says_what_the_runs_say(compared):
    folder, _ = compared
    rows = json.loads((folder / "comparison.json").read_text())["rows"]
    assert [(r["algorithm"], r["view"]) for r in rows] == [
        *[("fedpbc", v) for v in ("server", "averaged", "mean", "reported", "corrected")],
        *[(a, v) for a in ("fedavg", "mifa") for v in ("server", "averaged")],
    ]
    for row in rows:
        per_seed = []
        for seed in (0, 5):
            lines = metrics(folder / row["algorithm"] / f"seed-{seed}")
            # The last fifth: after round 16.
            kept = [e["views"][row["view"]]["test_accuracy"] for e in lines if e["round"] > 16]
            assert len(kept) == 2
            per_seed.append(np.mean(kept))
        assert row["test"]["mean"] == pytest.approx(np.mean(per_seed))
        assert row["test"]["deviation"] == pytest.approx(np.std(per_seed, ddof=1))
        shown = f"{100 * np.mean(per_seed):.1f} ± {100 * np.std(per_seed, ddof=1):.1f}"
        [table_row] = [
            text
            for text in (folder / "table.md").read_text().split("\n\n")[0].splitlines()
            if text.startswith(f"| {row['algorithm']}")
            and text.split(" | ")[1].rstrip("*") == row["view"]
        ]
        assert shown in table_row
        ends = [metrics(folder / row["algorithm"] / f"seed-{seed}")[-1] for seed in (0, 5)]
        assert row["uploads"] == round(np.mean([end["uploads"] for end in ends]))
        assert row["bytes_up"] == round(np.mean([end["bytes_up"] for end in ends]))
        summaries = [
            json.loads((folder / row["algorithm"] / f"seed-{seed}/summary.json").read_text())
            for seed in (0, 5)
        ]
        assert row["models_on_client"] == summaries[0]["cost"]["models_on_client"]
        models = [summary["cost"]["models_on_server"][row["view"]] for summary in summaries]
        assert row["models_on_server"] == (None if None in models else max(models))
        # Everyone trains in fedpbc, in the others only those who get through.
        steps = [20 * 8 * 5 if "mean" in end["views"] else 5 * end["uploads"] for end in ends]
        assert row["local_steps"] == round(np.mean(steps))


def test_all_algorithms_have_the_same_links(compared):
    folder, _ = compared
    for seed in (0, 5):
        active = [
            [line["active"] for line in metrics(folder / a / f"seed-{seed}")]
            for a in ("fedpbc", "fedavg", "mifa")
        ]
        assert active[0] == active[1] == active[2]
    uploads = {cell: metrics(folder / cell)[-1]["uploads"] for cell in CELLS}
    assert len({uploads[f"{a}/seed-0"] for a in ("fedpbc", "fedavg", "mifa")}) == 1
    assert metrics(folder / CELLS[0])[-1]["views"] != metrics(folder / CELLS[1])[-1]["views"]


def test_a_cell_is_the_run_that_the_command_makes_alone(compared, tmp_path):
    folder, _ = compared
    given = ["run", *SMALL[1:], "--algorithm", "mifa", "--seed", 5, "--evaluate-every", 2]
    ran(*given, "--out", tmp_path / "alone")
    assert_same_run(folder / "mifa" / "seed-5", tmp_path / "alone")


def test_side_by_side_gives_the_same_bits_in_a_process_of_its_own(compared, tmp_path):
    ended = process(*TWO, "--jobs", 2, "--out", tmp_path / "two", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert_same_comparison(compared[0], tmp_path / "two")
    assert json.loads(ended.out) == json.loads((tmp_path / "two/comparison.json").read_text())


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(folder)): (p.stat().st_ino, p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file()
    }


@pytest.mark.parametrize("command", ["resume", "the same again"])
def test_an_interrupted_comparison_goes_on_without_running_anything_twice(
    compared, tmp_path, command
):
    folder = tmp_path / "begun"
    shutil.copytree(compared[0], folder)
    for name in ("comparison.json", "table.md", "accuracy.png", "report.html"):
        (folder / name).unlink()
    gone = random.Random(2).sample(CELLS, 2)
    shutil.rmtree(folder / gone[0])
    # Another one was killed before it was finished.
    (folder / gone[1] / "summary.json").unlink()
    (folder / gone[1] / "final.safetensors").unlink()
    before = {k: v for k, v in stamps(folder).items() if not k.startswith(tuple(gone))}
    before.pop("compare.toml")
    if command == "resume":
        ran("resume", folder, "--jobs", 1)
    else:
        ran(*TWO, "--jobs", 1, "--out", folder)
    after = stamps(folder)
    kept = {k: after[k] for k in before if not k.endswith(".lock")}
    assert kept == {k: v for k, v in before.items() if not k.endswith(".lock")}
    assert_same_comparison(compared[0], folder)


def test_a_finished_comparison_resumed_shows_its_table_again(compared, tmp_path):
    folder = tmp_path / "done"
    shutil.copytree(compared[0], folder)
    # The report names the folder.
    made = {"accuracy.png", "report.html"}
    before = {k: v for k, v in content(folder).items() if k not in made}
    ended = ran("resume", folder, "--jobs", 1)
    assert {k: v for k, v in content(folder).items() if k not in made} == before
    assert "fedpbc" in ended.out


@pytest.mark.parametrize(
    "more",
    [
        ("--rounds", 10),
        ("--learning-rate", 0.1),
        ("--seeds", "0-9", "--data", "fashion"),
        ("--algorithms", "fedau", "--set", "links.p=0.1"),
    ],
)
def test_another_comparison_in_the_same_folder_is_refused(compared, more):
    folder, _ = compared
    before = content(folder)
    line = refused(fedpbc(*TWO, *more, "--jobs", 1, "--out", folder))
    assert line.startswith(f"out: {folder} holds another comparison")
    assert "--overwrite" in line
    assert content(folder) == before


def quadratics(place: Path, seed: int) -> Path:
    """A configuration of a comparison, with files of its own."""
    check = write_check(place, rounds=10)
    text = check.read_text().replace('algorithm = "fedau"\n', "").replace("seed = 0\n", "")
    check.write_text(text.replace("rounds = 60", 'rounds = 10\nalgorithms = ["fedavg", "mifa"]'))
    up = np.random.default_rng(seed).random((10, 12)) < 0.5
    np.save(place / "timetable.npy", up)
    return check


def test_another_timetable_of_the_same_name_is_another_comparison(tmp_path):
    one, two = quadratics(tmp_path / "one", 1), quadratics(tmp_path / "two", 2)
    folder = tmp_path / "compared"
    ran("compare", one, "--seeds", 0, "--jobs", 1, "--out", folder)
    before = content(folder)
    line = refused(fedpbc("compare", two, "--seeds", 0, "--jobs", 1, "--out", folder))
    assert "holds another comparison" in line
    assert content(folder) == before


def test_what_is_refused_does_not_touch_the_files_of_the_first(tmp_path):
    one, two = quadratics(tmp_path / "one", 1), quadratics(tmp_path / "two", 2)
    folder = tmp_path / "compared"
    ran("compare", one, "--seeds", 0, "--jobs", 1, "--out", folder)
    before = content(folder)
    refused(fedpbc("compare", two, "--seeds", "0,1", "--jobs", 1, "--out", folder))
    assert content(folder) == before


def test_a_comparison_can_be_made_again_from_its_own_plan(tmp_path):
    one = quadratics(tmp_path / "one", 1)
    first, second = tmp_path / "first", tmp_path / "second"
    ran("compare", one, "--seeds", "0,4", "--jobs", 1, "--out", first)
    shutil.rmtree(tmp_path / "one")
    ran("compare", first / "compare.toml", "--jobs", 1, "--out", second)
    for cell in ("fedavg/seed-0", "mifa/seed-4"):
        assert_same_run(first / cell, second / cell)
    assert (first / "table.md").read_text() == (second / "table.md").read_text()
    assert "test loss" in (first / "table.md").read_text().splitlines()[0]


def test_overwriting_replaces_the_whole_comparison(compared, tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(compared[0], folder)
    (folder / "notes.txt").write_text("mine")
    given = [*SMALL, "--rounds", 4, "--algorithms", "fedavg", "--seeds", "1", "--jobs", 1]
    ran(*given, "--out", folder, "--overwrite")
    assert not (folder / "mifa").exists()
    assert [p.name for p in (folder / "fedavg").iterdir()] == ["seed-1"]
    assert (folder / "notes.txt").read_text() == "mine"
    assert json.loads((folder / "comparison.json").read_text())["seeds"] == [1]


def test_a_report_of_ones_own_is_not_lost(compared, tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(compared[0], folder)
    (folder / "report.html").write_text("<p>mine</p>")
    before = content(folder)
    line = refused(fedpbc(*TWO, "--out", folder, "--overwrite"))
    assert "report.html, which is not a report" in line
    assert content(folder) == before


def test_overwriting_with_something_wrong_leaves_the_old_one(compared):
    folder, _ = compared
    before = content(folder)
    for wrong in (["--links", "nothing"], ["--jobs", 0], ["--algorithms", "fedpcb"]):
        refused(fedpbc(*TWO, *wrong, "--out", folder, "--overwrite"))
        assert content(folder) == before


def test_algorithms_with_options_of_their_own(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'seeds = [0]\nrounds = 4\nclients = 8\ndata = "digits"\n'
        "[algorithms.fedau]\ncutoff = 3\n[algorithms.fedavg]\n"
        '[links]\nname = "bernoulli"\np = 0.5\n'
    )
    folder = tmp_path / "compared"
    ran("compare", plan, "--jobs", 1, "--out", folder)
    config = tomllib.loads((folder / "fedau" / "seed-0" / "config.toml").read_text())
    assert config["algorithm"] == {"name": "fedau", "cutoff": 3, "over": "all"}
    assert (folder / "fedavg" / "seed-0").is_dir()
    assert tomllib.loads((folder / "compare.toml").read_text())["algorithms"]["fedau"] == {
        "cutoff": 3
    }


def test_the_same_algorithm_twice_is_refused(tmp_path):
    given = [*SMALL, "--algorithms", "fedavg,fedavg", "--seeds", 0, "--jobs", 1]
    line = refused(fedpbc(*given, "--out", tmp_path / "out"))
    assert line.startswith("algorithms is ")
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_is_shown_while_the_others_finish(tmp_path):
    # Unclipped, fedawe scales what it learnt by the 40 rounds missed: it swings out further and
    # further.
    plan = tmp_path / "plan.toml"
    plan.write_text(
        "seeds = [0, 1]\nrounds = 300\n[algorithms.fedawe]\nclip = 0\n[algorithms.fedavg]\n"
        '[task]\ntargets = "targets.npy"\n[links]\nname = "table"\nfile = "up.npy"\n'
        "[train]\nlearning_rate = 0.1\ndecay = false\n"
    )
    np.save(tmp_path / "targets.npy", np.array([[1.0], [2.0]]) * 1e149)
    up = np.zeros((300, 2))
    up[::40, 0] = up[20::40, 1] = 1
    np.save(tmp_path / "up.npy", up)
    folder = tmp_path / "compared"
    ended = fedpbc("compare", plan, "--jobs", 1, "--out", folder)
    assert ended.code == 2
    [line] = ended.err.splitlines()
    assert line.startswith("fedpbc: 2 of 4 runs failed, such as fedawe with seed 0: the run div")
    table = (folder / "table.md").read_text()
    assert "| fedavg" in table
    assert "| fedawe" not in table
    for seed in (0, 1):
        assert f"failed: fedawe, seed {seed}: the run diverged" in table
        assert (folder / "fedavg" / f"seed-{seed}" / "summary.json").is_file()
    assert "failed: fedawe" in ended.out
    found = json.loads((folder / "comparison.json").read_text())
    assert [(f["algorithm"], f["seed"]) for f in found["failed"]] == [("fedawe", 0), ("fedawe", 1)]
    assert (folder / "accuracy.png").is_file()


def test_a_comparison_of_which_nothing_is_left(tmp_path):
    given = [*SMALL, "--algorithms", "fedavg", "--seeds", 0, "--learning-rate", "1e30"]
    ended = fedpbc(*given, "--jobs", 1, "--out", tmp_path / "out")
    assert ended.code == 2
    [line] = ended.err.splitlines()
    assert "every run failed" in line
    assert "diverged" in line


@pytest.mark.parametrize("name", ["fedpbc", "mifa/seed-5"])
def test_links_in_place_of_its_folders_are_not_followed(compared, tmp_path, name):
    """Whoever sent the comparison would choose where its runs are written."""
    folder, elsewhere = tmp_path / "sent", tmp_path / "elsewhere"
    shutil.copytree(compared[0], folder)
    (folder / "fedpbc" / "seed-5" / "summary.json").unlink()
    shutil.move(folder / name, elsewhere)
    (folder / name).symlink_to(elsewhere)
    before = content(tmp_path)
    line = f"{folder / name} is damaged: it is a link, which is not followed; remove it"
    assert refused(fedpbc("resume", folder, "--jobs", 1)) == line
    for more in ((), ("--overwrite",)):
        assert refused(fedpbc(*TWO, "--jobs", 1, "--out", folder, *more)) == line
    said = fedpbc("verify", folder)
    assert f"{folder}: {line}\n" in said.out
    assert said.code == 2
    assert content(tmp_path) == before


def test_a_lock_that_is_a_folder_is_found_by_verify_too(compared, tmp_path):
    folder = tmp_path / "sent"
    shutil.copytree(compared[0], folder)
    (folder / ".lock").unlink()
    (folder / ".lock").mkdir()
    line = f"{folder / '.lock'} is damaged: it is not a regular file; remove it"
    assert refused(fedpbc("resume", folder, "--jobs", 1)) == line
    assert line in fedpbc("verify", folder).out


def test_a_link_in_place_of_the_inputs_is_not_followed(tmp_path):
    check = write_check(tmp_path, clients=3)
    check.write_text(check.read_text().replace('algorithm = "fedau"', "").replace("seed = 0", ""))
    folder, elsewhere = tmp_path / "sent", tmp_path / "elsewhere"
    given = ("--algorithms", "fedavg", "--seeds", 0, "--jobs", 1, "--out", folder)
    ran("compare", check, *given)
    shutil.move(folder / "inputs", elsewhere)
    (folder / "inputs").symlink_to(elsewhere)
    np.save(tmp_path / "targets.npy", np.ones((3, 2)))
    before = content(tmp_path)
    again = ("compare", check, *given, "--overwrite")
    assert refused(fedpbc(*again)) == (
        f"{folder / 'inputs'} is damaged: it is a link, which is not followed; remove it"
    )
    assert "inputs" in refused(fedpbc("resume", folder))
    assert content(tmp_path) == before


def test_paired_differences_are_those_of_the_runs(compared):
    folder, said = compared
    found = json.loads((folder / "comparison.json").read_text())
    paired = found["paired"]
    assert paired["baseline"] == "fedavg"
    by_name = {row["name"]: row for row in paired["rows"]}
    starred = {r["algorithm"]: r["view"] for r in found["rows"] if r["best_deployable"]}

    def values(name: str) -> list[float]:
        ends = []
        for seed in (0, 5):
            lines = metrics(folder / name / f"seed-{seed}")
            kept = [e["views"][starred[name]]["test_accuracy"] for e in lines if e["round"] > 16]
            ends.append(np.mean(kept))
        return ends

    for name in ("fedpbc", "mifa"):
        by_seed = np.subtract(values(name), values("fedavg"))
        difference = by_name[name]["difference"]
        assert by_name[name]["view"] == starred[name]
        assert difference["mean"] == pytest.approx(by_seed.mean())
        assert difference["won"] == np.sum(by_seed > 1e-9)
        assert difference["seeds"] == [0, 5]
        half = 12.7062 * np.std(by_seed, ddof=1) / np.sqrt(2)
        assert difference["interval"]["high"] == pytest.approx(by_seed.mean() + half, abs=1e-5)
    assert by_name["fedavg"]["difference"] is None
    sentence = found["verdict"]["sentence"]
    assert f"verdict: {sentence}\n" in said
    assert f"**Verdict:** {sentence}\n" in (folder / "table.md").read_text()


def test_the_baseline_is_checked_before_anything_runs(compared, tmp_path):
    folder, _ = compared
    given = [*SMALL, "--algorithms", "fedpbc,fedavg", "--baseline", "fedavgg"]
    line = refused(fedpbc(*given, "--out", tmp_path / "new"))
    expected = "baseline is 'fedavgg', but should be one of fedpbc, fedavg; did you mean 'fedavg'?"
    assert line == expected
    assert not (tmp_path / "new").exists()
    # Finished runs are not run again; the tables are made for another baseline.
    before = (folder / "comparison.json").read_bytes()
    try:
        ended = ran("resume", folder, "--baseline", "mifa", "--json")
        assert json.loads(ended.out)["paired"]["baseline"] == "mifa"
        assert "vs mifa" in (folder / "table.md").read_text()
        assert "vs mifa" in (folder / "report.html").read_text()
    finally:
        ran("resume", folder, "--json")
    assert (folder / "comparison.json").read_bytes() == before
    line = refused(fedpbc("resume", folder / "mifa" / "seed-5", "--baseline", "mifa"))
    assert line == "baseline is 'mifa', but should be left out: this is one run, not a comparison"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["gone", "other seeds", "nonsense"])
def test_overwriting_a_comparison_with_a_damaged_plan_leaves_none_of_its_runs(tmp_path, how):
    folder = tmp_path / "c"
    options = ("--algorithms", "fedavg", "--seeds", "0,1", "--rounds", 2, "--jobs", 1)
    ran("compare", *DIGITS, *options, "--out", folder)
    (folder / "fedavg/mine.txt").write_text("mine")
    plan = folder / "compare.toml"
    if how == "gone":
        plan.unlink()
    else:
        seeds = plan.read_text().replace("    0,\n    1,\n", "    7,\n")
        plan.write_text("nonsense" if how == "nonsense" else seeds)
    other = ("--learning-rate", 0.001, "--overwrite")
    ran("compare", *DIGITS, *options, *other, "--out", folder)
    ran("compare", *DIGITS, *options, *other, "--out", tmp_path / "fresh")
    for seed in (0, 1):
        assert_same_run(folder / f"fedavg/seed-{seed}", tmp_path / f"fresh/fedavg/seed-{seed}")
    assert (folder / "fedavg/mine.txt").read_text() == "mine"


def test_overwriting_removes_all_runs_or_none(tmp_path):
    folder = tmp_path / "c"
    options = ("--algorithms", "fedavg", "--seeds", "0,1", "--rounds", 2, "--jobs", 1)
    ran("compare", *DIGITS, *options, "--out", folder)
    lock = folder / "fedavg/seed-1/.lock"
    lock.unlink()
    lock.mkdir()
    before = content(folder)
    line = refused(fedpbc("compare", *DIGITS, *options, "--overwrite", "--out", folder))
    assert line == f"{lock} is not a regular file: remove it"
    assert content(folder) == before


def test_the_ceiling_is_not_meant_by_the_name_of_its_algorithm(tmp_path):
    given = (*SMALL, "--algorithms", "fedau,mifa", "--ceiling")
    line = refused(fedpbc(*given, "--baseline", "fedavg", "--out", tmp_path / "out"))
    assert line == "baseline is 'fedavg', but should be one of fedau, mifa, ceiling"
    assert not (tmp_path / "out").exists()


def test_a_label_with_settings_as_baseline(tmp_path):
    folder = tmp_path / "c"
    names = "fedau:cutoff=3,fedau:cutoff=5"
    options = ("--algorithms", names, "--seeds", 0, "--rounds", 2, "--jobs", 1)
    ran("compare", *DIGITS, *options, "--baseline", "fedau:cutoff=5", "--out", folder)
    found = json.loads((folder / "comparison.json").read_text())
    assert found["paired"]["baseline"] == "fedau:cutoff=5"
    # The page tells only what differs, but takes the label.
    ran("report", folder, "--baseline", "fedau:cutoff=3")
    line = refused(fedpbc("report", folder, "--baseline", "fedau:cutoff=4"))
    assert line.startswith(
        "baseline is 'fedau:cutoff=4', but should be one of fedau, fedau cutoff=3"
    )


def test_what_is_left_of_a_trial_round_goes_when_the_comparison_goes_on(tmp_path):
    """A disk that became read-only kept it."""
    words = ("compare", *DIGITS, "--rounds", 2, "--algorithms", "fedavg", "--seeds", 0)
    ran(*words, "--jobs", 1, "--out", tmp_path / "c")
    shutil.copytree(tmp_path / "c" / "fedavg" / "seed-0", tmp_path / "c" / ".next")
    ran("resume", tmp_path / "c")
    assert not (tmp_path / "c" / ".next").exists()


def test_overwriting_with_a_disk_that_fails_leaves_a_comparison_that_can_be_run(
    tmp_path, monkeypatch
):
    folder = tmp_path / "c"
    options = ("--algorithms", "fedavg", "--seeds", "0", "--rounds", 2, "--jobs", 1)
    ran("compare", *DIGITS, *options, "--out", folder)
    shutil.copytree(folder, tmp_path / "before")

    def fail(path: Path, *_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(plan_files, "write_atomically", fail)
        given = (*DIGITS, *options, "--rounds", 3, "--out", folder, "--overwrite")
        assert refused(fedpbc("compare", *given)).endswith("compare.toml: Input/output error")
    ran("resume", folder)
    assert_same_run(folder / "fedavg/seed-0", tmp_path / "before/fedavg/seed-0")
    ran("compare", *given)
    assert RunDirectory(folder / "fedavg/seed-0").summary()["rounds"] == 3


def test_runs_in_which_everyone_trains_come_first_and_count_for_more(tmp_path):
    """Otherwise the longest would run last, and the time that is left would be wrong until then."""
    values = {"data": "digits", "clients": 5, "rounds": 2, "ceiling": True}
    plan = plan_comparison({**values, "algorithms": ["fedavg", "fedpbc"], "seeds": "0-1"})
    directory = ComparisonDirectory(tmp_path)
    order = [label for label, *_ in directory.cells(plan)]
    assert order == ["fedpbc", "fedpbc", "ceiling", "ceiling", "fedavg", "fedavg"]
    assert [row.weight for row in progress_rows(directory, plan)] == [10, 10, 10, 10, 1, 1]
