"""The engine ray: the same bits as one after another, wherever segments run and whatever dies."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from fedpbc import simulate
from fedpbc.engines import ENGINES, RayEngine, Segment, SerialEngine, ray_instance, ray_probe
from fedpbc.engines import ray as engine_module
from fedpbc.errors import DivergedError, InputError, MissingExtraError, WorkerError
from fedpbc.experiments.plugins import load_plugin
from fedpbc.tasks import LocalTraining, Supervised
from fedpbc.tasks.parameter_layout import Layout
from tests import small_runs as small
from tests.commandline import DIGITS, content, fedpbc, ran, refused
from tests.engines.ray_cluster import answers, descendants
from tests.engines.test_protocol import Shifted
from tests.processes import PATIENCE, child, wait_until

# Ray starts many processes: on a busy machine its tests need more than the usual time.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXTRA = "needs the extra: pip install 'fedpbc[ray]'"


def test_without_the_extra_it_says_which_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError) as raised:
        simulate(small.quadratic(), "fedavg", "always", rounds=1, engine="ray")
    assert str(raised.value) == "the engine 'ray' needs an extra: pip install 'fedpbc[ray]'"


@pytest.fixture
def ray(local_ray):
    """An instance of two CPUs, as somebody may have started it before."""
    return pytest.importorskip("ray")


@pytest.fixture
def made(ray, capfd):
    """A function that makes engines, which are closed afterwards; nothing of Ray's shows."""
    engines = []

    def make(task, **options):
        engines.append(RayEngine(task, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
    assert capfd.readouterr() == ("", "")


# The same bits


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("fedpbc", {}),
        ("fedpbc", {"down": small.lossy(), "evaluate_every": 5, "global_lr": 0.7}),
        ("fedavg", {}),
        *((name, {"options": options}) for name, options in small.TWO_SIDED.items()),
        ("area", {"down": small.lossy(), "global_lr": 0.7}),
    ],
)
def test_the_same_bits_as_one_after_another(made, algorithm, options):
    task, up = small.network(), small.random_table()
    serial = small.views(task, algorithm, up, **options)
    assert small.same_bits(small.views(task, algorithm, up, engine=made, **options), serial)


@pytest.mark.parametrize("training", [{"optimizer": "adam"}, {"momentum": 0.9}])
def test_with_convolutions_and_dropout(made, training):
    module = small.seeded(
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 2, 3)),
            nn.Conv2d(1, 5, 2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(10, 4),
        )
    )
    task, up = small.network(module=module, **training), small.random_table()
    serial = small.views(task, "fedavg", up)
    assert small.same_bits(small.views(task, "fedavg", up, engine=made), serial)


def test_by_name(ray):
    task, links = small.quadratic(), {"name": "bernoulli", "p": 0.4}
    a, b = (simulate(task, "mifa", links, rounds=8, engine=e) for e in ("ray", "serial"))
    assert a.engine == "ray: requested"
    assert small.same_bits(a.models, b.models)
    assert ENGINES["ray"] is RayEngine


def test_one_engine_for_several_simulations(ray):
    task, up = small.network(), small.random_table()
    engine = RayEngine(task)
    for algorithm in ("fedpbc", "fedavg"):
        found = small.views(task, algorithm, up, engine=lambda _: engine)
        assert small.same_bits(found, small.views(task, algorithm, up))
        engine.close()
        engine.close()
        assert ray.is_initialized()


def test_two_engines_do_not_mix(made):
    one, other = small.quadratic(3), small.quadratic(3, learning_rate=0.01)
    engines = {made(task): task for task in (one, other)}
    for round in range(4):
        work = [Segment(i, one.init(), round, 1, 0) for i in range(3)]
        for engine in engines:
            for segment in work:
                engine.submit(segment)
        for engine, task in engines.items():
            for segment in work:
                assert torch.equal(engine.result(segment.client).end, serially(task, segment))


def test_a_kind_of_number_that_numpy_does_not_know(made):
    task = Told(lambda client, start: start * 1.5, dtype=torch.bfloat16)
    [end] = results(made(task), [Segment(0, task.init(), 0, 2, 0)])
    assert torch.equal(end, torch.full((3,), 2.25, dtype=torch.bfloat16))


def test_work_is_done_on_one_thread(made):
    task = Told(lambda client, start: start * torch.get_num_threads())
    [end] = results(made(task), [Segment(0, task.init(), 0, 1, 0)])
    assert end.tolist() == [1, 1, 1]


def test_classes_of_a_plugin_go_along(made, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from torch import nn\n"
        "class Twice(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return 2 * super().forward(x)\n"
        "def loss(outputs, labels):\n"
        "    return nn.functional.multi_margin_loss(outputs, labels)\n"
    )
    before = set(sys.modules)
    load_plugin(str(file))
    [name] = set(sys.modules) - before
    own, data = sys.modules[name], small.samples()
    module = small.seeded(lambda: own.Twice(6, 4))
    task = Supervised(module, data, data, clients=3, alpha=1.0, loss=own.loss)
    work = [Segment(i, task.init(), 0, 1, 0) for i in range(3)]
    for segment, end in zip(work, results(made(task), work), strict=True):
        assert torch.equal(end, serially(task, segment))


# What lies in the object store


def test_each_start_is_placed_once_and_results_never(made, ray, monkeypatch):
    task = small.quadratic()
    engine = made(task)
    placed = counted(monkeypatch, ray)
    starts = [task.init(), task.init() + 1]
    work = [Segment(i, starts[i % 2], 0, 1, 0) for i in range(6)]
    ends = results(engine, work)
    assert len(placed) == 3  # The task, and two models.
    more = [Segment(i, ends[i], 1, 1, 3, 1.0, Shifted(), {"shift": starts[0]}) for i in range(6)]
    for segment, end in zip(more, results(engine, more), strict=True):
        assert torch.equal(end, serially(task, segment))
    assert len(placed) == 3


def test_nothing_is_kept_that_nobody_needs(made):
    task = small.network()
    engine = made(task)
    small.finished(task, "scaffold", small.random_table(), engine=lambda _: engine)
    gc.collect()
    assert len(engine._stored) == 0
    start = task.init()
    [end] = results(engine, [Segment(0, start, 0, 1, 0)])
    assert len(engine._stored) == 2
    del start
    assert len(engine._stored) == 1
    del end
    assert len(engine._stored) == 0


def test_results_can_be_written_to_without_harm(made):
    task = small.quadratic()
    engine = made(task)
    [end] = results(engine, [Segment(0, task.init(), 0, 1, 0)])
    again = Segment(1, end, 1, 1, 0)
    wanted = serially(task, Segment(1, end.clone(), 1, 1, 0))
    end.zero_()
    # Nobody does so; but what is in the store has not changed.
    assert torch.equal(results(engine, [again])[0], wanted)


def test_large_data_is_not_copied_out_of_the_store(made):
    """Into another process's own memory, that is: it would be there once for each of them."""
    data = torch.ones(2**20)

    def look(client, start):
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        for line in lines:
            first, last = (int(end, 16) for end in line[0].split("-"))
            if first <= data.data_ptr() < last:
                return start * ("s" in line[1])  # Shared memory, not private.
        return start * 0

    if not Path("/proc/self/maps").exists():
        pytest.skip("this system does not say where memory is")
    task = Told(look)
    [end] = results(made(task), [Segment(0, task.init(), 0, 1, 0)])
    assert end.tolist() == [1, 1, 1]


# How far ahead


def test_the_look_ahead_is_bounded_and_what_is_wanted_goes_first(made, monkeypatch):
    monkeypatch.setattr(engine_module, "LOOKAHEAD_BYTES", 0)
    task = small.quadratic(40)
    engine = made(task, workers=1)
    for client in range(40):
        engine.submit(Segment(client, task.init(), 0, 1 + (39 - client) // 4, 0))
    begun = [c for c, job in engine._jobs.items() if job.references]
    assert len(begun) <= 4
    # Taken on when there was room; from now on what is due first comes first.
    for client in (35, 39, 20):
        assert torch.equal(
            engine.result(client).end,
            serially(task, Segment(client, task.init(), 0, 1 + (39 - client) // 4, 0)),
        )
        begun = {c for c, job in engine._jobs.items() if job.references}
        assert len(begun) <= 4
    deadline = time.monotonic() + PATIENCE
    while not {38, 37, 36} & {c for c, job in engine._jobs.items() if job.references}:
        engine._dispatch()
        assert time.monotonic() < deadline
    assert {engine.result(c).segment.client for c in list(engine._jobs)} >= {0, 38}


def test_no_more_at_once_than_was_asked_for(made, tmp_path):
    task = Told(lambda client, start: noted(tmp_path, client, start))
    engine = made(task, workers=1)
    results(engine, [Segment(i, task.init(), 0, 1, 0) for i in range(6)])
    assert {int(note.read_text()) for note in tmp_path.glob("seen*")} == {1}


# When something goes wrong


def test_a_model_that_is_not_finite(made):
    task = small.quadratic(learning_rate=1e200)
    with pytest.raises(DivergedError) as raised:
        small.views(task, "fedpbc", small.random_table(), engine=made)
    with pytest.raises(DivergedError) as serial:
        small.views(task, "fedpbc", small.random_table())
    assert str(raised.value) == str(serial.value)


def test_what_fails_twice_is_one_line_and_others_go_on(made, tmp_path):
    def steps(client, start):
        (tmp_path / f"{client} {secrets.token_hex()}").touch()
        return start / (client - 1) if client == 1 else start + 1 // (client - 3)

    task = Told(steps)
    engine = made(task)
    for client in (2, 3):
        engine.submit(Segment(client, task.init(), 4, 3, 0))
    with pytest.raises(WorkerError) as raised:
        engine.result(3)
    line = "client 3's work of rounds 4 to 6 failed twice: ZeroDivisionError: "
    assert str(raised.value).startswith(line)
    assert len(list(tmp_path.glob("3 *"))) == 2
    assert engine.result(2).end.tolist() == [-2, -2, -2]
    with pytest.raises(LookupError):
        engine.result(3)


@pytest.mark.parametrize(
    "way", ["raise", *(pytest.param(way, marks=pytest.mark.long) for way in ("kill", "exit"))]
)
def test_what_fails_once_ends_with_the_same_bits(made, tmp_path, way):
    up = small.random_table()
    task = small.network(module=Frail(small.mlp(), tmp_path / "marker", way))
    wanted = small.views(task, "fedpbc", up)
    assert small.same_bits(small.views(task, "fedpbc", up, engine=made), wanted)
    assert (tmp_path / "marker").exists()


def test_a_process_that_is_killed_every_time(made):
    task = Told(lambda client, start: os.kill(os.getpid(), signal.SIGKILL))
    engine = made(task)
    engine.submit(Segment(0, task.init(), 2, 1, 0))
    with pytest.raises(WorkerError, match=r"^client 0's work of round 2 failed twice: its pro"):
        engine.result(0)


@pytest.mark.long
def test_closing_gives_up_what_is_under_way(made, ray, tmp_path):
    def steps(client, start):
        (tmp_path / f"{client}").touch()
        for _ in range(6000):
            time.sleep(0.01)
        return start

    task, engine = Told(steps), made(small.quadratic())
    slow = made(task)
    for client in range(6):
        slow.submit(Segment(client, task.init(), 0, 1, 0))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    slow.close()
    # The two CPUs are free for others.
    results(engine, [Segment(0, small.quadratic().init(), 0, 1, 0)])
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(LookupError):
        slow.result(0)


def test_another_address_than_the_one_in_use(ray):
    here = ray.get_runtime_context().gcs_address
    port = here.rpartition(":")[2]
    for same in (here, f"127.0.0.1:{port}", f"localhost:{port}", "auto"):
        engine = RayEngine(small.quadratic(), workers=1, ray_address=same)
        results(engine, [Segment(0, small.quadratic().init(), 0, 1, 0)])
        engine.close()
        assert ray.is_initialized()
    other = ray_instance.Instance(0, "192.0.2.77:6379", most=4)
    with pytest.raises(InputError, match=rf"left out: this process already .* {here}$"):
        other.join()


@pytest.fixture
def unjoined(monkeypatch):
    """As in a process that does not use Ray yet."""
    pytest.importorskip("ray", reason=EXTRA)
    monkeypatch.setattr(ray_instance, "current_instance", lambda: None)


def change_probe(monkeypatch, folder: Path, before: str, after: str) -> None:
    """The program that tries to join a cluster, with another line."""
    program = Path(ray_probe.__file__).read_text()
    assert before in program
    (folder / "probe.py").write_text(program.replace(before, after))
    monkeypatch.setattr(ray_probe, "__file__", str(folder / "probe.py"))


CLUSTER = "the address of a running Ray cluster"


def test_an_address_where_nobody_answers(unjoined):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            line = f"ray_address is '{address}', but should be {CLUSTER}"
            with pytest.raises(InputError, match=line):
                RayEngine(small.quadratic(), ray_address=address)
    for wrong in (
        "127.0.0.1:66666",
        "no such place:1",
        "ray://nowhere.invalid:1",
        "ray://x.invalid",
    ):
        with pytest.raises(InputError, match=rf"^ray_address is .*{CLUSTER} \("):
            RayEngine(small.quadratic(), ray_address=wrong)


@pytest.mark.parametrize("wrong", ["nowhere", "127.0.0.1:", "http://a:1", "://", "ray://", "a:1:b"])
def test_no_address(wrong):
    pytest.importorskip("ray", reason=EXTRA)
    with pytest.raises(InputError, match=r"^ray_address is .*should be host:port, 'auto', or ray:"):
        RayEngine(small.quadratic(), ray_address=wrong)


def test_auto_with_a_stale_cluster_file(unjoined, tmp_path, monkeypatch, capfd):
    """Ray itself tries for minutes to reach the cluster that ran last, and can't be interrupted."""
    # Other instances on this machine would be found first.
    hidden = (
        "    from ray._private import services\n    services.find_gcs_addresses = lambda: set()\n"
    )
    line = "    from ray._private.services import canon"
    change_probe(monkeypatch, tmp_path, line, hidden + line)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        stale = f"127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "ray" / "ray_current_cluster").write_text(stale)
        begun = time.monotonic()
        with pytest.raises(InputError) as raised:
            RayEngine(small.quadratic(), ray_address="auto")
    assert "refused" in str(raised.value)
    assert time.monotonic() - begun < PATIENCE
    assert str(raised.value).startswith(f"ray_address is 'auto', but should be {CLUSTER} (")
    assert capfd.readouterr() == ("", "")


def test_an_address_where_something_else_answers(unjoined):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(InputError, match=rf"{CLUSTER} \(.*{address}: timed out\)$"):
            RayEngine(small.quadratic(), ray_address=address)


def test_a_server_that_begins_like_ray_but_never_goes_on(unjoined, monkeypatch, tmp_path):
    change_probe(monkeypatch, tmp_path, "JOIN_SECONDS = 20", "JOIN_SECONDS = 1")

    def answer(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connections.append(server.accept()[0])
                connections[-1].sendall(bytes(3) + b"\x04" + bytes(5))

    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=rf"{CLUSTER} \(it does not answer in time\)$"):
            RayEngine(small.quadratic(), ray_address=address)
        server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE)
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("out", ["new", "old"])
def test_the_command_line_says_so_before_it_writes(unjoined, tmp_path, out):
    short = ["--rounds", "2", *DIGITS]
    if out == "old":
        ran("run", *short, "--out", tmp_path / "old")
    before = content(tmp_path)
    address = "ray://nowhere.invalid:1"
    options = ["--ray-address", address, "--overwrite", "--out", tmp_path / out]
    line = refused(fedpbc("run", *short, *options))
    assert line.startswith(f"ray_address is '{address}', but should be {CLUSTER} (")
    assert content(tmp_path) == before


def test_no_more_cpus_than_clients(unjoined, monkeypatch):
    started = []
    monkeypatch.setattr(ray_instance, "start", lambda cpus, address: started.append(cpus))
    for workers, clients in ((12, 4), (2, 4), (10**21, 3), (0, 1)):
        engine = RayEngine(small.quadratic(clients), workers=workers)
        engine._instance.join()
        engine._instance.leave()
    assert started == [4, 2, 3, 1]


def test_what_a_program_does_when_it_is_told_to_end_stays():
    def own(number, frame):
        raise SystemExit

    before = signal.signal(signal.SIGTERM, own)
    try:
        with ray_instance.keep_sigterm_handler():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_negative_number_of_workers():
    pytest.importorskip("ray", reason=EXTRA)
    with pytest.raises(InputError, match=r"^workers is -1, but should be at least 1, or 0"):
        RayEngine(small.quadratic(), workers=-1)


SCRIPT = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from fedpbc import Supervised
from fedpbc.engines import RayEngine, Segment, SerialEngine

class Own(nn.Linear):
    marker = Path(sys.argv[2])

    def forward(self, x):
        while self.marker.exists():
            time.sleep(0.01)
        return 2 * super().forward(x)

if __name__ == "__main__":
    torch.manual_seed(1)
    x, y = torch.randn(60, 6), torch.arange(60) % 3
    task = Supervised(Own(6, 3), (x, y), (x, y), clients=4, alpha=1.0)
    engine, serial = RayEngine(task, workers=1, ray_address=sys.argv[1]), SerialEngine(task)
    for client in range(4):
        for each in (engine, serial):
            each.submit(Segment(client, task.init(), 0, 1 + client, 0))
    same = [engine.result(i).end.equal(serial.result(i).end) for i in range(4)]
    Own.marker.touch()
    engine.submit(Segment(0, task.init(), 0, 1, 0))
    try:
        print(all(same), flush=True)
        engine.result(0)
    except KeyboardInterrupt:
        engine.close()
        print("closed", flush=True)
        sys.stdin.read()
"""


@contextmanager
def driver(folder: Path, address: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the engine, with a module that only it knows; stopped by Ctrl-C."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, script, address, folder / "marker"]
    with child(command, stdin=subprocess.PIPE, env=os.environ | environment) as process:
        assert process.stdout.readline() == "True\n", process.stderr.read()
        yield process
        # Nothing of Ray's shows.
        assert process.communicate(timeout=PATIENCE) == ("", "")


def stop(process: subprocess.Popen[str]) -> None:
    """Ctrl-C; it closes the engine and waits."""
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "closed\n", process.stderr.read()


@pytest.mark.long
def test_an_instance_of_its_own_leaves_nothing_behind(tmp_path):
    pytest.importorskip("ray", reason=EXTRA)
    with driver(tmp_path, "") as process:
        begun = descendants(process.pid)
        assert len(begun) > 3
        stop(process)
        wait_until(lambda: not begun & running())


@pytest.mark.long
def test_an_existing_cluster(tmp_path):
    pytest.importorskip("ray", reason=EXTRA)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A token of its own: nobody else's is looked at, and nobody else gets in.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block"]
    command += [f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    with (
        (tmp_path / "log").open("w") as log,
        child(
            [*command, "--disable-usage-stats"], stdout=log, stderr=log, env=os.environ | token
        ) as head,
    ):
        try:
            wait_until(lambda: answers(f"127.0.0.1:{port}") or head.poll() is not None)
            with driver(tmp_path, f"127.0.0.1:{port}", **token) as process:
                stop(process)
            # It was joined and left, not ended.
            assert answers(f"127.0.0.1:{port}")
        finally:
            head.terminate()
            head.wait(PATIENCE)


def running() -> set[int]:
    """All processes but those that only wait to be buried."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,stat="], capture_output=True, text=True)
    lines = [line.split() for line in listed.stdout.splitlines()]
    return {int(pid) for pid, state in lines if not state.startswith("Z")}


class Told:
    """A task that does what it is told."""

    seed, clients, class_shares = 0, 40, None
    training, layout = LocalTraining(local_steps=1), Layout(("x",), ((3,),))

    def __init__(self, steps, dtype=torch.float32) -> None:
        self.steps, self.dtype = steps, dtype

    def init(self):
        return torch.ones(3, dtype=self.dtype)

    def local_steps(self, client, start, round, first_batch, correction):
        return self.steps(client, start)


class Frail(nn.Module):
    """A module that fails in the middle of another process's work, but only once."""

    def __init__(self, module: nn.Module, marker: Path, way: str) -> None:
        super().__init__()
        self.module, self.marker, self.way = module, marker, way
        self.home, self.calls = os.getpid(), 0

    def forward(self, x):
        self.calls += os.getpid() != self.home
        if self.calls > 5 and not self.marker.exists():
            self.marker.touch()
            if self.way == "raise":
                raise ValueError("once")
            if self.way == "exit":
                sys.exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.module(x)


def noted(folder: Path, client: int, start: torch.Tensor) -> torch.Tensor:
    """Write down how many are at work at the same time."""
    here = folder / f"here {client}"
    here.touch()
    time.sleep(0.05)
    (folder / f"seen {client}").write_text(str(len(list(folder.glob("here*")))))
    here.unlink()
    return start


def counted(monkeypatch, ray) -> list[object]:
    """What is placed in the object store from here."""
    placed, put = [], ray.put

    def counting(value):
        placed.append(value)
        return put(value)

    monkeypatch.setattr(ray, "put", counting)
    return placed


def results(engine, work) -> list[torch.Tensor]:
    for segment in work:
        engine.submit(segment)
    return [engine.result(segment.client).end for segment in work]


def serially(task, segment: Segment) -> torch.Tensor:
    return results(SerialEngine(task), [segment])[0]
