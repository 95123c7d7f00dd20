"""What the study has found: runs that are kept one by one, and the tables made from them.

A table takes hours. What it needs of each run is kept in docs/study/runs, so that the study can go
on elsewhere without running it again.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_row import window_of
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.run_result import RunResult
from fedpbc.experiments.score_text import difference_text, recovered_text
from fedpbc.report.comparison_table import markdown
from fedpbc.storage.atomic import write_atomically

COUNTERS = ("round", "local_steps", "uploads", "bytes_up", "bytes_down")
DIGITS = 5
UNTUNED = ("name", "deploy_view", "links", "downlink", "train")
"""What a table of a search has besides the algorithm's options."""


@dataclass(frozen=True)
class KeptRun:
    """A finished run, as far as the tables need it."""

    algorithm: str
    label: str
    seed: int
    clients: int
    settings: str
    cost: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]] = field(repr=False)
    failure: str = ""
    """When it diverged, if it did."""

    def has_settings(self, choice: Mapping[str, Any]) -> bool:
        """Whether it was made with the settings of a table that a search wrote."""
        options = {k: v for k, v in choice.items() if k not in UNTUNED}
        chosen = settings_text(choice["train"], options)
        return set(chosen.split(", ")) <= set(self.settings.split(", "))

    def result(self, deploy_view: str | None) -> RunResult:
        """The run as one of a comparison, with the view to deploy that its search chose."""
        return RunResult(
            self.algorithm,
            self.seed,
            self.clients,
            self.metrics,
            cost=self.cost,
            label=self.label,
            deploy_view=deploy_view,
        )


def finished_runs(folder: Path) -> Iterator[KeptRun]:
    """The runs of a comparison's folder that have finished, or diverged."""
    for path in sorted(folder.glob("*/seed-*")):
        run = RunDirectory(path)
        if failure := divergence_of(path):
            config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
            kind = config["algorithm"]["name"], path.parent.name, config["seed"], config["clients"]
            yield KeptRun(*kind, settings_of(path / "config.toml"), {}, [], failure)
        if run.finished:
            summary = run.summary()
            yield KeptRun(
                summary["algorithm"],
                path.parent.name,
                summary["seed"],
                summary["clients"],
                settings_of(path / "config.toml"),
                summary["cost"],
                [_shortened(line) for line in run.metrics()],
            )


def divergence_of(path: Path) -> str:
    """When a run diverged; empty if it did not."""
    file = path / "failure.txt"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    match = re.search(r"diverged in round [\d,]+", text)
    return match[0] if match else ""


def _shortened(line: Mapping[str, Any]) -> dict[str, Any]:
    """What the tables need of an evaluation."""
    views = {}
    for view, evaluation in line["views"].items():
        worst = min(v for v in evaluation["per_class"] if v is not None)
        views[view] = {
            "test_accuracy": round(evaluation["test_accuracy"], DIGITS),
            "test_loss": round(evaluation["test_loss"], DIGITS),
            "per_class": [round(worst, DIGITS)],
        }
    return {**{key: line[key] for key in COUNTERS}, "views": views}


def settings_of(path: Path) -> str:
    """The step sizes and options of a run."""
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    options = {key: value for key, value in config["algorithm"].items() if key != "name"}
    return settings_text(config["train"], options)


def settings_text(train: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The two step sizes, and the algorithm's options."""
    named = {"η_0": train["learning_rate"], "η_g": train["global_learning_rate"], **options}
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in named.items())


def kept_runs(file: Path) -> dict[tuple[str, int], KeptRun]:
    """The runs that a file keeps, by label and seed."""
    if not file.is_file():
        return {}
    runs = [KeptRun(**values) for values in json.loads(file.read_text(encoding="utf-8"))]
    return {(run.label, run.seed): run for run in runs}


def keep_runs(file: Path, folder: Path) -> list[KeptRun]:
    """Add a folder's finished runs to those that a file keeps; returns all of them."""
    runs = kept_runs(file)
    runs |= {(run.label, run.seed): run for run in finished_runs(folder)}
    if runs:
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(run), ensure_ascii=False) for run in runs.values()]
        write_atomically(file, "[\n" + ",\n".join(lines) + "\n]\n")
    return list(runs.values())


def summarised(runs: Sequence[KeptRun], views: Mapping[str, str]) -> dict[str, Any]:
    """The results of a part of the study as JSON values; ``views`` are those to deploy by label."""
    diverged = {run.label: f"{run.failure} ({run.settings})" for run in runs if run.failure}
    runs = [run for run in runs if run.label not in diverged]
    comparison = Comparison(run.result(views.get(run.label)) for run in runs)
    settings = {run.label: run.settings for run in runs}
    paired = comparison.paired()
    rows = []
    for row in comparison.rows():
        pair = paired.row(row.label)
        if not row.best_deployable or row.test is None or pair is None:
            continue
        rows.append(
            {
                "label": row.label,
                "algorithm": row.algorithm,
                "view": row.view,
                "test": [row.test.mean, row.test.deviation, row.test.seeds],
                "difference": pair.difference and difference_text(pair.difference, True),
                "clear": pair.difference is not None
                and (pair.difference.clearly_above or pair.difference.clearly_below),
                "recovered": pair.recovered and recovered_text(pair.recovered),
                "steadiness": steadiness(comparison, row.label, row.view),
                "worst_class": row.worst_class
                and [row.worst_class.mean, row.worst_class.deviation],
                "local_steps": row.local_steps,
                "bytes_up": row.bytes_up,
                "models_on_server": row.models_on_server,
                "models_on_client": row.models_on_client,
                "settings": settings[row.label],
                "curve": curve_of(comparison, row.label, row.view),
            }
        )
    return {
        "rounds": comparison.rounds,
        "window": comparison.window,
        "verdict": comparison.verdict().sentence,
        "rows": rows,
        "diverged": diverged,
    }


def steadiness(comparison: Comparison, label: str, view: str) -> float | None:
    """The deviation over the evaluations of the last rounds, the mean over seeds, in points."""
    deviations = []
    for run in comparison.of(label):
        rounds = run.metrics[-1]["round"]
        first = rounds - window_of(rounds)
        values = [
            line["views"][view]["test_accuracy"] for line in run.metrics if line["round"] > first
        ]
        if len(values) > 1:
            deviations.append(statistics.stdev(values))
    return 100 * statistics.fmean(deviations) if deviations else None


def curve_of(comparison: Comparison, label: str, view: str) -> list[tuple[int, float]]:
    """The mean accuracy over the rounds, at no more than a dozen of them."""
    rounds, means, _ = comparison.curve(label, view)
    every = max(1, len(rounds) // 12)
    return [(t, round(mean, 4)) for t, mean in list(zip(rounds, means, strict=True))[::-every]][
        ::-1
    ]


def table_of(content: Mapping[str, Any]) -> str:
    """A part as Markdown: the best first, the ceiling last."""
    head = ["algorithm", "view", "test %", "vs fedavg", "recovered", "steadiness", "worst class %"]
    head += ["local steps", "models on server", "on client", "settings"]
    rows = sorted(content["rows"], key=lambda row: (is_ceiling(row["label"]), -row["test"][0]))
    lines = [
        [
            row["label"],
            row["view"],
            spread(row["test"]),
            row["difference"] or "–",
            row["recovered"] or "–",
            "–" if row["steadiness"] is None else f"{row['steadiness']:.1f}",
            spread([*row["worst_class"], row["test"][2]]) if row["worst_class"] else "–",
            f"{row['local_steps']:,}",
            str(row["models_on_server"]),
            str(row["models_on_client"]),
            row["settings"],
        ]
        for row in rows
    ]
    commands = "\n".join(content["commands"])
    verdict = f"**Verdict:** {content['verdict']}"
    if missing := content.get("missing"):
        verdict = f"**Not run yet:** {', '.join(missing)}.\n\n{verdict}"
    for label, when in content.get("diverged", {}).items():
        verdict = f"`{label}` {when}.\n\n{verdict}"
    return f"```sh\n{commands}\n```\n\n{markdown(head, lines)}\n\n{verdict}"


def overview_of(contents: Mapping[str, Mapping[str, Any]]) -> str:
    """What each algorithm gains over FedAvg on each kind of links, as Markdown; the best first."""
    gains: dict[str, dict[str, float]] = {}
    clear: set[tuple[str, str]] = set()
    for name, content in contents.items():
        means = {row["label"]: 100 * row["test"][0] for row in content["rows"]}
        for row in content["rows"]:
            label = row["label"]
            gains.setdefault(label, {})[name] = means[label] - means["fedavg"]
            if row["clear"]:
                clear.add((label, name))
        for label in content.get("diverged", {}):
            gains.setdefault(label, {})[name] = -math.inf
    every = [label for label in gains if label != "fedavg" and len(gains[label]) == len(contents)]
    every.sort(key=lambda label: (is_ceiling(label), -sum(gains[label].values())))
    lines = []
    for label in every:
        cells = []
        for name in contents:
            if gains[label][name] == -math.inf:
                cells.append("diverged")
                continue
            # Adding 0 makes a rounded −0.0 a 0.0.
            text = f"{round(gains[label][name], 1) + 0:+.1f}".replace("-", "−")
            cells.append(f"**{text}**" if (label, name) in clear else text)
        lines.append([label, *cells])
    return markdown(["algorithm", *(f"`{name}`" for name in contents)], lines)


def spread(values: Sequence[float]) -> str:
    """A mean, with its deviation if there are several seeds."""
    mean, deviation, seeds = values
    return f"{100 * mean:.1f} ± {100 * deviation:.1f}" if seeds > 1 else f"{100 * mean:.1f}"
