"""What scenarios do besides calling commands; each function runs in a process of its own."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest

APP = """
import torch

def model():
    return torch.nn.Linear(4, 3)

def data(client):
    return torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)
"""


def job(folder: str) -> None:
    """A fleet's server and devices in this process, on a network that loses messages."""
    from fedpbc.deployment.server.server_directory import ServerDirectory
    from tests.deployment import fake_network as fake

    path = Path(folder)
    task = fake.small_task()

    def fate(client: int, round: int) -> str:
        return ("ok", "lost", "ok", "unheard")[(client + round) % 4]

    network = fake.FakeNetwork(fake.make_trainers(task, path, lazy=True), fate)
    with ServerDirectory(path / "server") as directory:
        server = fake.make_server(task, "fedpbc", directory, network, rounds=6)
        server.run()
        fake.assert_same(server, fake.simulated(task, "fedpbc", directory.lines))


def interrupted(folder: str) -> None:
    """A run that stopped after its fifth round."""
    from fedpbc import Config, start_run
    from fedpbc.experiments.execution import StoppedError, Watcher

    def stop(done: int, _: object) -> None:
        if done == 5:
            raise StoppedError("stopped")

    links = {"name": "bernoulli", "p": 0.5}
    values = {"data": "digits", "clients": 8, "rounds": 8, "links": links, "reported": "disk"}
    values |= {"evaluate_every": 2, "checkpoint_every": 2, "engine": "serial"}
    with contextlib.suppress(StoppedError):
        start_run(Config.from_dict(values), Path(folder) / "run", watcher=Watcher(on_round=stop))


def advised(folder: str, rounds: str = "6") -> None:
    """Advice by a schedule that does not depend on how busy the machine is."""
    from fedpbc.cli.app import main
    from fedpbc.experiments.advice import advise
    from fedpbc.experiments.advice.schedule import Schedule
    from tests.faults.scenarios import SMALL

    plan = Schedule(int(rounds), ("fedavg", "mifa"), 2, 1, 2, False, 9.0, False)
    vars(advise)["choose_schedule"] = lambda *_, **options: plan
    options = ["--minutes", 0.001, "--jobs", 1, "--out", f"{folder}/run"]
    sys.argv = [str(word) for word in ("fedpbc", "advise", *SMALL, *options, "--rounds", rounds)]
    main()


def strategy_job(folder: str) -> None:
    """A Flower app's job with a checkpoint and a log of its links."""
    import logging

    from flwr.supercore.task_identity import TaskIdentity

    from fedpbc.flower import FedPBC
    from tests import small_runs as small
    from tests.flower.fake_grid import app_of, cut, grid_of, record_of

    logging.getLogger("flwr").handlers[:] = [logging.NullHandler()]
    for name in ("task_id", "run_id", "node_id"):
        setattr(TaskIdentity, f"_{name}", 1)
    path, task, table = Path(folder) / "run", small.quadratic(), small.random_table(seed=6)[:5]
    path.mkdir(exist_ok=True)
    files = {"checkpoint": path / "job.safetensors", "links": path / "links.csv"}
    grid = grid_of(app_of(task, cut(table)), task.clients)
    initial = record_of(task.init().numpy())
    FedPBC(fraction_evaluate=0.0, **files).start(grid, initial, num_rounds=5)


def stop_after(evaluations: int) -> None:
    """Let this process stop at an evaluation as if Ctrl-C had been pressed twice."""
    from fedpbc.experiments.run_directory import RunDirectory

    append, left = RunDirectory.append_metrics, evaluations

    def append_or_stop(self: RunDirectory, line: dict[str, Any]) -> bytes:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return append(self, line)

    RunDirectory.append_metrics = append_or_stop


def stopped(evaluations: str, *command: str) -> None:
    """A command that was stopped after so many evaluations."""
    from fedpbc.cli.app import main

    stop_after(int(evaluations))
    sys.argv = ["fedpbc", *command]
    with pytest.raises(SystemExit, match="130"):
        main()


def stopped_advice(evaluations: str, folder: str) -> None:
    """Advice that was stopped after so many evaluations."""
    stop_after(int(evaluations))
    with pytest.raises(SystemExit, match="130"):
        advised(folder)


def fleet_with_job(folder: str) -> None:
    """A fleet that trains an app, whose job has begun."""
    from fedpbc.deployment.ops.fleet_plan import FleetPlan
    from fedpbc.deployment.ops.init import write_fleet

    app = Path(folder) / "app.py"
    app.write_text(APP)
    write_fleet(Path(folder) / "run", FleetPlan(clients=2, hosts=("example.org",), app=app))
    (Path(folder) / "run" / "server" / "rounds.jsonl").write_text("")


def fleet_with_change(folder: str) -> None:
    """A server's folder in which client 1 is refused because it has other data."""
    from fedpbc.deployment.server.identities import Identities, Identity

    path = Path(folder) / "run"
    path.mkdir()
    (path / "fleet.toml").write_text("clients = 3\nrounds = 6\n[fleet]\nwait_for = 3\n")
    identities = Identities(path, "job")
    for data in ("a" * 32, "b" * 32):
        identities.problem(1, Identity("c" * 32, data))
    identities.save()


def demo(folder: str) -> None:
    """What a demo writes before its processes start, in the place of an older one."""
    from fedpbc.deployment.ops.demo import Demo, check_folder, plan_demo

    path = Path(folder) / "run"
    plan = plan_demo({"rounds": 2}, 2, 1.0)
    check_folder(path, overwrite=True)
    with Demo(path, plan) as running:
        running.is_done = True


def change_shared_memory() -> None:
    """Leave shared memory behind, or remove what was left."""
    left = Path("/dev/shm/left")
    if left.exists():
        left.unlink()
    else:
        left.write_text("x")
