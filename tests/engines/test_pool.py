"""Processes that train, and what happens to them: killed, interrupted, orphaned, overwhelmed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from fedpbc import simulate
from fedpbc.algorithms import FedPBC, ServerInit
from fedpbc.engines import PoolEngine, Segment, SerialEngine, pool
from fedpbc.engines.serial import train
from fedpbc.errors import DivergedError, FedpbcError, WorkerError
from fedpbc.interrupts import Interrupted, handled
from fedpbc.links import from_table
from fedpbc.simulation.loop import Simulation
from tests import small_runs as small
from tests.processes import PATIENCE, child, wait_until

pytestmark = pytest.mark.slow

LINKS = {"name": "bernoulli", "p": 0.3}


class Watched(nn.Tanh):
    """Takes its time, and leaves a line of its process's number in a file for each step."""

    def __init__(self, file, seconds=0.0):
        super().__init__()
        self.file, self.seconds = str(file), seconds

    def forward(self, value):
        if self.training:
            with Path(self.file).open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(self.seconds)
        return super().forward(value)


class OneThread(nn.Tanh):
    """Complains about more than one thread."""

    def forward(self, value):
        if self.training:
            assert torch.get_num_threads() == 1
        return super().forward(value)


class Wrong(nn.Tanh):
    """Cannot be trained."""

    def forward(self, value):
        if self.training:
            raise ZeroDivisionError("as planned")
        return super().forward(value)


class Hungry(nn.Tanh):
    """Needs more memory than there is."""

    def forward(self, value):
        if self.training:
            torch.empty(2**60, dtype=torch.uint8)
        return super().forward(value)


class Unpackable:
    """Needs more memory than there is, in a worker only."""

    def __init__(self, task):
        self.__dict__.update(vars(task))
        self.task = task

    def __getattr__(self, name):
        return getattr(self.__dict__["task"], name)

    def __reduce__(self):
        return bytearray, (2**62,)


class Deadly(nn.Tanh):
    """Kills its process, once for each of the given files."""

    def __init__(self, *files):
        super().__init__()
        self.files = [str(file) for file in files]

    def forward(self, value):
        for file in self.files if self.training else ():
            if not Path(file).exists():
                Path(file).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(value)


def around(layer: nn.Module, **training):
    """A task whose network has this layer in the middle."""
    chain = small.seeded(lambda: nn.Sequential(nn.Linear(6, 5), layer, nn.Linear(5, 4)))
    return small.network(module=chain, **training)


@pytest.fixture
def opened():
    """Makes engines that are closed afterwards."""
    made = []

    def make(task, workers=1):
        made.append(PoolEngine(task, workers=workers))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def workers_of(pid: int) -> list[int]:
    """The worker processes that a process has now."""
    listed = subprocess.run(
        ["ps", "--ppid", str(pid), "-o", "pid=,args="], capture_output=True, text=True, check=False
    )
    lines = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    return [int(number) for number, args in lines if "fedpbc.engines.worker" in args]


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def run_of(task, engine, rounds=12):
    """A run of FedPBC with an engine that exists already."""
    return Simulation(
        task,
        FedPBC(ServerInit(task.init(), task.clients)),
        engine,
        uplink=from_table(small.random_table(rounds=rounds)),
        evaluate_every=5,
    )


# The same bits


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("algorithm", "workers"), [("fedpbc", 1), ("scaffold", 2), ("fedpbc", 3)])
def test_the_same_bits_as_serial(algorithm, workers):
    task = around(nn.Dropout(0.2))
    serial = simulate(task, algorithm, LINKS, rounds=12, engine="serial", evaluate_every=5)
    found = simulate(
        task, algorithm, LINKS, rounds=12, engine="pool", workers=workers, evaluate_every=5
    )
    assert found.engine == "pool: requested"
    for view, model in serial.models.items():
        assert torch.equal(found.models[view], model)
    assert [m.views for m in found.metrics] == [m.views for m in serial.metrics]
    assert not workers_of(os.getpid())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", small.TWO_SIDED)
def test_the_same_bits_with_a_rule_of_the_clients(opened, algorithm):
    task, up, options = small.network(), small.random_table(), small.TWO_SIDED[algorithm]
    serial = small.views(task, algorithm, up, options=options, down=small.lossy())
    found = small.views(task, algorithm, up, options=options, down=small.lossy(), engine=opened)
    assert small.same_bits(found, serial)


def test_no_more_processes_than_clients(opened):
    task = small.network(clients=2)
    engine = opened(task, workers=task.clients + 5)
    engine.submit(Segment(0, task.init(), 0, 1, 0))
    assert len(engine.processes()) == engine.workers == task.clients


def test_out_of_memory_in_a_worker_is_one_clear_line(opened):
    task = around(Hungry())
    engine = opened(task)
    engine.submit(Segment(2, task.init(), 0, 1, 0))
    with pytest.raises(WorkerError, match="failed twice: not enough memory"):
        engine.result(2)


def test_workers_that_cannot_even_start_say_why(opened, capfd):
    task = Unpackable(small.network())
    engine = opened(task)
    engine.submit(Segment(0, task.init(), 0, 1, 0))
    with pytest.raises(FedpbcError, match="before they are ready: one ended: not enough memory"):
        engine.result(0)
    assert capfd.readouterr().err == ""


def test_one_engine_for_several_runs_and_results_that_outlive_it(opened):
    task = around(nn.Dropout(0.2))
    wanted = run_of(task, SerialEngine(task))
    list(wanted.run())
    engine, models = opened(task), []
    for _ in range(2):
        simulation = run_of(task, engine)
        list(simulation.run())
        models.append(simulation.view_models())
        held = simulation.server.held
    engine.close()
    for found in models:
        assert all(torch.equal(found[view], model) for view, model in wanted.view_models().items())
    for a, b in zip(held, wanted.server.held, strict=True):
        assert torch.equal(a, b)


def test_work_is_done_on_one_thread(opened):
    task = around(OneThread())
    engine = opened(task)
    engine.submit(Segment(0, task.init(), 0, 1, 0))
    assert engine.result(0).segment.client == 0


# Processes that die


@pytest.mark.long
def test_workers_are_killed_ten_times_over_and_the_bits_are_the_same(opened, tmp_path):
    file = tmp_path / "steps"
    task = around(Watched(file, 0.002))
    wanted = run_of(task, SerialEngine(task), rounds=120)
    list(wanted.run())
    file.write_text("")
    engine, killed, last = opened(task, workers=2), [], 0
    simulation = run_of(task, engine, rounds=120)
    for _ in simulation.steps():
        steps = list(map(int, file.read_text().split()))
        # Not the same segment twice: none has more than ten steps.
        if len(killed) < 10 and len(steps) > last + 40:
            killed.append(steps[-1])
            os.kill(killed[-1], signal.SIGKILL)
            last = len(steps)
    assert len(set(killed)) == 10
    found = simulation.view_models()
    assert all(torch.equal(found[view], model) for view, model in wanted.view_models().items())
    engine.close()
    assert not any(map(is_there, killed))
    assert not workers_of(os.getpid())


def test_a_segment_whose_process_dies_is_run_again(opened, tmp_path):
    task = around(Deadly(tmp_path / "once"))
    work = Segment(1, task.init(), 0, 3, 0)
    engine = opened(task)
    engine.submit(work)
    assert torch.equal(engine.result(1).end, train(task, work).end)


@pytest.mark.long
def test_a_segment_whose_process_dies_twice_stops_the_run(opened, tmp_path):
    task = around(Deadly(tmp_path / "once", tmp_path / "twice"))
    engine = opened(task)
    engine.submit(Segment(1, task.init(), 2, 3, 0))
    message = r"client 1's work of rounds 2 to 4 failed twice: its process was killed \(SIGKILL\)"
    with pytest.raises(WorkerError, match=message):
        engine.result(1)


def test_a_module_that_raises_stops_the_run_with_its_words(opened):
    task = around(Wrong())
    engine = opened(task)
    for client in (0, 1):
        engine.submit(Segment(client, task.init(), 0, 1, 0))
    with pytest.raises(WorkerError, match="client 1's work of round 0 failed twice: ZeroDivision"):
        engine.result(1)


def test_divergence_is_not_tried_twice(opened):
    task = small.quadratic(learning_rate=1e300, decay=False)
    engine = opened(task)
    engine.submit(Segment(3, task.init() + 1, 5, 4, 0))
    with pytest.raises(DivergedError) as caught:
        engine.result(3)
    assert caught.value.client == 3


# Bounds


def test_work_that_is_not_wanted_yet_does_not_pile_up(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "LOOKAHEAD_BYTES", 1)
    file = tmp_path / "steps"
    task = small.network(
        clients=20,
        module=nn.Sequential(nn.Linear(6, 5), Watched(file), nn.Linear(5, 4)),
        local_steps=1,
    )
    engine = opened(task)
    for client in range(20):
        engine.submit(Segment(client, task.init(), 0, 1, 0))

    def steps():
        return len(file.read_text().split()) if file.exists() else 0

    wait_until(lambda: steps() == 4)
    time.sleep(0.5)
    assert steps() == 4
    # Who is wanted comes all the same, in any order.
    for client in (19, 3, 12, 0):
        assert engine.result(client).segment.client == client
    for client in set(range(20)) - {19, 3, 12, 0}:
        engine.result(client)
    assert steps() == 20


def test_what_is_due_first_is_run_first(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "LOOKAHEAD_BYTES", 1)
    task = small.network(clients=30, local_steps=1)
    engine = opened(task)
    for client in range(30):
        engine.submit(Segment(client, task.init(), 0, 30 - client, 0))
    # With room for four, those due first are done while nobody asks.
    began = [engine.result(client).segment.rounds for client in (29, 28, 27, 26)]
    assert began == [1, 2, 3, 4]


# What is left behind


SCRIPT = """
import sys, time
import torch
from torch import nn
from fedpbc import Supervised, simulate

class Slow(nn.Tanh):  # known to this script alone, which has no main guard either
    def forward(self, value):
        time.sleep(0.01 * self.training)
        return super().forward(value)

x, y = torch.randn(200, 5), torch.arange(200) % 4
module = nn.Sequential(nn.Linear(5, 4), Slow(), nn.Linear(4, 4))
task = Supervised(module, (x, y), (x, y), clients=10, loss=lambda a, b: nn.functional.mse_loss(
    a, nn.functional.one_hot(b, 4).float()))
rounds = int(sys.argv[1])
result = simulate(task, "fedpbc", {"name": "bernoulli", "p": 0.3}, rounds=rounds, engine="pool",
                  workers=2, on_round=lambda done, metrics: print(done, flush=True))
print("ended", result.engine)
"""


def start_script(tmp_path, rounds):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    return child([sys.executable, file, rounds])


def named_memory(pids: list[int]) -> set[Path]:
    """The files of shared memory that processes use and that still have a name."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    paths = {Path(line.split()[-1]) for line in maps.splitlines()}
    return {path for path in paths if path.is_relative_to("/dev/shm")}


@pytest.mark.long
def test_a_script_of_ones_own_needs_no_main_guard(tmp_path):
    with start_script(tmp_path, 2) as script:
        output, errors = script.communicate(timeout=PATIENCE)
    assert output.split("\n")[-2] == "ended pool: requested"
    assert not errors


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_nothing_is_left_behind_whatever_ends_the_parent(tmp_path, how):
    with start_script(tmp_path, 100_000) as script:
        assert script.stdout.readline() == "1\n"
        workers = workers_of(script.pid)
        assert len(workers) == 2
        memory = named_memory([script.pid, *workers])
        os.killpg(script.pid, how)
        script.communicate(timeout=PATIENCE)
        wait_until(lambda: not any(map(is_there, workers)))
    assert not any(path.exists() for path in memory)


# In a run's folder


def test_a_run_that_fails_keeps_what_it_has_and_can_go_on(tmp_path):
    # More deaths than clients: one of the segments under way must fail twice, whatever their order.
    clients = small.network().clients
    place, marks = tmp_path / "run", [tmp_path / f"mark-{k}" for k in range(clients + 1)]
    for mark in marks:
        mark.touch()
    task = around(Deadly(*marks))

    def kill_later(done, metrics):
        # Nobody can train for rounds after the tenth, where all are judged, before it is over.
        if done == 6:
            for mark in marks:
                mark.unlink()

    def run(engine, out, **options):
        return simulate(task, "fedpbc", LINKS, rounds=30, engine=engine, out=out, **options).models

    with pytest.raises(WorkerError, match=r"failed twice: .*run keeps everything up to round \d"):
        run("pool", place, on_round=kill_later, workers=1)
    for mark in marks:
        mark.touch()  # From now on nobody dies any more.
    found, wanted = run("pool", place), run("serial", tmp_path / "other")
    assert all(torch.equal(found[view], model) for view, model in wanted.items())


@pytest.mark.long
def test_engines_that_were_used_leave_no_files_open():
    """Neither memory nor lines to workers, also when work was under way."""
    task = small.quadratic()

    def use():
        engine = PoolEngine(task, workers=1)
        for client in range(3):
            engine.submit(Segment(client, task.init(), 0, 2, 0))
        engine.result(1)
        engine.close()

    use()
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        use()
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.usefixtures("signals_as_in_a_terminal")
@pytest.mark.parametrize("call", ["submit", "result"])
def test_a_signal_at_the_worst_moment_leaves_no_lock_behind(call):
    task = small.network()
    engine = PoolEngine(task, workers=1)
    released = threading.Condition.__exit__.__code__

    def signal_on_release(frame, event, arg):
        if frame.f_code is released:
            sys.settrace(None)
            signal.raise_signal(signal.SIGTERM)

    def work():
        if call == "submit":
            sys.settrace(signal_on_release)
        engine.submit(Segment(0, task.init(), 0, 1, 0))
        sys.settrace(signal_on_release)
        engine.result(0)

    with handled():
        try:
            with pytest.raises(Interrupted):
                work()
        finally:
            sys.settrace(None)
        closing = threading.Thread(target=engine.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()
