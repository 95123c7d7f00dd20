"""A fleet of real processes, and the invariants that are checked when it has finished."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from fedpbc.deployment.ops.local_fleet import LocalFleet
from fedpbc.deployment.settings import read_fleet
from fedpbc.engines import SerialEngine
from fedpbc.links import from_table
from fedpbc.simulation.loop import Simulation
from fedpbc.simulation.model_parts import ModelParts

APP = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))

def data(client):
    random = torch.Generator().manual_seed(client)
    return torch.randn(64, 6, generator=random) + client, torch.arange(64) % 4
"""


def make_fleet(
    folder: Path,
    *,
    clients: int,
    rounds: int,
    seconds: float,
    algorithm: Any = "fedpbc",
    app: str = APP,
    fleet: dict[str, Any] | None = None,
    plugins: list[str] | None = None,
    task: dict[str, Any] | None = None,
    **options: Any,
) -> LocalFleet:
    (folder / "mine.py").write_text(app)
    configuration = {
        "rounds": rounds,
        "seed": 5,
        "clients": clients,
        "algorithm": algorithm,
        "fleet": {"round_seconds": seconds, "wait_for": clients, **(fleet or {})},
        **({"plugins": plugins} if plugins else {}),
        **({"task": task} if task else {}),
    }
    return LocalFleet(folder / "f", configuration, app=folder / "mine.py", **options)


def until(fleet: LocalFleet, condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        fleet.step()
        assert time.monotonic() < end, logs(fleet)
        time.sleep(0.1)


def after_round(fleet: LocalFleet, rounds: int, seconds: float = 120) -> None:
    until(fleet, lambda: len(fleet.lines()) >= rounds, seconds)


def to_the_end(fleet: LocalFleet, seconds: float = 240) -> np.ndarray:
    """Wait for the job to finish, and check its results; returns the timetable."""
    until(fleet, fleet.step, seconds)
    audit(fleet)
    return check_exact(fleet)


def logs(fleet: LocalFleet) -> str:
    return "\n".join(
        f"--- {path.name}\n" + path.read_text(errors="replace")[-2500:]
        for path in sorted((fleet.folder / "logs").glob("*.log"))
    )


def log_of(fleet: LocalFleet, name: str) -> str:
    path = fleet.folder / "logs" / f"{name}.log"
    return path.read_text(errors="replace") if path.exists() else ""


def logged_answers(fleet: LocalFleet, client: int) -> list[dict[str, Any]]:
    """A trainer's log, without an incomplete last line."""
    path = fleet.device_folder(client) / "state" / "answers.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if "\n" in line]


def check_exact(fleet: LocalFleet) -> np.ndarray:
    """The final models are the simulator's on the timetable that the server logged."""
    table = np.loadtxt(fleet.server / "timetable.csv", delimiter=",", ndmin=2).astype(bool)
    lines = fleet.lines()
    # Every round once, in order.
    assert [line["round"] for line in lines] == list(range(len(table)))
    assert [line["active"] for line in lines] == [np.flatnonzero(row).tolist() for row in table]
    settings = read_fleet(fleet.server / "fleet.toml")
    assert table.shape == (settings.config.general.rounds, settings.clients)
    task = settings.whole_task()
    algorithm = settings.algorithm(ModelParts.of(task.init(), task.layout).x0)
    simulation = Simulation(task, algorithm, SerialEngine(task), from_table(table))
    list(simulation.run())
    for view, model in simulation.view_models().items():
        if view != "mean":
            named = load_file(fleet.server / "models" / f"{view}.safetensors")
            names = task.layout.without_kept().names
            flat = torch.cat([named[name].reshape(-1) for name in names])
            assert (flat - model[: len(flat)]).abs().max() <= 1e-6, view
    return table


def audit(fleet: LocalFleet) -> None:
    """Nothing is lost or counted twice, by the logs of the server and of the clients.

    What the server counted in a round is what the client logged for that round. Where clients train
    in all rounds, the counted segments have no gaps: each begins in the round after the last that
    was counted.
    """
    lines = fleet.lines()
    for client in range(fleet.clients):
        counted = [
            (line["round"], line["checksums"][str(client)])
            for line in lines
            if client in line["active"]
        ]
        assert len({round for round, _ in counted}) == len(counted)
        replies = {(a["round"], a["checksum"]): a for a in logged_answers(fleet, client)}
        first_round = 0
        for round, checksum in counted:
            reply = replies[round, checksum]
            assert reply["first_round"] == (first_round if lines[round]["everyone"] else round)
            first_round = round + 1
