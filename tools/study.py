"""The study of docs/study.md: its commands, and its tables from what they have written.

``python tools/study.py run fashion`` runs what is not finished yet (killed anywhere, it goes on);
``python tools/study.py tables`` writes docs/study/*.json and the tables of docs/study.md from the
comparisons that are there. CIFAR-10 and the traces are not part of the package: name their folders
with ``--data-dir`` and ``--traces``. The step sizes of each algorithm and what the tables need of
each run are kept in docs/study, so that the study can go on elsewhere: what is kept there is not
run again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiments.conditions import CEILING
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.limits import parse_toml
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.toml import toml_text
from study_results import keep_runs, kept_runs, summarised, table_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "study.md"
RESULTS = ROOT / "docs" / "study"
STUDY = "study"
LINKS = ("bernoulli_varying", "markov_varying", "cyclic_reset", "devices")
TRACE = "devices5d.csv"
TUNING_SEED = "10"
FIRST = ("fedavg", "fedau", "mifa", "scaffold", "fedvarp", "fedpbc")
"""Run first: on CIFAR-10 a run takes minutes to hours."""
LABELS = (*FIRST, *(name for name in ALGORITHMS if name not in FIRST), CEILING)
LONG = ("fedavg", "fedau", "mifa", "scaffold", "fedpbc")


@dataclass(frozen=True)
class Part:
    """A comparison of the study, and the commands that make it.

    Attributes:
        search: the options of ``fedpbc tune`` but for the algorithms and the folder.
        tuned: the name of the search, which several parts may share.
        compare: the options of ``fedpbc compare`` but for the choices and the folder.
        seeds: of the comparison.
        labels: of the entries, in the order in which they are run.
        ceiling_of: a part whose ceiling is the same run: with every link up, links do not matter.
    """

    name: str
    title: str
    search: str
    tuned: str
    compare: str
    seeds: Sequence[int]
    labels: Sequence[str] = LABELS
    ceiling_of: str = ""

    @property
    def kept_runs(self) -> Path:
        """The file that keeps its runs."""
        return RESULTS / "runs" / f"{self.name}.json"

    @property
    def kept_choices(self) -> Path:
        """The file that keeps the choices of its search: a configuration for ``compare``."""
        return RESULTS / f"{self.tuned}.toml"

    @property
    def folder(self) -> Path:
        """Of its runs."""
        return Path(STUDY) / self.name

    def tune_command(self, label: str = "") -> list[str]:
        """The search of one entry, or of all: the choice of each is its own."""
        algorithms = label or "all --ceiling"
        out = f"{STUDY}/{self.tuned}/{label}".rstrip("/")
        return f"tune --algorithms {algorithms} {self.search} --out {out}".split()

    def compare_command(self, label: str = "") -> list[str]:
        """The comparison of one entry, or of all."""
        labels = label or (",".join(self.labels) if self.labels != LABELS else "")
        algorithms = f"--algorithms {labels} " if labels else ""
        choices, seeds = self.kept_choices.relative_to(ROOT), f"{self.seeds[0]}-{self.seeds[-1]}"
        seeds = seeds if len(self.seeds) > 1 else str(self.seeds[0])
        return (
            f"compare {choices} {algorithms}{self.compare} --seeds {seeds} --out {self.folder}"
        ).split()

    @property
    def commands(self) -> list[list[str]]:
        """What makes it, as anybody would type it."""
        return [self.tune_command(), self.compare_command()]


def parts(data_dir: str, traces: str) -> list[Part]:
    """All parts, in the order in which they are run."""
    links_of = {links: f"--links {links}" for links in LINKS}
    links_of["devices"] = f"--trace {traces}/{TRACE} --clients 100"
    every = []
    for links in LINKS:
        name = f"fashion-{links}"
        search = f"{links_of[links]} --rounds 300 --seeds {TUNING_SEED}"
        title = f"Fashion-MNIST, `{links}`, 300 rounds, five seeds"
        compare = f"{links_of[links]} --rounds 300"
        every.append(Part(name, title, search, f"{name}-tuned", compare, range(5)))
    cifar10 = f"--data cifar10 --data-dir {data_dir}"
    search = (
        f"{cifar10} --links {LINKS[0]} --rounds 90 --space learning_rate=0.05,0.025,0.1,0.2 "
        f"--space global_learning_rate=1 --candidates 4 --validation 0.1 --evaluate-every 10 "
        f"--seeds {TUNING_SEED}"
    )
    for links in LINKS:
        name = f"cifar10-{links}"
        title = f"CIFAR-10 with its network, `{links}`, 450 rounds, one seed"
        compare = f"{cifar10} {links_of[links]} --rounds 450 --evaluate-every 30"
        of_first = "" if links == LINKS[0] else f"cifar10-{LINKS[0]}"
        part = Part(name, title, search, "cifar10-tuned", compare, [0], ceiling_of=of_first)
        every.append(part)
    title = f"CIFAR-10 with its network, `{LINKS[0]}`, 2,000 rounds, one seed"
    compare = f"{cifar10} {links_of[LINKS[0]]} --rounds 2000 --evaluate-every 50"
    return [*every, Part("cifar10-long", title, search, "cifar10-tuned", compare, [0], LONG)]


def run(part: Part) -> None:
    """Run the entries of a part one after the other, and keep each choice and each run."""
    for label in part.labels:
        kept = kept_runs(part.kept_runs)
        if all((label, seed) in kept for seed in part.seeds):
            continue
        tune_for(part, label)
        if label == CEILING and part.ceiling_of:
            take_ceiling(Path(STUDY) / part.ceiling_of, part.folder)
        fedpbc(part.compare_command(label))
        keep_runs(part.kept_runs, part.folder)


def tune_for(part: Part, label: str) -> None:
    """Tune an entry unless that was done, and keep the choice."""
    choices: dict[str, Any] = {}
    if part.kept_choices.is_file():
        choices = parse_toml(part.kept_choices.read_text(encoding="utf-8"))
    if label in choices.get("algorithms", {}):
        return
    command = part.tune_command(label)
    fedpbc(command)
    choice = parse_toml((Path(command[-1]) / "tuned.toml").read_text(encoding="utf-8"))
    # Files of this machine; the commands of the tables name the data and the links.
    choice.pop("links", None)
    choice.get("data", {}).pop("dir", None)
    tables = {**choices.get("algorithms", {}), **choice.pop("algorithms")}
    write_atomically(part.kept_choices, toml_text({**choice, "algorithms": tables}))


def fedpbc(words: Sequence[str]) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "fedpbc.cli.app", *words], check=True)


def take_ceiling(other: Path, folder: Path) -> None:
    """Copy a finished ceiling: the same run, since links that are always up do not differ."""
    for path in other.glob(f"{CEILING}/seed-*"):
        target = folder / CEILING / path.name
        if RunDirectory(path).finished and folder.is_dir() and not target.exists():
            shutil.copytree(path, target)


def write_tables(every: Sequence[Part], study: Path) -> None:
    """Write the results that are there, and the tables of all results that were ever written."""
    text = PAGE.read_text(encoding="utf-8")
    for part in every:
        file = RESULTS / f"{part.name}.json"
        runs = keep_runs(part.kept_runs, study / part.name)
        if runs:
            commands = [" ".join(["fedpbc", *words]) for words in part.commands]
            content = {"title": part.title, "commands": commands, **summarised(runs)}
            write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        if not file.is_file():
            continue
        table = table_of(json.loads(file.read_text(encoding="utf-8")))
        mark = re.compile(rf"(<!-- {re.escape(part.name)} -->\n).*?(<!-- end -->)", flags=re.DOTALL)
        place = mark.search(text)
        if place is not None:
            text = f"{text[: place.end(1)]}{table}\n{text[place.start(2) :]}"
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
