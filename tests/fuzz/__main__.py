"""``python -m tests.fuzz``: many cases, or one of them again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.campaign import campaign, repeat


def main() -> int:
    """Run a campaign; returns 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many, over all kinds")
    parser.add_argument("--damages", type=int, default=100, help="how many damages to folders")
    parser.add_argument("--start", type=int, default=0, help="after so many, of one cut short")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", help="only cases of this kind; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run cases")
    parser.add_argument("--patience", type=float, default=60, help="seconds until a case hangs")
    parser.add_argument("--case", help="repeat one case, such as commands-1234")
    parser.add_argument("--keep", type=Path, help="with --case: keep its folder here")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"))
    options = parser.parse_args()
    if options.case:
        return repeat(options.case, options.seed, options.patience, options.keep)
    return campaign(
        options.cases,
        options.damages,
        options.seed,
        options.kind,
        options.jobs,
        options.patience,
        options.failures,
        options.start,
    )


if __name__ == "__main__":
    sys.exit(main())
