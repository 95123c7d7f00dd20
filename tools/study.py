"""The study of docs/study.md: its commands, and its tables from what they have written.

``python tools/study.py run fashion`` runs what is not finished yet (killed anywhere, it goes on);
``python tools/study.py tables`` writes docs/study/*.json and the tables of docs/study.md from the
comparisons that are there. CIFAR-10 and the traces are not part of the package: name their folders
with ``--data-dir`` and ``--traces``. Choices and runs on CIFAR-10 are kept in docs/study: what is
kept there is not run again.
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
from study_results import finished_runs, keep_runs, kept_runs, summarised, table_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "study.md"
RESULTS = ROOT / "docs" / "study"
STUDY = "study"
LINKS = ("bernoulli_varying", "markov_varying", "cyclic_reset", "devices")
TRACE = "devices5d.csv"
TUNING_SEED = "10"
TUNED = RESULTS / "cifar10-tuned.toml"
FIRST = ("fedavg", "fedau", "mifa", "scaffold", "fedvarp", "fedpbc")
"""Run first on CIFAR-10, where a run takes minutes to hours."""
LONG = ("fedavg", "fedau", "mifa", "scaffold", "fedpbc")


@dataclass(frozen=True)
class Part:
    """A comparison of the study, and the commands that make it.

    Attributes:
        labels: of the entries whose runs are kept one by one; none: the whole is run at once.
        ceiling_of: a part whose ceiling is the same run: with every link up, links do not matter.
    """

    name: str
    title: str
    commands: Sequence[Sequence[str]]
    labels: Sequence[str] = ()
    ceiling_of: str = ""

    @property
    def kept(self) -> Path:
        """The file that keeps its runs."""
        return RESULTS / "runs" / f"{self.name}.json"


def parts(data_dir: str, traces: str) -> list[Part]:
    """All parts, in the order in which they are run."""
    given = {links: f"--links {links}" for links in LINKS}
    given["devices"] = f"--trace {traces}/{TRACE} --clients 100"
    every = []
    for links in LINKS:
        name = f"fashion-{links}"
        tune = f"{STUDY}/{name}-tune"
        commands = (
            f"tune --algorithms all --ceiling {given[links]} --rounds 300 --seeds {TUNING_SEED} "
            f"--out {tune}",
            f"compare {tune}/tuned.toml --seeds 0-4 --out {STUDY}/{name}",
        )
        title = f"Fashion-MNIST, `{links}`, 300 rounds, five seeds"
        every.append(Part(name, title, [command.split() for command in commands]))
    labels = [*FIRST, *(name for name in ALGORITHMS if name not in FIRST), CEILING]
    tuned = TUNED.relative_to(ROOT)
    for links in LINKS:
        name = f"cifar10-{links}"
        compare = (
            f"compare {tuned} {given[links]} --rounds 450 --evaluate-every 30 --seeds 0 "
            f"--data-dir {data_dir} --out {STUDY}/{name}"
        )
        search = [cifar10_search("all", data_dir, "cifar10-tune")] if links == LINKS[0] else []
        of_first = "" if links == LINKS[0] else f"cifar10-{LINKS[0]}"
        title = f"CIFAR-10 with its network, `{links}`, 450 rounds, one seed"
        every.append(Part(name, title, [*search, compare.split()], labels, of_first))
    long = (
        f"compare {tuned} --algorithms {','.join(LONG)} --rounds 2000 --evaluate-every 50 "
        f"--seeds 0 --data-dir {data_dir} --out {STUDY}/cifar10-long"
    )
    title = f"CIFAR-10 with its network, `{LINKS[0]}`, 2,000 rounds, one seed"
    return [*every, Part("cifar10-long", title, [long.split()], LONG)]


def cifar10_search(algorithm: str, data_dir: str, out: str) -> list[str]:
    """The search on CIFAR-10, of one algorithm or of all: the choice of each is its own."""
    space = "--space learning_rate=0.05,0.025,0.1,0.2 --space global_learning_rate=1"
    return (
        f"tune --algorithms {algorithm} {'--ceiling ' if algorithm == 'all' else ''}--data cifar10 "
        f"--data-dir {data_dir} --links {LINKS[0]} --rounds 90 {space} --candidates 4 "
        f"--validation 0.1 --evaluate-every 10 --seeds {TUNING_SEED} --out {STUDY}/{out}"
    ).split()


def run(part: Part, data_dir: str) -> None:
    """Run a part's commands; what is finished, or kept, is done at once."""
    if part.labels:
        run_one_by_one(part, data_dir)
        return
    for words in part.commands:
        folder = Path(words[words.index("--out") + 1])
        if words[0] == "tune" and (folder / "tuning.json").is_file():
            continue
        fedpbc(words)


def run_one_by_one(part: Part, data_dir: str) -> None:
    """Run the entries of a part one after the other, and keep each choice and each run."""
    compare = list(part.commands[-1])
    folder = Path(compare[compare.index("--out") + 1])
    if "--algorithms" in compare:
        start = compare.index("--algorithms")
        del compare[start : start + 2]
    for label in part.labels:
        if (label, 0) in kept_runs(part.kept):
            continue
        tune_for(label, data_dir)
        if label == CEILING and part.ceiling_of:
            take_ceiling(Path(STUDY) / part.ceiling_of, folder)
        fedpbc([*compare, "--algorithms", label])
        keep_runs(part.kept, folder)


def tune_for(label: str, data_dir: str) -> None:
    """Tune an entry on CIFAR-10 unless that was done, and keep the choice."""
    choices: dict[str, Any] = {}
    if TUNED.is_file():
        choices = parse_toml(TUNED.read_text(encoding="utf-8"))
    if label in choices.get("algorithms", {}):
        return
    out = f"cifar10-tune/{label}"
    fedpbc(cifar10_search(label, data_dir, out))
    choice = parse_toml((Path(STUDY) / out / "tuned.toml").read_text(encoding="utf-8"))
    choice["data"].pop("dir", None)  # A folder of this machine.
    tables = {**choices.get("algorithms", {}), **choice.pop("algorithms")}
    write_atomically(TUNED, toml_text({**choice, "algorithms": tables}))


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
        file, folder = RESULTS / f"{part.name}.json", study / part.name
        runs = keep_runs(part.kept, folder) if part.labels else list(finished_runs(folder))
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
            run(part, given.data_dir)
        for words in part.commands if given.action == "commands" else ():
            sys.stdout.write(" ".join(["fedpbc", *words]) + "\n")
    if given.action == "tables":
        # Tables show the commands as anybody would type them.
        write_tables(parts("FOLDER", "TRACES"), given.study)


if __name__ == "__main__":
    main()
