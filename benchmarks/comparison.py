"""Run contestants in turn on the same work, and collect the results."""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bound import flop_of_round
from benchmarks.contestant import AbsentError, Contestant, Running
from benchmarks.machine import describe
from benchmarks.work import Work, prepare

__all__ = ["Block", "Comparison", "ComparisonRow", "compare"]

BOUND = Contestant("bound", "bound", (sys.executable, "-m", "benchmarks.bound"))
BOUND_MEASUREMENTS = 3
PEER_BLOCK_SECONDS = 10.0
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Block:
    """One turn of one contestant."""

    name: str
    repetition: int
    rounds: int
    seconds: float
    steps: int

    @property
    def round_seconds(self) -> float:
        """Seconds per round."""
        return self.seconds / self.rounds


@dataclass(frozen=True)
class ComparisonRow:
    """A contestant's line in the table.

    Attributes:
        seconds: the median over repetitions, of a round.
        low: the least.
        high: the most.
        speedup: for another's name, how many times as fast as that one this is: the median of the
            ratios within each repetition.
        share: of the machine's arithmetic, likewise.
    """

    name: str
    kind: str
    seconds: float
    low: float
    high: float
    speedup: Mapping[str, float]
    share: float | None


@dataclass
class Comparison:
    """All measurements of one workload."""

    work: Work
    kinds: dict[str, str] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    rates: dict[int, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=describe)

    def seconds(self, name: str) -> dict[int, float]:
        """Seconds per round in each repetition."""
        return {b.repetition: b.round_seconds for b in self.blocks if b.name == name}

    def speedup(self, name: str, other: str) -> float:
        """The median over repetitions of the other's time by this one's."""
        times, others = self.seconds(name), self.seconds(other)
        ratios = [others[k] / times[k] for k in times if k in others]
        return statistics.median(ratios or [math.nan])

    def rows(self, versus: Sequence[str] = ("plain", "serial")) -> list[ComparisonRow]:
        """One for each contestant that ran, the quickest first."""
        flop = flop_of_round(self.work)
        rows = []
        for name, kind in self.kinds.items():
            times = self.seconds(name)
            if not times:
                continue
            shares = [flop / times[k] / self.rates[k] for k in times if k in self.rates]
            rows.append(
                ComparisonRow(
                    name=name,
                    kind=kind,
                    seconds=statistics.median(times.values()),
                    low=min(times.values()),
                    high=max(times.values()),
                    speedup={v: self.speedup(name, v) for v in versus if self.seconds(v)},
                    share=statistics.median(shares) if shares else None,
                )
            )
        return sorted(rows, key=lambda row: row.seconds)

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "machine": self.machine,
            "work": asdict(self.work),
            "flop_of_round": flop_of_round(self.work),
            "flop_per_second": self.rates,
            "rows": [asdict(row) for row in self.rows()],
            "not_run": self.absent,
            "about": self.about,
            "blocks": [asdict(block) for block in self.blocks],
        }


def compare(
    work: Work, contestants: Sequence[Contestant], rounds: int, repeats: int, seed: int = 0
) -> Comparison:
    """Run all contestants in turn, in another order in each repetition.

    A peer that would take long for so many rounds is given fewer in a turn: its time for a round
    does not depend on how many there are.
    """
    result = Comparison(work)
    order = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="fedpbc-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        prepare(work, folder)
        running: list[Running] = []
        for contestant in (BOUND, *contestants):
            try:
                running.append(_start(contestant, folder, stack))
            except AbsentError as error:
                result.absent[contestant.name] = str(error)
                note(f"{contestant.name}: not run: {error}")
                continue
            note(f"{contestant.name}: ready")
            if contestant is not BOUND:
                result.kinds[contestant.name] = contestant.kind
                result.about[contestant.name] = running[-1].about
        for repetition in range(repeats):
            order.shuffle(running)
            for process in list(running):
                try:
                    _turn(result, process, repetition, rounds)
                except AbsentError as error:
                    result.absent[process.contestant.name] = str(error)
                    note(f"{process.contestant.name}: out: {error}")
                    running.remove(process)
                    process.end()
        note("ending all")
    return result


def _start(contestant: Contestant, folder: Path, stack: ExitStack) -> Running:
    """Started and warmed up; ended at once if it cannot take part."""
    started = stack.enter_context(Running(contestant, folder))
    try:
        started.ready()
    except AbsentError:
        started.end()
        raise
    return started


def _turn(result: Comparison, process: Running, repetition: int, rounds: int) -> None:
    name, kind = process.contestant.name, process.contestant.kind
    if kind == "bound":
        result.rates[repetition] = process.go(BOUND_MEASUREMENTS)["flop_per_second"]
        return
    if kind == "peer" and process.round_seconds * rounds > PEER_BLOCK_SECONDS:
        fewer = math.ceil(PEER_BLOCK_SECONDS / process.round_seconds)
        rounds = min(rounds, max(FEWEST_ROUNDS, fewer))
    answer = process.go(rounds)
    block = Block(name, repetition, answer["rounds"], answer["seconds"], answer["steps"])
    expected = result.work.steps * rounds
    if block.steps != expected:
        raise AbsentError(f"it made {block.steps} local steps where {expected} were expected")
    result.blocks.append(block)
    note(f"{repetition + 1}: {name}: {1000 * block.round_seconds:.1f} ms per round")


def note(line: str) -> None:
    """Report progress."""
    print(line, file=sys.stderr, flush=True)
