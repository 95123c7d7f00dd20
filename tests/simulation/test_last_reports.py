"""The last reports behave like a dict of models, in memory or on disk, whatever happens."""

from __future__ import annotations

import errno
import json
import os
import random
import weakref
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import FedpbcError, InputError, simulate
from fedpbc.algorithms import FedPBC
from fedpbc.simulation.last_reports import (
    DamagedReportsError,
    LastReports,
    LastReportsOnDisk,
    SlotFile,
    choose_last_reports,
)
from fedpbc.tasks import Evaluation, LocalTraining
from fedpbc.tasks.parameter_layout import Layout
from tests import small_runs as small

CLIENTS, SIZE = 4, 12
MOST = 4 * CLIENTS * SIZE
"""Reports that are current, those of two checkpoints, and those of a round under way."""

clients = st.sets(st.integers(0, CLIENTS - 1), min_size=1)
rounds = st.tuples(st.just("round"), clients, st.sampled_from([True, True, False]))
crashes = st.tuples(st.just("crash"), st.booleans(), st.integers(0, 99))
happenings = st.lists(
    st.one_of(rounds, rounds, rounds, st.just(("checkpoint",)), crashes), min_size=5, max_size=40
)


def model(value: float) -> torch.Tensor:
    return torch.tensor([value, -value, 0.5])


def values_in(reports: LastReports) -> dict[int, float]:
    models = dict(reports.items())
    assert list(models) == sorted(models)
    assert len(reports) == len(models)
    assert all(torch.equal(m, model(m[0].item())) for m in models.values())
    return {client: m[0].item() for client, m in models.items()}


class Run:
    """A file of reports, its checkpoints as a run keeps them, and what they should hold."""

    def __init__(self, path: Path) -> None:
        self.path, self.reports = path, LastReportsOnDisk(path)
        self.now: dict[int, float] = {}
        self.checkpoints: list[tuple[dict, dict[int, float]]] = []  # newest first
        self.value = 0.0

    def round(self, clients: set[int], good: bool) -> None:
        arrived = {}
        for client in sorted(clients):
            self.value += 1
            self.reports.put(client, model(self.value))
            arrived[client] = self.value
        if good:
            self.reports.commit()
            self.now = {**self.now, **arrived}
        else:
            self.reports.discard()

    def checkpoint(self) -> None:
        state = json.loads(json.dumps(self.reports.state()))
        self.checkpoints = [(state, self.now), *self.checkpoints][:2]
        self.reports.protect(state for state, _ in self.checkpoints)

    def crash(self, newest_damaged: bool, seed: int) -> None:
        """Whatever was not synced for a checkpoint may be there, in part, or not at all."""
        self.reports.close()
        dice = random.Random(seed)
        content = bytearray(self.path.read_bytes() if self.path.exists() else b"")
        if len(content) < MOST:
            content += dice.randbytes(dice.randrange(2 * SIZE))
        needed = {slot for state, _ in self.checkpoints for slot in state["slots"]}
        for slot in range(len(content) // SIZE + 1):
            if slot not in needed:
                place = slice(slot * SIZE, min((slot + 1) * SIZE, len(content)))
                content[place] = dice.randbytes(place.stop - place.start)
        self.path.write_bytes(content)
        if newest_damaged:
            self.checkpoints = self.checkpoints[1:]
        self.reports, self.now = LastReportsOnDisk(self.path), {}
        self.reports.protect(state for state, _ in self.checkpoints)
        if self.checkpoints:
            state, self.now = self.checkpoints[0]
            self.reports.restore(state)

    def check(self) -> None:
        assert values_in(self.reports) == self.now
        for state, expected in self.checkpoints:
            with closing(LastReportsOnDisk(self.path)) as again:
                again.restore(state)
                assert values_in(again) == expected
        if self.path.exists():
            # Beyond the end there may be what a crash left.
            assert self.path.stat().st_size < MOST + 2 * SIZE


@given(happenings=happenings)
def test_on_disk_it_is_a_dict_whatever_happens(tmp_path_factory, happenings):
    run = Run(tmp_path_factory.mktemp("reports") / "reports.bin")
    try:
        for what, *more in happenings:
            getattr(run, what)(*more)
            run.check()
    finally:
        run.reports.close()


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_round_counts_when_it_is_over(where):
    with closing(choose_last_reports(where)) as reports:
        reports.put(2, model(1))
        assert values_in(reports) == {}
        reports.commit()
        assert values_in(reports) == {2: 1}
        reports.put(2, model(2))
        reports.put(0, model(3))
        reports.discard()
        assert values_in(reports) == {2: 1}
        reports.commit()
        assert values_in(reports) == {2: 1}


@pytest.mark.parametrize(
    "kind",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16],
    ids=str,
)
def test_every_type_and_layout_comes_back_to_the_bit(tmp_path, kind):
    parts = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).to(kind)
    for given_ in (parts[0], parts[:, 1], parts[1:2, 2:3].reshape(-1), parts[::2, 3][:1]):
        with closing(LastReportsOnDisk(tmp_path / "reports.bin")) as reports:
            reports.put(0, given_)
            reports.commit()
            [(_, read)] = reports.items()
            assert read.dtype == kind
            assert torch.equal(read, given_)
            with closing(LastReportsOnDisk(tmp_path / "reports.bin")) as again:
                again.restore(json.loads(json.dumps(reports.state())))
                assert torch.equal(dict(again.items())[0], given_)


def test_a_slot_is_used_again_once_no_checkpoint_refers_to_it(tmp_path):
    path = tmp_path / "reports.bin"
    with closing(LastReportsOnDisk(path)) as reports:
        for k in range(50):
            reports.put(7, model(k))
            reports.commit()
            reports.put(7, model(k))
            reports.put(8, model(k))
            reports.discard()
        assert path.stat().st_size == 3 * SIZE
        states = []
        for k in range(50):
            reports.put(7, model(k))
            reports.commit()
            states.append(reports.state())
            reports.protect(states[-2:])
        # What is current, and another for each of two checkpoints; the newest is current.
        assert path.stat().st_size == 3 * SIZE


def test_what_is_not_alike_is_refused():
    with closing(LastReportsOnDisk()) as reports:
        reports.put(0, torch.ones(3))
        with pytest.raises(FedpbcError, match=r"^client 1 reports .*float64"):
            reports.put(1, torch.ones(3, dtype=torch.float64))


# Damage


@pytest.fixture
def written(tmp_path):
    """Three clients' reports in a file, and the state that refers to them."""
    with closing(LastReportsOnDisk(tmp_path / "reports.bin")) as reports:
        for client in range(3):
            reports.put(client, model(client + 1))
        reports.commit()
        return tmp_path / "reports.bin", reports.state()


@pytest.mark.parametrize("kind", [LastReports, LastReportsOnDisk])
def test_any_byte_that_changed_is_noticed(written, kind):
    path, state = written
    whole = path.read_bytes()
    for byte in range(3 * SIZE):
        content = bytearray(whole)
        content[byte] ^= 0x04
        path.write_bytes(content)
        with closing(kind(path)) as reports, pytest.raises(DamagedReportsError) as error:
            reports.restore(state)
        assert str(error.value) == (
            f"{path} is damaged: client {byte // SIZE}'s report is not what was written"
        )


@pytest.mark.parametrize("length", [0, 1, SIZE, 3 * SIZE - 1])
def test_a_file_cut_short_is_noticed(written, length):
    path, state = written
    os.truncate(path, length)
    with closing(LastReportsOnDisk(path)) as reports, pytest.raises(DamagedReportsError):
        reports.restore(state)


@pytest.mark.parametrize("kind", [LastReports, LastReportsOnDisk])
def test_a_missing_file_is_noticed_and_not_made(written, kind):
    path, state = written
    path.unlink()
    with closing(kind(path)) as reports, pytest.raises(FedpbcError, match="is missing: put it"):
        reports.restore(state)
    assert not path.exists()


def test_damage_while_it_runs_is_noticed(written):
    path, state = written
    with closing(LastReportsOnDisk(path)) as reports:
        reports.restore(state)
        os.truncate(path, SIZE + 1)
        with pytest.raises(DamagedReportsError, match="client 1's report"):
            list(reports.items())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_a_full_disk_is_one_line():
    with (
        closing(LastReportsOnDisk(Path("/dev/full"))) as reports,
        pytest.raises(FedpbcError, match=r"^/dev/full cannot be written: No space left on device$"),
    ):
        reports.put(0, model(1))


# From one kind to the other


def test_reports_move_from_memory_to_disk_and_back(tmp_path):
    path = tmp_path / "reports.bin"
    first = LastReports(path)
    for client in (4, 1):
        first.put(client, model(client))
    first.commit()
    with closing(LastReportsOnDisk(path)) as second:
        second.restore(first.state())
        assert values_in(second) == {1: 1, 4: 4}
        third = LastReports(path)
        third.restore(second.state())
    assert values_in(third) == {1: 1, 4: 4}
    with pytest.raises(FedpbcError, match="are on disk: resume it in its folder"):
        LastReports().restore({"slots": [0]})


def test_moving_to_disk_leaves_what_older_checkpoints_refer_to(written):
    path, state = written
    with closing(LastReportsOnDisk(path)) as reports:
        reports.protect([{0: None}, state])
        reports.restore({0: model(9), 5: model(10)})
        assert values_in(reports) == {0: 9, 5: 10}
    with closing(LastReportsOnDisk(path)) as reports:
        reports.restore(state)
        assert values_in(reports) == {0: 1, 1: 2, 2: 3}


# In a simulation


class Counted:
    """A task that knows how many of the models it made are still in memory."""

    class_shares = None
    seed = 0

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.training = LocalTraining(local_steps=1)
        self.layout = Layout(("x",), ((3,),))
        self.alive = self.most = 0

    def init(self):
        return torch.zeros(3)

    def local_steps(self, client, start, round, first_batch, correction):
        made = start + client + round
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(made, self._gone)
        return made

    def _gone(self):
        self.alive -= 1

    def evaluate(self, model):
        return Evaluation(test_loss=0.0)


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedawe"])
@pytest.mark.parametrize(("where", "most"), [("memory", 2 * 60 + 4), ("disk", 4)])
def test_on_disk_a_few_models_are_in_memory_however_many_clients(algorithm, where, most):
    task, everyone = Counted(60), np.ones((6, 60), dtype=bool)
    views = ["server", "averaged", "reported"]
    simulate(task, algorithm, everyone, views=views, reported=where, evaluate_every=2)
    assert task.most <= most
    if where == "memory" and algorithm == "fedpbc":
        assert task.most > 60


@pytest.mark.parametrize("down", [None, small.lossy()], ids=["heard", "lossy"])
@pytest.mark.parametrize("algorithm", ["fedpbc", "fedawe"])
@pytest.mark.parametrize("make", [small.quadratic, small.network], ids=["quadratic", "network"])
def test_both_kinds_give_the_same_bits(engine, make, algorithm, down):
    task, up = make(), small.random_table()
    more = {"engine": engine, "down": down, "global_lr": 0.7, "evaluate_every": 3}
    memory, in_memory = small.finished(task, algorithm, up, **more)
    with closing(LastReportsOnDisk()) as reports:
        disk, on_disk = small.finished(task, algorithm, up, last_reports=reports, **more)
        assert small.same_bits(disk.view_models(), memory.view_models())
    assert [m.views for m in on_disk] == [m.views for m in in_memory]
    assert len(reports) == 2 * 6  # Reports and their differences; one client is never heard.


def test_without_the_view_no_file_is_made(tmp_path):
    path = tmp_path / "reports.bin"
    for algorithm, views in (("fedavg", None), ("fedpbc", ["server", "mean"])):
        made, _ = small.finished(
            small.quadratic(),
            algorithm,
            small.random_table(),
            views=views,
            last_reports=LastReportsOnDisk(path),
        )
        made.state()
        assert not path.exists()


def test_a_round_that_fails_leaves_no_report(tmp_path):
    class Picky(FedPBC):
        """Gives up in the fourth round, when everything has arrived."""

        def aggregate(self, round, updates):
            super().aggregate(round, updates)
            if round.number == 3:
                raise FedpbcError("no")

    up = np.ones((5, 3), dtype=bool)
    with closing(LastReportsOnDisk()) as reports:
        made = small.simulation(small.quadratic(3), Picky, up, last_reports=reports)
        steps = made.steps()
        for _ in range(3):
            next(steps)
        before = {client: report.clone() for client, report in reports.items()}
        with pytest.raises(FedpbcError, match="no"):
            next(steps)
        assert small.same_bits(dict(reports.items()), before)


def test_an_unknown_place_is_refused():
    with pytest.raises(InputError, match=r"^reported is 'tape', but should be 'memory' or 'disk'$"):
        simulate(small.quadratic(), links={"name": "bernoulli", "p": 0.5}, reported="tape")


def test_without_a_folder_the_file_is_gone_afterwards(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened = []
    open_ = SlotFile._open
    monkeypatch.setattr(
        SlotFile, "_open", lambda self: opened.append(open_(self)) or opened[-1], raising=True
    )
    links = {"name": "bernoulli", "p": 0.5}
    result = simulate(small.quadratic(), links=links, rounds=20, reported="disk")
    wanted = simulate(small.quadratic(), links=links, rounds=20)
    assert small.same_bits(result.models, wanted.models)
    assert opened[-1].closed

    def stop(done, _):
        raise KeyboardInterrupt

    del opened[:]
    with pytest.raises(KeyboardInterrupt):
        simulate(small.quadratic(), links=np.ones((9, 7)), reported="disk", on_round=stop)
    assert opened[-1].closed
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_later_stops_the_round_with_one_line(monkeypatch):
    write, count = SlotFile.write, 0

    def full(self, slot, content):
        nonlocal count
        count += 1
        if count > 10:
            raise self._unwritten(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        write(self, slot, content)

    monkeypatch.setattr(SlotFile, "write", full)
    with pytest.raises(FedpbcError, match=r"temporary file of reports cannot be written: No space"):
        simulate(small.quadratic(), links=np.ones((9, 7)), reported="disk")


def test_an_index_of_no_reports_needs_no_file(tmp_path):
    with closing(LastReportsOnDisk(tmp_path / "reports.bin")) as on_disk:
        state = on_disk.state()
    memory = LastReports()
    memory.restore(state)
    assert len(memory) == 0
