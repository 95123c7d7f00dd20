"""Many cases on several workers, with progress, a table at the end and a file for each failure."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tests.fuzz.case import Kind, Verdict
from tests.fuzz.worker import Worker

PROGRESS_SECONDS = 20.0


def shares(cases: int, damages: int, names: Sequence[str] | None) -> dict[str, int]:
    """How many cases there are of each kind."""
    from tests.fuzz.kinds import KINDS

    chosen = [kind for kind in KINDS.values() if names is None or kind.name in names]
    unknown = set(names or ()) - set(KINDS)
    if unknown:
        raise SystemExit(f"--kind should be one of {', '.join(KINDS)}, not {', '.join(unknown)}")
    counts: dict[str, int] = {}
    for total, group in (
        (cases, [kind for kind in chosen if not kind.damage]),
        (damages, [kind for kind in chosen if kind.damage]),
    ):
        counts |= split(total, group)
    return counts


def split(total: int, kinds: Sequence[Kind]) -> dict[str, int]:
    """A number divided among kinds by their shares."""
    whole, left, counts = sum(kind.share for kind in kinds), total, {}
    for kind in kinds:
        counts[kind.name] = round(left * kind.share / whole)
        left -= counts[kind.name]
        whole -= kind.share
    return counts


def order(counts: dict[str, int]) -> Iterator[tuple[str, int]]:
    """All cases, those of different kinds mixed."""
    cases = [
        ((number + 0.5) / count, kind, number)
        for kind, count in counts.items()
        for number in range(count)
    ]
    for _, kind, number in sorted(cases):
        yield kind, number


def campaign(
    cases: int,
    damages: int,
    seed: int,
    kinds: Sequence[str] | None,
    jobs: int,
    patience: float,
    failures: Path,
    start: int = 0,
) -> int:
    """Run all cases, without the first ``start`` of them; returns 1 if any failed."""
    counts = shares(cases, damages, kinds)
    total = max(0, sum(counts.values()) - start)
    queue, lock = islice(order(counts), start, None), threading.Lock()
    verdicts: list[Verdict] = []
    began = time.monotonic()
    print(f"{total:,} cases with seed {seed} on {jobs} workers", flush=True)

    def work() -> None:
        worker = Worker(patience)
        try:
            while True:
                with lock:
                    case = next(queue, None)
                if case is None:
                    return
                try:
                    verdict = worker.run(case[0], seed, case[1])
                except ValueError:
                    verdict = Verdict(*case, 0.0, ["the worker died"])
                with lock:
                    verdicts.append(verdict)
                    if verdict.problems:
                        report(verdict, seed, failures)
        finally:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    said = began
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        if time.monotonic() - said > PROGRESS_SECONDS:
            said = time.monotonic()
            print(progress(len(verdicts), total, said - began), flush=True)
    print(table(verdicts, counts, time.monotonic() - began))
    failed = sum(bool(verdict.problems) for verdict in verdicts)
    return 1 if failed or len(verdicts) < total else 0


def progress(done: int, total: int, seconds: float) -> str:
    """One line on how far it is."""
    left = seconds * (total - done) / max(done, 1)
    speed = f"{done / seconds:.1f} per second"
    return f"{done:,} of {total:,} after {seconds:.0f} s, {speed}, about {left:.0f} s left"


def report(verdict: Verdict, seed: int, failures: Path) -> None:
    """Print a failure, and write everything about it to a file."""
    case = f"{verdict.kind}-{verdict.number}"
    command = f"python -m tests.fuzz --seed {seed} --case {case}"
    print(f"FAILED {command}: {'; '.join(verdict.problems)[:300]}", flush=True)
    failures.mkdir(parents=True, exist_ok=True)
    text = "\n".join(
        [command, verdict.about, *(f"problem: {p}" for p in verdict.problems), "", verdict.output]
    )
    (failures / f"{seed}-{case}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")


def table(verdicts: Sequence[Verdict], counts: dict[str, int], seconds: float) -> str:
    """How many cases of each kind there were, how they ended and how long they took."""
    lines = [f"{'kind':16}{'cases':>8}{'code 0':>8}{'code 2':>8}{'failed':>8}{'ms/case':>9}"]
    for kind in counts:
        own = [verdict for verdict in verdicts if verdict.kind == kind]
        codes = Counter(verdict.codes[0] for verdict in own if verdict.codes)
        failed = sum(bool(verdict.problems) for verdict in own)
        mean = 1000 * sum(verdict.seconds for verdict in own) / max(len(own), 1)
        lines.append(f"{kind:16}{len(own):8,}{codes[0]:8,}{codes[2]:8,}{failed:8,}{mean:9.0f}")
    failed = sum(bool(verdict.problems) for verdict in verdicts)
    lines.append(f"{len(verdicts):,} cases in {seconds:.0f} s, {failed:,} failed")
    return "\n".join(lines)


def repeat(case: str, seed: int, patience: float, keep: Path | None) -> int:
    """Run one case again and show everything about it."""
    kind, _, number = case.rpartition("-")
    worker = Worker(patience, keep)
    try:
        verdict = worker.run(kind, seed, int(number))
    finally:
        worker.close()
    print(verdict.about, verdict.output, sep="\n")
    for problem in verdict.problems:
        print(f"problem: {problem}")
    if keep is not None:
        print(f"repeat by hand in {keep}/work:", *verdict.steps, sep="\n")
    print(
        "failed" if verdict.problems else f"all is well; exit codes {verdict.codes}",
        file=sys.stderr,
    )
    return 1 if verdict.problems else 0
