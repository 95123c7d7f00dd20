"""Write run directories without running anything, with numbers that a test can predict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from safetensors.torch import save_file

VIEWS = {"fedpbc": ("server", "averaged", "mean", "reported", "corrected")}
UPLOAD = 4_000
"""Bytes of a model; scaffold's uploads and what is sent down to it are twice as large."""

MODELS = {"server": 1, "averaged": 2, "mean": None, "reported": 9, "corrected": 10}


def config(algorithm: str, seed: int, rounds: int, every: int, **more: Any) -> dict[str, Any]:
    """Return a configuration; ``more`` has dotted keys with __ for the dots."""
    options: dict[str, Any] = {
        "rounds": rounds,
        "seed": seed,
        "clients": 8,
        "engine": "auto",
        "evaluate_every": every,
        "views": list(VIEWS.get(algorithm, ("server", "averaged"))),
        "algorithm": {"name": algorithm},
        "task": {"name": "classification"},
        "data": {"name": "digits", "alpha": 0.1},
        "model": {"name": "mlp"},
        "train": {"local_steps": 5, "learning_rate": 0.05, "global_learning_rate": 1.0},
        "links": {"name": "bernoulli", "sigma": 10.0},
        "downlink": {"name": "always"},
    }
    for key, value in more.items():
        section, _, option = key.rpartition("__")
        (options[section] if section else options)[option] = value
    return options


def accuracy(algorithm: str, seed: int, view: str, round: int, rounds: int) -> float:
    """Return a number between 0 and 1 that differs in each argument."""
    first = {"fedpbc": 0.2, "fedavg": 0.1}.get(algorithm, 0.15)
    better = dict(zip(VIEWS["fedpbc"], (0.0, 0.02, 0.1, 0.06, 0.04), strict=True))[view]
    return first + better + 0.5 * round / rounds + 0.01 * seed


def metrics(
    algorithm: str, seed: int, rounds: int, every: int, classes: bool, upto: int, old: bool = False
) -> list:
    lines, size = [], UPLOAD * (2 if algorithm == "scaffold" else 1)
    for t in [*range(every, rounds, every), rounds]:
        if t > upto:
            break
        views = {}
        for view in VIEWS.get(algorithm, ("server", "averaged")):
            a = accuracy(algorithm, seed, view, t, rounds)
            views[view] = {
                "test_accuracy": a if classes else None,
                "test_loss": 2 - a,
                "train_accuracy": a if classes else None,
                "train_loss": 2 - a,
                "per_class": [a, a / 2, None] if classes else None,
                **({} if classes else {"distance": 1.5 - a}),
            }
        lines.append(
            {
                "round": t,
                "active": 3,
                "active_mean": 3.0,
                "views": views,
                "staleness_mean": 4.0 + seed,
                "staleness_max": 9 + seed,
                "consensus_error": 1 / t if algorithm == "fedpbc" else None,
                "local_steps": 40 * t if algorithm == "fedpbc" else 15 * t,
                "uploads": 3 * t,
                "seconds": 0.25 * t,
                **({} if old else dict.fromkeys(("bytes_up", "bytes_down"), size * 3 * t)),
            }
        )
    return lines


def add_metrics(run: Path, values: Mapping[str, Sequence[float | None]]) -> None:
    """Add metrics of one's own to every view of a run; each has a value for every evaluation."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for k, line in enumerate(lines):
        for evaluation in line["views"].values():
            evaluation.update({name: each[k] for name, each in values.items()})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def served(views: dict[str, Any]) -> dict[str, Any]:
    """Return accuracies of eight clients: the view's own, less for the first ones."""
    summary = {}
    for view in [*views, *(["own"] if "mean" in views else [])]:
        best = 0.99 if view == "own" else views[view]["test_accuracy"]
        values = [best - 0.02 * (7 - i) for i in range(8)]
        summary[view] = {
            "clients": 8,
            "mean": sum(values) / 8,
            "worst_tenth": values[0],
            "deviation": 0.04,
            "accuracies": values,
        }
    return summary


def write_run(
    folder: Path,
    algorithm: str = "fedavg",
    seed: int = 0,
    *,
    rounds: int = 40,
    every: int = 10,
    upto: int | None = None,
    classes: bool = True,
    fleet: bool = True,
    old: bool = False,
    **more: Any,
) -> Path:
    """Write a run directory, finished unless it ends after round ``upto``.

    An ``old`` one is like those of a version that did not count bytes.
    """
    if not classes:
        more = {"task": {"name": "quadratic"}, **more}
    folder.mkdir(parents=True)
    options = config(algorithm, seed, rounds, every, **more)
    (folder / "config.toml").write_text(tomli_w.dumps(options))
    lines = metrics(algorithm, seed, rounds, every, classes, rounds if upto is None else upto, old)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if fleet:
        up = np.random.default_rng(seed).random((min(rounds, 400), 8)) < 0.4
        tensors = {"up": torch.from_numpy(up), "p": torch.full((8,), 0.4, dtype=torch.float64)}
        if classes:
            tensors["class_counts"] = torch.arange(24).reshape(8, 3)
        save_file(tensors, folder / "fleet.safetensors", {"task": f"task {seed}"})
    if upto is None:
        (folder / "final.safetensors").write_bytes(b"")
        summary = {
            "algorithm": algorithm,
            "links": "bernoulli",
            "data": "digits",
            "seed": seed,
            "fingerprint": "0",
            "engine": "serial: requested",
            "rounds": rounds,
            "clients": 8,
            "views": lines[-1]["views"],
            "cost": {
                "local_steps": lines[-1]["local_steps"],
                "uploads": lines[-1]["uploads"],
                "models_on_server": {
                    view: MODELS[view] for view in VIEWS.get(algorithm, ("server", "averaged"))
                },
                "models_on_client": 1 if algorithm == "fedpbc" else 0,
                "memory_aided": algorithm in ("mifa", "scaffold"),
                **(
                    {"vectors_per_upload": 1}
                    if old
                    else {key: lines[-1][key] for key in ("bytes_up", "bytes_down")}
                ),
            },
            **({} if old or not classes else {"client_accuracy": served(lines[-1]["views"])}),
            "seconds": lines[-1]["seconds"],
            "memory": {"process": 300 * 2**20, "workers": 0},
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_grid(
    folder: Path, algorithms=("fedpbc", "fedavg"), seeds=(0, 1), **more: Any
) -> list[Path]:
    """Write a run for each algorithm and seed, in the directories of a comparison."""
    return [write_run(folder / a / f"seed-{s}", a, s, **more) for a in algorithms for s in seeds]
