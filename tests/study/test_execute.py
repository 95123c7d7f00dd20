"""A run is kept, goes on, pauses and fails in its folder, and comes to the same bits."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import numpy as np
import pytest

from fedpbc import LocalTraining, Quadratic
from fedpbc.errors import DivergedError, InputError
from fedpbc.study.build import check, task_values
from fedpbc.study.execute import StoppedError, Watcher, execute
from fedpbc.study.run_folder import RunFolder
from fedpbc.study.study import Run, Study

VALUES = {
    "data": "digits",
    "clients": 8,
    "rounds": 20,
    "evaluate_every": 3,
    "checkpoint_every": 2,
    "links": {"name": "bernoulli", "p": 0.4},
}
CASES = {
    "fedpbc": {"downlink": "bernoulli:p=0.6", "engine": "serial"},
    "disk": {"reported": "disk", "engine": "stacked"},
    "mifa": {"algorithm": "mifa", "train": {"optimizer": "sgd:momentum=0.9"}},
    "scaffold": {"algorithm": "scaffold", "links": "group:away=0.1"},
}
PLACES = ("sync", "before rename", "after rename", "half a file")


def run_of(case: str = "fedpbc", **more: object) -> Run:
    return Run.of({**VALUES, **CASES[case], **more})


def stopped(run: Run, folder: Path, after: int) -> None:
    def stop(done: int, _: object) -> None:
        if done == after:
            raise StoppedError("stopped")

    with pytest.raises(StoppedError):
        execute(run, folder, Watcher(on_round=stop))


def content(folder: Path) -> dict[str, object]:
    """What a run came to, without times."""
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    others = ("config.toml", "clients.safetensors", "final.safetensors")
    return {"metrics": lines, **{name: (folder / name).read_bytes() for name in others}}


def execute_in(folder: str, case: str) -> None:
    """For processes that are killed."""
    execute(run_of(case), Path(folder))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_killed_again_and_again_comes_to_the_same_bits(case, fork_server, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    execute(run_of(case), whole)
    dice, killed = random.Random(case), 0
    kills = [{"at": place, "n": dice.randint(1, 9)} for place in dice.sample(PLACES, 3)]
    kills += [{"after": dice.uniform(0.05, 0.6)} for _ in range(3)]
    for kill in [*kills, None]:
        ended = fork_server.run("tests.study.test_execute:execute_in", broken, case, kill=kill)
        assert ended.code in (0, -signal.SIGKILL), ended.err
        killed += ended.code != 0
    assert killed >= 2
    assert content(broken) == content(whole)
    files = {path.name for path in broken.iterdir()} - {".lock"}
    assert files == {path.name for path in whole.iterdir()} - {".lock"}


def test_a_finished_run_has_these_files_and_is_kept(tmp_path):
    record = execute(run_of(), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *(".lock", "config.toml", "metrics.jsonl", "clients.safetensors"),
        *("final.safetensors", "result.json"),
    }
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = execute(run_of(), tmp_path)
    assert (again.result, again.metrics) == (record.result, record.metrics)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert record.overview().up is not None


def test_a_record_is_the_same_with_and_without_a_folder(tmp_path):
    stored, kept = execute(run_of(), tmp_path / "run"), execute(run_of())
    timeless = [[{**line, "seconds": 0} for line in r.metrics] for r in (stored, kept)]
    assert timeless[0] == timeless[1]
    assert stored.values == kept.values
    assert stored.result.keys() == kept.result.keys()
    assert np.array_equal(stored.overview().shares, kept.overview().shares)


def test_what_was_cut_short_is_made_again(tmp_path):
    execute(run_of(), tmp_path / "whole")
    stopped(run_of(), tmp_path / "run", 13)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 15, "vie')
    execute(run_of(), tmp_path / "run")
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_a_damaged_checkpoint_is_skipped_with_a_note(tmp_path):
    execute(run_of(), tmp_path / "whole")
    stopped(run_of(), tmp_path / "run", 13)
    newest = max((tmp_path / "run").glob("checkpoint-*"))
    newest.write_bytes(newest.read_bytes()[:-7])
    notes: list[str] = []
    execute(run_of(), tmp_path / "run", Watcher(on_note=notes.append))
    assert len(notes) == 1
    assert "an older one is used" in notes[0]
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_a_run_pauses_and_goes_on(tmp_path):
    execute(run_of(), tmp_path / "whole")
    for until in (6, 6, 9):
        record = execute(run_of(), tmp_path / "run", until=until)
        assert (record.finished, record.metrics[-1]["round"]) == (False, until)
    assert execute(run_of(), tmp_path / "run", until=20).finished
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_another_run_is_refused_and_keeps_everything(tmp_path):
    stopped(run_of(), tmp_path, 3)
    before = content_of(tmp_path)
    with pytest.raises(InputError, match="holds another run, with another rounds"):
        execute(run_of(rounds=21), tmp_path)
    assert content_of(tmp_path) == before


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files; choose a new or empty folder"):
        execute(run_of(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_how_a_run_is_executed_may_change_when_it_goes_on(tmp_path):
    stopped(run_of("disk"), tmp_path, 5)
    record = execute(run_of("disk", reported="memory", checkpoint_every=7), tmp_path)
    assert (record.values["reported"], record.values["checkpoint_every"]) == ("memory", 7)


def test_a_run_that_fails_says_why_and_may_be_tried_again(tmp_path):
    run = run_of(train={"learning_rate": 1e30})
    for _ in range(2):
        with pytest.raises(DivergedError):
            execute(run, tmp_path / "run")
    record = RunFolder(tmp_path / "run").record()
    assert record.failure is not None
    assert "diverged" in record.failure
    assert not record.finished


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path):
    with pytest.raises(InputError):
        execute(run_of(links={"name": "cyclic", "p": [0.5] * 3}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_from_its_folder_alone(tmp_path):
    np.savetxt(tmp_path / "up.csv", np.eye(20, 8) > 0, fmt="%d", delimiter=",")
    run = run_of(links={"name": "table", "file": str(tmp_path / "up.csv")})
    whole, known = execute(run, tmp_path / "whole"), run.id
    stopped(run, tmp_path / "run", 7)
    (tmp_path / "up.csv").unlink()
    (tmp_path / "run").rename(tmp_path / "moved")
    loaded = RunFolder(tmp_path / "moved").load()
    assert (loaded.id, whole.finished) == (known, True)
    execute(loaded, tmp_path / "moved")
    assert content(tmp_path / "moved") == content(tmp_path / "whole")


def test_changed_inputs_and_settings_are_noticed(tmp_path):
    np.savetxt(tmp_path / "up.csv", np.ones((20, 8)), fmt="%d", delimiter=",")
    stopped(run_of(links={"name": "table", "file": str(tmp_path / "up.csv")}), tmp_path / "run", 2)
    folder = RunFolder(tmp_path / "run")
    [copy] = (tmp_path / "run" / "inputs").iterdir()
    kept = copy.read_text()
    copy.write_text(kept.replace("1", "0", 1))
    with pytest.raises(InputError, match="has changed since the run began: restore it"):
        folder.load()
    copy.write_text(kept)
    folder.config_path.write_text(
        folder.config_path.read_text().replace("rounds = 20", "rounds = 9")
    )
    with pytest.raises(InputError, match=r"config\.toml has changed since the run began"):
        folder.load()


def test_code_is_imported_only_from_where_its_owner_named_it(tmp_path):
    plugin = tmp_path / "lazier.py"
    plugin.write_text(
        "from fedpbc import Algorithm, register_algorithm\n"
        "@register_algorithm\n"
        "class Lazier(Algorithm):\n"
        "    name = 'lazier'\n"
        "    def aggregate(self, round, updates): ...\n"
    )
    run = run_of(plugins=[str(plugin)], algorithm="lazier")
    stopped(run, tmp_path / "run", 2)
    folder, known = RunFolder(tmp_path / "run"), run.id
    assert folder.load().id == known
    plugin.unlink()
    with pytest.raises(InputError, match=r"name a file with the same content, as in --plugin"):
        folder.load()
    [copy] = (tmp_path / "run" / "inputs").iterdir()
    assert folder.load(code=[copy]).id == known
    assert execute(folder.load(code=[copy]), tmp_path / "run").finished


def test_a_task_made_in_python_goes_on_with_the_same_task(tmp_path):
    def make() -> tuple[Run, Quadratic]:
        task = Quadratic([[0.0], [9.0]], training=LocalTraining(momentum=0.9), seed=3)
        values = {"rounds": 12, "links": {"p": 0.5}, "checkpoint_every": 1, "evaluate_every": 4}
        return Run.of({**values, **task_values(task)}), task

    run, task = make()
    assert str(run.spec.train.optimizer) == "sgd:momentum=0.9"
    whole = execute(run, task=task)

    def stop(done: int, _: object) -> None:
        if done == 5:
            raise StoppedError("stopped")

    with pytest.raises(StoppedError):
        execute(run, tmp_path / "run", Watcher(on_round=stop), task=task)
    again, other = make()
    assert again.id == run.id
    record = execute(again, tmp_path / "run", task=other)
    assert [line["views"] for line in record.metrics] == [line["views"] for line in whole.metrics]
    with pytest.raises(InputError, match="the task was made in Python"):
        execute(Run.of({**run.spec.dump(), "rounds": 3}))


def test_the_last_rounds_can_be_evaluated_more_often(tmp_path):
    run = run_of(rounds=20, evaluate_every=8, evaluate_every_at_end=2)
    record = execute(run, tmp_path / "run")
    assert [line["round"] for line in record.metrics] == [8, 16, 18, 20]


def test_what_to_know_of_a_trace_is_said_and_kept(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("client,online_from_s,online_until_s\n0,0,3000\n1,700,2400\n")
    run = run_of(links={"name": "trace", "file": str(file)}, rounds=6)
    said: list[str] = []
    note = "the trace ends after 4 of 6 rounds (600 s each): then it starts again"
    for folder in (None, tmp_path / "run"):
        record = execute(run, folder, Watcher(on_note=said.append))
        assert record.notes == said
        assert [line[: len(note)] for line in said] == [note]
        said.clear()
    assert [line[: len(note)] for line in check([run])] == [note]


PLUGIN = """
import numpy as np
from fedpbc import link_scheme

@link_scheme
def seldom(setting, *, rate: float = 0.5):
    for t in range(setting.rounds):
        yield np.ones(setting.clients, dtype=bool)
"""


def test_a_plugins_scheme_that_reads_no_probabilities_refuses_them_also_at_their_default(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    plugin = {"plugins": [str(tmp_path / "mine.py")]}
    run = run_of(**plugin, links="seldom")
    assert run.spec.links.table() == {"name": "seldom", "rate": 0.5}
    assert execute(run).finished
    for given in ("seldom:sigma=10", "seldom:p=0.5"):
        with pytest.raises(InputError, match=r"links 'seldom' does not use it"):
            execute(run_of(**plugin, links=given))


def test_a_table_has_its_own_number_of_rounds():
    def runs(**given):
        values = {"task": "python", "links": np.ones((7, 2), dtype=bool), **given}
        task = Quadratic([[0.0], [9.0]])
        [run] = Study.of({"algorithms": ["fedavg"], "seeds": [0], **values}).runs(
            lambda seed: task_values(task)
        )
        return execute(run, task=task)

    assert runs().values["rounds"] == 7
    with pytest.raises(InputError, match="rounds is 500, but the links are a table of 7 rounds"):
        runs(rounds=500)
