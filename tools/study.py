"""The study of docs/study.md: its commands, and its tables from what they have written.

``python tools/study.py run fashion`` runs what is not finished yet (killed anywhere, it goes on);
``python tools/study.py tables`` writes docs/study/*.json and the tables of docs/study.md from the
comparisons that are there. CIFAR-10 and the traces are not part of the package: name their folders
with ``--data-dir`` and ``--traces``. The step sizes of each algorithm and what the tables need of
each run are kept in docs/study, so that the study can go on elsewhere: what is kept there is not
run again. Each core runs entries of its own (``--jobs``): one entry on all cores would wait for the
slowest client of every round.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiments.conditions import CEILING
from fedpbc.limits import parse_toml
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.toml import toml_text
from study_results import (
    KeptRun,
    finished_runs,
    keep_runs,
    kept_runs,
    overview_of,
    summarised,
    table_of,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "study.md"
RESULTS = ROOT / "docs" / "study"
STUDY = "study"
LINKS = ("bernoulli_varying", "markov_varying", "cyclic_reset", "devices")
TRACE = "devices5d.csv"
TUNING_SEED = "10"
FIRST = ("fedpbc", CEILING, "fedavg", "fedau", "mifa", "scaffold", "fedvarp")
"""Run first: those in which every client trains in every round take an hour, others minutes."""
LABELS = (*FIRST, *(name for name in ALGORITHMS if name not in FIRST))
SEARCHED_LONGER = (
    "fedavg",
    "fedavg_known",
    "amplified_fedavg",
    "scaffold",
    "amplified_scaffold",
    "fedawe",
)
"""A search over 90 rounds of CIFAR-10 chose the smallest of four step sizes for them, which was too
small for FedAvg over 450: the step sizes of these are searched for over 450 rounds. Also for FOCUS,
but over 450 rounds all four diverge."""
LONG = ("fedpbc", "fedavg", "fedau", "mifa", "fedstale")
"""The paper's, and the best others of the table with these links."""


@dataclass(frozen=True)
class Part:
    """A comparison of the study, and the commands that make it.

    Attributes:
        search: the options of ``fedpbc tune`` but for the algorithms and the folder.
        tuned: the name of the search, which several parts may share.
        compare: the options of ``fedpbc compare`` but for the choices and the folder.
        seeds: of the comparison.
        entries: their labels, in the order in which they are run.
        ceiling_of: a part whose ceiling is this one's, too: links that are up do not differ.
        longer_search: like ``search``, for the entries of ``SEARCHED_LONGER``.
    """

    name: str
    title: str
    search: str
    tuned: str
    compare: str
    seeds: Sequence[int]
    entries: Sequence[str] = LABELS
    ceiling_of: str = ""
    longer_search: str = ""

    @property
    def kept_runs(self) -> Path:
        """The file that keeps its runs."""
        return RESULTS / "runs" / f"{self.name}.json"

    @property
    def kept_choices(self) -> Path:
        """The file that keeps the choices of its search: a configuration for ``compare``."""
        return RESULTS / f"{self.tuned}.toml"

    def folder(self, label: str = "") -> Path:
        """The folder of the runs of one entry, or of all."""
        return Path(STUDY) / self.name / label

    @property
    def labels(self) -> Sequence[str]:
        """The labels of the entries that are run for this part."""
        return [label for label in self.entries if label != CEILING or not self.ceiling_of]

    def all_runs(self, parts: Mapping[str, Part]) -> list[KeptRun]:
        """The runs that are kept, with those of another part that are the ceiling of this, too."""
        runs = list(kept_runs(self.kept_runs).values())
        if self.ceiling_of:
            others = kept_runs(parts[self.ceiling_of].kept_runs).values()
            runs += [run for run in others if run.label == CEILING]
        return runs

    def deploy_views(self, parts: Mapping[str, Part]) -> dict[str, str]:
        """The view to deploy of each entry, which its search has chosen on held-out samples."""
        tables = tables_of(self.kept_choices)
        if self.ceiling_of:
            others = tables_of(parts[self.ceiling_of].kept_choices)
            if CEILING in others:
                tables[CEILING] = others[CEILING]
        return {label: table["deploy_view"] for label, table in tables.items()}

    def tune_command(self, label: str) -> list[str]:
        """The search of one entry: the choice of each is its own."""
        if self.longer_search and label in SEARCHED_LONGER:
            return self._tune_command(label, self.longer_search, f"{self.tuned}-longer/{label}")
        return self._tune_command(label, self.search, f"{self.tuned}/{label}")

    def _tune_command(self, algorithms: str, search: str, folder: str) -> list[str]:
        return f"tune --algorithms {algorithms} {search} --out {STUDY}/{folder}".split()

    def compare_command(self, label: str = "") -> list[str]:
        """The comparison of one entry, or of all."""
        labels = label or (",".join(self.entries) if self.entries != LABELS else "")
        algorithms = f"--algorithms {labels} " if labels else ""
        choices, seeds = self.kept_choices.relative_to(ROOT), f"{self.seeds[0]}-{self.seeds[-1]}"
        seeds = seeds if len(self.seeds) > 1 else str(self.seeds[0])
        return (
            f"compare {choices} {algorithms}{self.compare} --seeds {seeds} "
            f"--out {self.folder(label)}"
        ).split()

    @property
    def commands(self) -> list[list[str]]:
        """What makes it, as anybody would type it."""
        return [*self._searches(), self.compare_command()]

    def _searches(self) -> Iterator[list[str]]:
        """All searches, in as few commands as try the same candidates as one for each entry."""
        if "--candidates" in self.search:
            yield self._tune_command("all --ceiling", self.search, self.tuned)
        else:
            # A search tries more candidates if any of its algorithms has options to tune.
            options = [name for name in ALGORITHMS if ALGORITHMS[name].tuned_options]
            rates = [name for name in ALGORITHMS if name not in options]
            yield self._tune_command(",".join(options), self.search, self.tuned)
            labels = f"{','.join(rates)} --ceiling"
            yield self._tune_command(labels, self.search, f"{self.tuned}-step-sizes")
        if self.longer_search:
            folder = f"{self.tuned}-longer"
            yield self._tune_command(",".join(SEARCHED_LONGER), self.longer_search, folder)


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
        first = "" if links == LINKS[0] else f"fashion-{LINKS[0]}"
        tuned = f"{name}-tuned"
        every.append(Part(name, title, search, tuned, compare, range(5), ceiling_of=first))
    cifar10 = f"--data cifar10 --data-dir {data_dir}"
    # The tables show no accuracy on training data.
    evaluations = "--set data.train_samples=500 --evaluate-every"
    search, longer = (
        f"{cifar10} --links {LINKS[0]} --rounds {rounds} "
        "--space learning_rate=0.05,0.025,0.1,0.2 --space global_learning_rate=1 --candidates 4 "
        f"--validation 0.1 {evaluations} 10 --seeds {TUNING_SEED}"
        for rounds in (90, 450)
    )
    tuned = "cifar10-tuned"
    for links in LINKS:
        name = f"cifar10-{links}"
        title = f"CIFAR-10 with its network, `{links}`, 450 rounds, one seed"
        compare = f"{cifar10} {links_of[links]} --rounds 450 {evaluations} 30"
        first = "" if links == LINKS[0] else f"cifar10-{LINKS[0]}"
        every.append(Part(name, title, search, tuned, compare, [0], LABELS, first, longer))
    title = f"CIFAR-10 with its network, `{LINKS[0]}`, 2,000 rounds, one seed"
    compare = f"{cifar10} {links_of[LINKS[0]]} --rounds 2000 {evaluations} 50"
    long = Part("cifar10-long", title, search, tuned, compare, [0], LONG, longer_search=longer)
    return [*every, long]


class Runner:
    """Runs entries of the study side by side, each on a core of its own."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._cores: SimpleQueue[int] = SimpleQueue()
        for core in sorted(os.sched_getaffinity(0))[:jobs]:
            self._cores.put(core)
        self._keeping = Lock()
        """Held while a file of docs/study is changed."""

    def run(self, parts: Sequence[Part]) -> None:
        """Run the entries of parts that are not kept yet."""
        with ThreadPoolExecutor(self.jobs) as threads:
            entries = [(part, label) for part in parts for label in part.labels]
            ended = [threads.submit(self.run_entry, *entry) for entry in entries]
        # One that fails does not stop the others.
        if failures := [str(error) for future in ended if (error := future.exception())]:
            raise SystemExit("\n".join(failures))

    def run_entry(self, part: Part, label: str) -> None:
        """Tune an entry unless that was done, compare it, and keep the choice and the runs."""
        with self._core() as core:
            self._tune(part, label, core)
            if self._kept(part, label):
                return
            choice = tables_of(part.kept_choices)[label]
            begun = finished_runs(part.folder(label))
            others = any(not run.has_settings(choice) for run in begun)
            # Runs with settings that are no longer those chosen are made again.
            overwrite = ["--overwrite"] if others else []
            code = fedpbc([*part.compare_command(label), *overwrite], core)
        with self._keeping:
            keep_runs(part.kept_runs, part.folder(label))
        if not self._kept(part, label):
            raise RuntimeError(f"{label} of {part.name} is not complete (code {code})")

    def _kept(self, part: Part, label: str) -> bool:
        """Whether all runs of an entry are kept, with the settings that its search has chosen."""
        runs, choice = kept_runs(part.kept_runs), tables_of(part.kept_choices).get(label)
        return choice is not None and all(
            (label, seed) in runs and runs[label, seed].has_settings(choice) for seed in part.seeds
        )

    def _tune(self, part: Part, label: str, core: int) -> None:
        """Tune an entry unless that was done, and keep the choice."""
        if label in tables_of(part.kept_choices):
            return
        command = part.tune_command(label)
        if code := fedpbc(command, core):
            raise RuntimeError(f"'fedpbc {' '.join(command)}' ended with code {code}")
        choice = parse_toml((Path(command[-1]) / "tuned.toml").read_text(encoding="utf-8"))
        # Files of this machine; the commands of the tables name the data and the links.
        choice.pop("links", None)
        choice.get("data", {}).pop("dir", None)
        with self._keeping:
            tables = {**tables_of(part.kept_choices), **choice.pop("algorithms")}
            write_atomically(part.kept_choices, toml_text({**choice, "algorithms": tables}))

    @contextmanager
    def _core(self) -> Iterator[int]:
        """A core that no other entry runs on."""
        core = self._cores.get()
        try:
            yield core
        finally:
            self._cores.put(core)


def tables_of(choices: Path) -> dict[str, Any]:
    """The settings that a file keeps for each label."""
    if not choices.is_file():
        return {}
    tables: dict[str, Any] = parse_toml(choices.read_text(encoding="utf-8"))["algorithms"]
    return tables


def fedpbc(words: Sequence[str], core: int) -> int:
    """Run a command on one core; returns its code, which is not 0 if a run diverged."""
    command = [sys.executable, "-m", "fedpbc.cli.app", *words]
    with subprocess.Popen(command) as process:
        os.sched_setaffinity(process.pid, {core})
    return process.returncode


def write_tables(every: Sequence[Part]) -> None:
    """Write the results of parts that have FedAvg at least, and the tables of all such results."""
    text = PAGE.read_text(encoding="utf-8")
    contents: dict[str, dict[str, Any]] = {}
    by_name = {part.name: part for part in every}
    for part in every:
        file = RESULTS / f"{part.name}.json"
        runs = part.all_runs(by_name)
        there = {run.label for run in runs}
        if "fedavg" in there:
            commands = [" ".join(["fedpbc", *words]) for words in part.commands]
            content = {
                "title": part.title,
                "commands": commands,
                **summarised(runs, part.deploy_views(by_name)),
            }
            if missing := [label for label in part.labels if label not in there]:
                content["missing"] = missing
            write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        if file.is_file():
            contents[part.name] = json.loads(file.read_text(encoding="utf-8"))
            text = with_block(text, part.name, table_of(contents[part.name]))
    for data in ("fashion", "cifar10"):
        tables = {links: contents.get(f"{data}-{links}") for links in LINKS}
        known = {
            links: content
            for links, content in tables.items()
            if content is not None and "missing" not in content
        }
        if len(known) > 1:
            text = with_block(text, f"{data}-overview", overview_of(known))
    write_atomically(PAGE, text)


def with_block(text: str, name: str, content: str) -> str:
    """The page with other content between two of its marks."""
    mark = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", flags=re.DOTALL)
    block = mark.search(text)
    if block is None:
        return text
    return f"{text[: block.end(1)]}{content}\n{text[block.start(2) :]}"


def main() -> None:
    """Run parts of the study, or write its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "tables", "commands"))
    parser.add_argument("names", nargs="*", help="beginnings of the parts' names; default: all")
    parser.add_argument("--data-dir", default="FOLDER", help="of CIFAR-10's Parquet files")
    parser.add_argument("--traces", default="TRACES", help=f"folder with {TRACE}")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    every = parts(arguments.data_dir, arguments.traces)
    chosen = [p for p in every if not arguments.names or p.name.startswith(tuple(arguments.names))]
    if arguments.action == "run":
        Runner(arguments.jobs).run(chosen)
    elif arguments.action == "commands":
        for words in [words for part in chosen for words in part.commands]:
            sys.stdout.write(" ".join(["fedpbc", *words]) + "\n")
    else:
        # Tables show the commands as anybody would type them.
        write_tables(parts("FOLDER", "TRACES"))


if __name__ == "__main__":
    main()
