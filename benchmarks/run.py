"""Compare the engines with plain PyTorch and with other frameworks, in turns on the same work.

python -m benchmarks.run                         everything; what ``make bench`` begins with
python -m benchmarks.run --workload cifar10 --algorithm fedpbc --contestants plain,serial,pool
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from benchmarks.comparison import compare, note
from benchmarks.contestant import ROOT, Contestant, contestants
from benchmarks.report import write
from benchmarks.work import ALGORITHMS, WORKLOADS, Work

RESULTS = ROOT / "benchmarks" / "results"
REPEATS = 5
# So that a turn of the plain loop takes some seconds.
ROUNDS = {
    ("cifar10", "fedpbc"): 5,
    ("cifar10", "fedavg"): 10,
    ("fashion", "fedpbc"): 20,
    ("fashion", "fedavg"): 60,
    ("resnet18", "fedavg"): 1,
}
"""All that is measured unless asked otherwise: a FedPBC round of 100 ResNets takes minutes."""


def select(algorithm: str, names: str) -> list[Contestant]:
    """The contestants named, or all."""
    available = contestants(algorithm)
    if not names:
        return available
    requested = [name.strip() for name in names.split(",")]
    every_name = {c.name for each in ALGORITHMS for c in contestants(each)}
    for name in requested:
        if name not in every_name:
            fail(f"--contestants has {name!r}, but should be of {', '.join(sorted(every_name))}")
    return [c for c in available if c.name in requested]


def fail(reason: str, code: int = 2) -> NoReturn:
    """Exit with one line."""
    print(f"benchmarks: {reason}", file=sys.stderr)
    sys.exit(code)


class Interrupt:
    """Within this, Ctrl-C or being terminated ends everything that was started, and says so."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> None:
        # Said explicitly: started in the background, Python would not hear of Ctrl-C.
        for number in self.SIGNALS:
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        # Once is enough: ending everything must not be interrupted.
        for each in self.SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            fail("interrupted; everything that was started has been ended", 130)


def positive(text: str) -> int:
    """A positive integer."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options of all measurements."""
    parser.add_argument("--repeats", type=positive, help="number of repetitions")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write tables and plots."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workload", choices=WORKLOADS, help="only this one")
    parser.add_argument("--algorithm", choices=ALGORITHMS, help="only this one")
    parser.add_argument("--contestants", default="", help="only these, comma-separated")
    parser.add_argument("--rounds", type=positive, help="of one turn")
    parser.add_argument("--samples", type=positive, help="per client; fewer for a quick try")
    add_common(parser)
    options = parser.parse_args(arguments)
    if options.samples is not None and options.samples < Work.batch_size:
        fail(f"--samples is {options.samples}, but a batch has {Work.batch_size}")
    options.out.mkdir(parents=True, exist_ok=True)
    with Interrupt():
        for name in [options.workload] if options.workload else WORKLOADS:
            for algorithm in [options.algorithm] if options.algorithm else ALGORITHMS:
                if (name, algorithm) not in ROUNDS and not options.rounds:
                    continue
                everyone = select(algorithm, options.contestants)
                if name == "resnet18":
                    # Its network is the package's, which the peers' environments lack.
                    everyone = [each for each in everyone if each.kind != "peer"]
                if not everyone:
                    note(f"{name} {algorithm}: none of these can do it")
                    continue
                work = Work.named(name, algorithm, options.samples)
                note(work.title)
                rounds = options.rounds or ROUNDS[name, algorithm]
                result = compare(work, everyone, rounds, options.repeats or REPEATS)
                print(write(result, options.out))


if __name__ == "__main__":
    main()
