"""The study of docs/study.md: its commands, and its tables from what they have written.

``python tools/study.py run fashion`` runs what is not finished yet (killed anywhere, it goes on);
``python tools/study.py tables`` writes docs/study/*.json and the tables of docs/study.md from the
comparisons that are there. CIFAR-10 and the traces are not part of the package: name their folders
with ``--data-dir`` and ``--traces``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpbc.experiments.comparison import Comparison, RunResult
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.score_text import difference_text, recovered_text
from fedpbc.report.comparison_table import markdown
from fedpbc.storage.atomic import write_atomically

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "study.md"
RESULTS = ROOT / "docs" / "study"
STUDY = "study"
LINKS = ("bernoulli_varying", "markov_varying", "cyclic_reset", "devices")
TRACE = "devices5d.csv"
TUNING_SEED = "10"
LONG = "fedavg,fedau,mifa,fedpbc"


@dataclass(frozen=True)
class Part:
    """A comparison of the study, and the commands that make it."""

    name: str
    title: str
    commands: Sequence[Sequence[str]]
    ceiling_of: str = ""
    """A part whose ceiling is the same run: with every link up, links do not matter."""


def parts(data_dir: str, traces: str) -> list[Part]:
    """All parts, in the order in which they are run."""
    given = {links: f"--links {links}" for links in LINKS}
    given["devices"] = f"--trace {traces}/{TRACE} --clients 100"
    found = []
    for links in LINKS:
        name = f"fashion-{links}"
        tune = f"{STUDY}/{name}-tune"
        commands = (
            f"tune --algorithms all {given[links]} --rounds 300 --seeds {TUNING_SEED} --out {tune}",
            f"compare {tune}/tuned.toml --seeds 0-9 --ceiling --out {STUDY}/{name}",
        )
        title = f"Fashion-MNIST, `{links}`, 300 rounds, ten seeds"
        found.append(Part(name, title, [command.split() for command in commands]))
    tune = f"{STUDY}/cifar10-tune"
    search = (
        f"tune --algorithms all --data cifar10 --data-dir {data_dir} {given[LINKS[0]]} "
        "--rounds 150 --space learning_rate=0.05,0.025,0.1,0.2 --space global_learning_rate=1 "
        f"--candidates 6 --evaluate-every 8 --seeds {TUNING_SEED} --out {tune}"
    )
    for links in LINKS:
        name = f"cifar10-{links}"
        compare = (
            f"compare {tune}/tuned.toml {given[links]} --rounds 450 --evaluate-every 15 --seeds 0 "
            f"--ceiling --out {STUDY}/{name}"
        )
        first = links == LINKS[0]
        found.append(
            Part(
                name,
                f"CIFAR-10 with its network, `{links}`, 450 rounds, one seed",
                [search.split(), compare.split()] if first else [compare.split()],
                "" if first else f"cifar10-{LINKS[0]}",
            )
        )
    long = (
        f"compare {tune}/tuned.toml --algorithms {LONG} --rounds 2000 --evaluate-every 50 "
        f"--seeds 0 --out {STUDY}/cifar10-long"
    )
    title = f"CIFAR-10 with its network, `{LINKS[0]}`, 2,000 rounds, one seed"
    return [*found, Part("cifar10-long", title, [long.split()])]


def run(part: Part) -> None:
    """Run a part's commands; what is finished is done at once."""
    for words in part.commands:
        folder = Path(words[words.index("--out") + 1])
        if words[0] == "tune" and (folder / "tuning.json").is_file():
            continue
        if words[0] == "compare" and part.ceiling_of:
            take_ceiling(Path(STUDY) / part.ceiling_of, folder)
        subprocess.run([sys.executable, "-m", "fedpbc.cli.app", *words], check=True)


def take_ceiling(other: Path, folder: Path) -> None:
    """Copy a finished ceiling: the same run, since links that are always up do not differ."""
    for run in other.glob("ceiling/seed-*"):
        target = folder / "ceiling" / run.name
        if RunDirectory(run).finished and folder.is_dir() and not target.exists():
            shutil.copytree(run, target)


def results(folder: Path) -> Iterator[RunResult]:
    """The finished runs of a comparison's folder."""
    for path in sorted(folder.glob("*/seed-*")):
        run = RunDirectory(path)
        if run.finished:
            summary = run.summary()
            yield RunResult(
                summary["algorithm"],
                summary["seed"],
                summary["clients"],
                run.metrics(),
                cost=summary["cost"],
                label=path.parent.name,
            )


def steadiness(comparison: Comparison, label: str, view: str) -> float | None:
    """The deviation over the evaluations of the last rounds, the mean over seeds, in points."""
    deviations = []
    for run in comparison.of(label):
        first = run.metrics[-1]["round"] - comparison.window
        values = [
            line["views"][view]["test_accuracy"] for line in run.metrics if line["round"] > first
        ]
        if len(values) > 1:
            deviations.append(statistics.stdev(values))
    return 100 * statistics.fmean(deviations) if deviations else None


def settings_of(folder: Path, label: str) -> str:
    """The step sizes and options of an entry, from its first run."""
    import tomllib

    path = next(iter(sorted(folder.glob(f"{label}/seed-*/config.toml"))), None)
    if path is None:
        return ""
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    train, options = config["train"], dict(config["algorithm"])
    options.pop("name")
    own = [f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in options.items()]
    rates = [f"η_0 {train['learning_rate']:g}", f"η_g {train['global_learning_rate']:g}"]
    return ", ".join([*rates, *own])


def collect(part: Part, study: Path) -> dict[str, Any] | None:
    """The results of a part as JSON values; None if nothing is finished."""
    folder = study / part.name
    comparison = Comparison(results(folder))
    if not comparison.finished:
        return None
    paired = comparison.paired()
    rows = []
    for row in comparison.rows():
        if not row.best_deployable or row.test is None:
            continue
        pair = paired.row(row.label)
        assert pair is not None
        rows.append(
            {
                "label": row.label,
                "algorithm": row.algorithm,
                "view": row.view,
                "test": [row.test.mean, row.test.deviation, row.test.seeds],
                "difference": pair.difference and difference_text(pair.difference, True),
                "recovered": pair.recovered and recovered_text(pair.recovered),
                "steadiness": steadiness(comparison, row.label, row.view),
                "worst_class": row.worst_class
                and [row.worst_class.mean, row.worst_class.deviation],
                "local_steps": row.local_steps,
                "bytes_up": row.bytes_up,
                "models_on_server": row.models_on_server,
                "models_on_client": row.models_on_client,
                "settings": settings_of(folder, row.label),
                "curve": curve_of(comparison, row.label, row.view),
            }
        )
    return {
        "title": part.title,
        "commands": [" ".join(["fedpbc", *words]) for words in part.commands],
        "rounds": comparison.rounds,
        "window": comparison.window,
        "verdict": comparison.verdict().sentence,
        "rows": rows,
    }


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
    return f"```sh\n{commands}\n```\n\n{markdown(head, lines)}\n\n**Verdict:** {content['verdict']}"


def spread(values: Sequence[float]) -> str:
    """A mean, with its deviation if there are several seeds."""
    mean, deviation, seeds = values
    return f"{100 * mean:.1f} ± {100 * deviation:.1f}" if seeds > 1 else f"{100 * mean:.1f}"


def write_tables(every: Sequence[Part], study: Path) -> None:
    """Write the results that are there, and the tables of all results that were ever written."""
    text = PAGE.read_text(encoding="utf-8")
    for part in every:
        file = RESULTS / f"{part.name}.json"
        content = collect(part, study)
        if content is not None:
            write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        if not file.is_file():
            continue
        table = table_of(json.loads(file.read_text(encoding="utf-8")))
        mark = re.compile(rf"(<!-- {re.escape(part.name)} -->\n).*?(<!-- end -->)", flags=re.DOTALL)
        found = mark.search(text)
        if found is not None:
            text = f"{text[: found.end(1)]}{table}\n{text[found.start(2) :]}"
    write_atomically(PAGE, text)


def main() -> None:
    """Run parts of the study, or write its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "tables", "commands"))
    parser.add_argument("names", nargs="*", help="beginnings of the parts' names; default: all")
    parser.add_argument("--data-dir", default="FOLDER", help="of CIFAR-10's Parquet files")
    parser.add_argument("--traces", default="TRACES", help=f"folder with {TRACE}")
    parser.add_argument("--study", type=Path, default=Path(STUDY))
    given = parser.parse_args()
    every = parts(given.data_dir, given.traces)
    chosen = [p for p in every if not given.names or p.name.startswith(tuple(given.names))]
    for part in chosen if given.action != "tables" else ():
        if given.action == "run":
            run(part)
        for words in part.commands if given.action == "commands" else ():
            sys.stdout.write(" ".join(["fedpbc", *words]) + "\n")
    if given.action == "tables":
        # Tables show the commands as anybody would type them.
        write_tables(parts("FOLDER", "TRACES"), given.study)


if __name__ == "__main__":
    main()
